"""``python benchmarks/acting_cost.py``: CPU time of one step of acting in a rollout worker, in C and in NumPy.

Real environments step between two steps of acting, so that the caches are as cold as in a run. The two ways take turns,
because a shared machine is noisy for seconds at a time. The time has the look for new weights, the random numbers, the
forward pass of all policies, and the counters.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time

from sf.config import Config, InferenceConfig, RolloutConfig, RunConfig
from sf.envs import find_env, probe
from sf.inference.small_actors import NumpyActor, SmallActor
from sf.inference.small_worker import SmallInference
from sf.run.sizes import resolve
from sf.run.wiring import wire
from sf.shared.role import RoleGroup
from sf.shared.slots import Slots
from sf.storage.experiment import Experiment

BLOCK_STEPS = 50


def measure(env: str, rows: int, num_policies: int, seconds: float) -> dict[str, float]:
    """Medians in microseconds, by way."""
    config = Config(
        run=RunConfig(env, seed=1, num_policies=num_policies),
        rollout=RolloutConfig(num_workers=1, num_envs_per_worker=rows, worker_num_splits=1),
        inference=InferenceConfig(0),
    )
    source = find_env(env)
    info = probe(source)
    config = resolve(config, info, cores=2)
    with tempfile.TemporaryDirectory() as directory:
        shared, specs = wire(config, info, source, Experiment(directory, "bench", "resume"))
        roles = [spec.build() for spec in specs]  # the learners publish weights
    group = roles[-1]
    assert isinstance(group, RoleGroup)
    (inference,) = group.companions
    assert isinstance(inference, SmallInference)
    slots = Slots(shared.topology, shared.arena)
    ways: dict[str, SmallActor] = {
        "C": inference.act,
        "NumPy": NumpyActor(inference.networks, inference.versions, slots),
    }
    taken: dict[str, list[float]] = {way: [] for way in ways}
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        for way, actor in ways.items():
            inference.act = actor
            for _ in range(BLOCK_STEPS):
                group.role.step()
                began_s = time.thread_time()
                if inference.step():
                    taken[way].append(time.thread_time() - began_s)
                for policy in range(num_policies):
                    for slot in slots.waiting_for(policy).tolist():
                        slots.take(slot, policy)
                        slots.release(slot, policy)
    group.close()
    return {way: 1e6 * statistics.median(times) for way, times in taken.items()}


def main() -> None:
    """Prints a line for each number of policies."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=10.0, help="for each number of policies")
    arguments = parser.parse_args()
    for num_policies in (1, 8):
        micros = measure(arguments.env, arguments.rows, num_policies, arguments.seconds)
        print(
            f"{arguments.env}, {arguments.rows} rows of {num_policies} policies: "
            f"C {micros['C']:.0f} us, NumPy {micros['NumPy']:.0f} us, ratio {micros['C'] / micros['NumPy']:.2f}"
        )


if __name__ == "__main__":
    main()
