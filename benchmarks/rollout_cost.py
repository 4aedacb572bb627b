"""What the rollout worker adds to the environments, in microseconds of CPU time per sample.

    python benchmarks/rollout_cost.py [--env CartPole-v1] [--envs-per-group 32] [--rounds 5]

Steps the same environments twice: in a bare loop, and in a rollout worker whose requests are answered at once. Rounds
alternate, and the medians are compared, because a shared machine is noisy.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from sf.config import Config, LearnerConfig, RolloutConfig, RunConfig, resolve
from sf.envs import find_env, probe
from sf.experiment import Experiment
from sf.rollout.worker import RolloutWorker
from sf.slots import Requests, Slots
from sf.wiring import wire

STEPS = 400


def bare_loop(env_id: str, count: int) -> float:
    """Seconds per step of `count` environments in a loop, resets included."""
    source = find_env(env_id)
    envs = [source.make() for _ in range(count)]
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
    actions = [[env.action_space.sample() for env in envs] for _ in range(STEPS)]
    started = time.process_time()
    for row in actions:
        for env, action in zip(envs, row, strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
    return (time.process_time() - started) / (STEPS * count)


def worker_loop(env_id: str, per_group: int) -> float:
    """Seconds per sample of a rollout worker with two groups, without the time of the answers."""
    config = Config(
        run=RunConfig(env_id, serial_mode=True, seed=1),
        rollout=RolloutConfig(num_workers=1, num_envs_per_worker=2 * per_group),
        learner=LearnerConfig(num_batches_per_epoch=1),
    )
    source = find_env(env_id)
    info = probe(source)
    config = resolve(config, info, cores=1)
    with tempfile.TemporaryDirectory() as directory:
        shared, specs = wire(config, info, source, Experiment(directory, "bench", "resume"))
        worker = next(spec for spec in specs if spec.name == "rollout-0").build()
    assert isinstance(worker, RolloutWorker)
    slots, requests = Slots(shared.topology, shared.arena, info), Requests(shared.topology, shared.arena)
    space = source.make().action_space
    actions = np.array([[space.sample() for _ in range(per_group)] for _ in range(config.rollout.rollout)])
    slots.actions[:] = actions
    spent, samples = 0.0, STEPS * per_group * 2
    while worker.record["env_steps"] < samples:
        started = time.process_time()
        worker.step()
        spent += time.process_time() - started
        slots.values[:] = 0
        requests.answered[:, 0] = requests.request
        for slot in slots.waiting_for(0):
            slots.take(int(slot), 0)
            slots.release(int(slot), 0)
    return spent / samples


def main() -> None:
    """Prints one line per round and the medians."""
    parser = argparse.ArgumentParser(description=Path(__file__).stem)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--envs-per-group", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    bare, full = [], []
    for _ in range(options.rounds):
        bare.append(bare_loop(options.env, 2 * options.envs_per_group) * 1e6)
        full.append(worker_loop(options.env, options.envs_per_group) * 1e6)
        print(f"environments {bare[-1]:6.2f} us   worker {full[-1]:6.2f} us")
    env, total = statistics.median(bare), statistics.median(full)
    print(f"median: environments {env:.2f} us, worker {total:.2f} us, framework {total - env:.2f} us per sample")
    print(f"ratio {total / env:.2f}")


if __name__ == "__main__":
    main()
