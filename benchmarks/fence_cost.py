"""The cost of the fences of `sf.shared.order` on this processor, also where it needs none.

    python benchmarks/fence_cost.py [--env CartPole-v1] [--envs-per-group 16] [--inference 1]
        [--seconds 20]

Groups of environments and the inference worker that serves them step in turns, in one process. Blocks of steps with
plain stores and loads take turns with blocks that have a compiled fence or a semaphore, in an order that is drawn. A
shared machine is noisier than a fence is long, so the operations with a fence are counted too, and timed in a loop.
"""

from __future__ import annotations

import argparse
import itertools
import random
import tempfile
import time
import timeit
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sf.config import Config, InferenceConfig, RolloutConfig, RunConfig
from sf.envs import find_env, probe
from sf.inference.worker import InferenceWorker
from sf.rollout.worker import RolloutWorker
from sf.run.sizes import resolve
from sf.run.wiring import wire
from sf.shared import order, records, slots, weights
from sf.shared.order import Operations
from sf.shared.requests import Requests
from sf.storage.experiment import Experiment

BLOCK_STEPS = 200
LOOPS = 200_000


def use(operations: Operations, asking: Sequence[Requests]) -> None:
    """Gives the hot paths these operations; requests have none where workers act for themselves."""
    for module in (records, slots, weights):
        for name, operation in operations._asdict().items():
            if hasattr(module, name):
                setattr(module, name, operation)
    for requests in asking:
        if not requests.topology.workers_act:
            requests.publish, requests.observe = operations.publish, operations.observe


def nanoseconds(operations: Operations) -> float:
    """What publishing and observing a word take, the mean of both."""
    words = np.zeros(8, np.int64).data
    calls = (lambda: operations.publish(words, 1, 2)), (lambda: operations.observe(words, 1))
    return 1e9 * sum(min(timeit.repeat(call, number=LOOPS, repeat=5)) for call in calls) / LOOPS / len(calls)


def main() -> None:
    """Prints the medians."""
    parser = argparse.ArgumentParser(description=Path(__file__).stem)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--envs-per-group", type=int, default=16)
    parser.add_argument("--inference", type=int, default=1, help="inference workers; 0 for workers that act themselves")
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    rollout = RolloutConfig(num_workers=1, num_envs_per_worker=2 * options.envs_per_group, worker_num_splits=2)
    inference = InferenceConfig(policy_workers_per_policy=options.inference)
    config = Config(run=RunConfig(options.env, seed=1), rollout=rollout, inference=inference)
    source = find_env(options.env)
    info = probe(source)
    config = resolve(config, info, cores=2)
    with tempfile.TemporaryDirectory() as directory:
        shared, specs = wire(config, info, source, Experiment(directory, "bench", "resume"))
        built = {spec.name: spec.build() for spec in specs if spec.name != "eval"}  # the learner publishes weights
    roles = [role for name, role in built.items() if name.startswith(("rollout", "inference"))]
    parts = [part for role in roles for part in (role, getattr(role, "role", None), *getattr(role, "companions", ()))]
    asking = [group.requests for part in parts if isinstance(part, RolloutWorker) for group in part.groups]
    asking += [part.requests for part in parts if isinstance(part, InferenceWorker)]
    fences = [0]

    def count() -> None:
        fences[0] += 1

    ways = {"plain": order.PLAIN, "counted": order.fenced(count), "a semaphore": order.fenced(order.semaphore_fence())}
    ways["compiled"] = order.fenced(order.compiled_fence())
    own = slots.Slots(shared.topology, shared.arena)
    requested = shared.arena["request"]
    micros: dict[str, list[float]] = {way: [] for way in ways}
    steps, end_s = 0, time.monotonic() + options.seconds
    for way in (way for _ in itertools.count() for way in random.sample([*ways], len(ways))):
        if time.monotonic() > end_s:
            break
        use(ways[way], asking)
        before, started = int(requested.sum()), time.thread_time()
        for _ in range(BLOCK_STEPS):
            for role in roles:
                role.step()
            for slot in own.waiting_for(0).tolist():
                own.take(slot, 0)
                own.release(slot, 0)
        done = int(requested.sum()) - before
        micros[way].append(1e6 * (time.thread_time() - started) / done)
        steps += done * (way == "counted")
    plain, per_step, plain_ns = float(np.median(micros["plain"])), fences[0] / steps, nanoseconds(order.PLAIN)
    print(f"plain: a step of a group {plain:.1f} us of CPU; it has {per_step:.1f} places for a fence")
    for way in ("compiled", "a semaphore"):
        each = nanoseconds(ways[way]) - plain_ns
        share = per_step * each / 1000 / plain
        measured = float(np.median(micros[way])) / plain
        print(f"{way}: {each:.0f} ns more for each, {share:.2%} of a step by counting; {measured:.3f} times in turns")


if __name__ == "__main__":
    main()
