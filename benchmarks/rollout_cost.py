"""The cost that the rollout worker adds to the environments, in microseconds of CPU time per sample.

    python benchmarks/rollout_cost.py [--env CartPole-v1] [--envs-per-group 32] [--blocks 60] [--vectorization none]

Steps the same environments twice: in a bare loop, and in a rollout worker whose requests are answered at once. The two
take turns in blocks of a few milliseconds, because a shared machine is noisy for seconds at a time. The medians over
the blocks are compared.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import numpy as np

from sf.config import Config, InferenceConfig, LearnerConfig, RolloutConfig, RunConfig
from sf.envs import find_env, probe
from sf.rollout.worker import RolloutWorker
from sf.run.preparation import vectorized
from sf.run.sizes import resolve
from sf.run.wiring import wire
from sf.shared.arena import Array
from sf.shared.requests import Requests
from sf.shared.slots import Slots
from sf.storage.experiment import Experiment

BLOCK_STEPS = 32

Vectorization = Literal["none", "native"]


def bare_blocks(env_id: str, count: int, actions: Array, vectorized: bool) -> Iterator[float]:
    """Seconds per step of `count` environments in a loop, resets included, block by block."""
    step = _vectorized_step(env_id, count) if vectorized else _single_steps(env_id, count)
    rows = itertools.cycle(np.concatenate([actions, actions], axis=1))
    while True:
        started = time.process_time()
        for row in itertools.islice(rows, BLOCK_STEPS):
            step(row)
        yield (time.process_time() - started) / (BLOCK_STEPS * count)


def _single_steps(env_id: str, count: int) -> Callable[[Array], None]:
    source = find_env(env_id)
    envs = [source.make() for _ in range(count)]
    for seed, env in enumerate(envs):
        env.reset(seed=seed)

    def step(actions: Array) -> None:
        for env, action in zip(envs, list(actions), strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    return step


def _vectorized_step(env_id: str, count: int) -> Callable[[Array], None]:
    groups = [find_env(env_id).make_vector(count // 2, seed) for seed in range(2)]
    for env in groups:
        env.reset()

    def step(actions: Array) -> None:
        for env, part in zip(groups, np.split(actions, 2), strict=True):
            env.step(part)

    return step


def worker_blocks(
    env_id: str, per_group: int, actions: Array, vectorization: Vectorization = "none"
) -> Iterator[float]:
    """Seconds per sample of a rollout worker with two groups, without the time of the answers, block by block."""
    config = Config(
        run=RunConfig(env_id, seed=1),
        rollout=RolloutConfig(
            num_workers=1, num_envs_per_worker=2 * per_group, rollout=len(actions), vectorization=vectorization
        ),
        inference=InferenceConfig(1),
        learner=LearnerConfig(num_batches_per_epoch=1),
    )
    source = find_env(env_id)
    info = probe(source)
    config, source = vectorized(resolve(config, info, cores=1), source, info)
    with tempfile.TemporaryDirectory() as directory:
        shared, specs = wire(config, info, source, Experiment(directory, "bench", "resume"))
        worker = next(spec for spec in specs if spec.name == "rollout-0").build()
    assert isinstance(worker, RolloutWorker)
    slots, requests = Slots(shared.topology, shared.arena), Requests(shared.topology, shared.arena)
    slots.actions[:] = actions
    slots.values[:] = 0
    while True:
        spent, before = 0.0, worker.record["env_steps"]
        while worker.record["env_steps"] < before + BLOCK_STEPS * 2 * per_group:
            started = time.process_time()
            worker.step()
            spent += time.process_time() - started
            requests.answered[:, 0] = requests.request
            for slot in slots.waiting_for(0):
                slots.take(int(slot), 0)
                slots.release(int(slot), 0)
        yield spent / (worker.record["env_steps"] - before)


def main() -> None:
    """Prints the medians."""
    parser = argparse.ArgumentParser(description=Path(__file__).stem)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--envs-per-group", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--vectorization", choices=["none", "native"], default="none")
    options = parser.parse_args()
    space = find_env(options.env).make().action_space
    actions = np.array([[space.sample() for _ in range(options.envs_per_group)] for _ in range(BLOCK_STEPS)])
    bare = bare_blocks(options.env, 2 * options.envs_per_group, actions, options.vectorization == "native")
    full = worker_blocks(options.env, options.envs_per_group, actions, options.vectorization)
    pairs = np.array([(next(bare), next(full)) for _ in range(options.blocks)]) * 1e6
    env, total = np.median(pairs, axis=0)
    added = np.median(pairs[:, 1] - pairs[:, 0])
    print(f"environments {env:.2f} us, worker {total:.2f} us, framework {added:.2f} us per sample (medians)")
    print(f"ratio {total / env:.2f}")


if __name__ == "__main__":
    main()
