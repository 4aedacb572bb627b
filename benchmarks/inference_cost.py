"""The cost of a step of the inference worker, in microseconds of CPU time per forward pass.

    python benchmarks/inference_cost.py [--env CartPole-v1] [--envs-per-group 32] [--groups 2] [--seconds 10]

Real groups of environments step between two forward passes, so that the caches are as cold as in a run. A loop of
nothing but forward passes looks a fifth faster. The network acts with torch and in NumPy, in blocks that take turns,
because a shared machine is noisy for seconds at a time.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from pathlib import Path

import numpy as np

from sf.config import Config, InferenceConfig, LearnerConfig, ModelConfig, RolloutConfig, RunConfig
from sf.envs import find_env, probe
from sf.inference.network_actor import NetworkActor
from sf.inference.worker import InferenceWorker
from sf.run.sizes import resolve
from sf.run.wiring import wire
from sf.shared.slots import Slots
from sf.storage.experiment import Experiment

BLOCK_STEPS = 20


def main() -> None:
    """Prints the medians."""
    parser = argparse.ArgumentParser(description=Path(__file__).stem)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--envs-per-group", type=int, default=32)
    parser.add_argument("--groups", type=int, default=2, help="that one forward pass serves")
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    config = Config(
        run=RunConfig(options.env, seed=1),
        rollout=RolloutConfig(
            num_workers=options.groups, num_envs_per_worker=options.envs_per_group, worker_num_splits=1
        ),
        model=ModelConfig(
            encoder_mlp_layers=(64, 64), nonlinearity="tanh", normalize_input=False, normalize_returns=False
        ),
        inference=InferenceConfig(1),
        learner=LearnerConfig(num_batches_per_epoch=1),
    )
    source = find_env(options.env)
    info = probe(source)
    config = resolve(config, info, cores=1)
    with tempfile.TemporaryDirectory() as directory:
        shared, specs = wire(config, info, source, Experiment(directory, "bench", "resume"))
        built = {spec.name: spec.build() for spec in specs}  # the learner publishes weights
    workers = [role for name, role in built.items() if name.startswith("rollout")]
    inference = built["inference-0-0"]
    assert isinstance(inference, InferenceWorker)
    actor = inference.actor
    assert isinstance(actor, NetworkActor)
    fast, ways = actor.fast_act, {"torch": 0}
    if fast.most_small_rows >= options.groups * options.envs_per_group:
        ways["in NumPy"] = fast.most_small_rows
    slots = Slots(shared.topology, shared.arena)
    seconds: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    end_s = time.monotonic() + options.seconds
    for way in itertools.cycle(way for way in ways for _ in range(BLOCK_STEPS)):
        if time.monotonic() > end_s:
            break
        fast.most_small_rows = ways[way]
        for worker in workers:
            worker.step()
        before, started = inference.record["forward"], time.thread_time()
        if inference.step():
            seconds[way].append((time.thread_time() - started, inference.record["forward"] - before))
        for slot in slots.waiting_for(0).tolist():
            slots.take(slot, 0)
            slots.release(slot, 0)
    for way, pairs in seconds.items():
        step, forward = 1e6 * np.median(pairs, axis=0)
        rows = options.groups * options.envs_per_group
        print(f"{way}: step {step:.0f} us of CPU, {step / rows:.2f} per sample; forward {forward:.0f} us by the clock")


if __name__ == "__main__":
    main()
