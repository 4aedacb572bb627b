"""What a step of the inference worker takes, in microseconds of CPU time per forward pass.

    python benchmarks/inference_cost.py [--env CartPole-v1] [--envs-per-group 32] [--groups 2] [--seconds 10] [--eager]

Real groups of environments step between two forward passes, so that the caches are as cold as in a run; a loop of
nothing but forward passes looks a fifth faster. `--eager` has the network act as it is written, not from a recording.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from sf.config import Config, LearnerConfig, ModelConfig, RolloutConfig, RunConfig, resolve
from sf.envs import find_env, probe
from sf.experiment import Experiment
from sf.inference.worker import InferenceWorker
from sf.policy import CollectPolicy
from sf.slots import Slots
from sf.wiring import wire


def main() -> None:
    """Prints the medians."""
    parser = argparse.ArgumentParser(description=Path(__file__).stem)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--envs-per-group", type=int, default=32)
    parser.add_argument("--groups", type=int, default=2, help="that one forward pass serves")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--eager", action="store_true")
    options = parser.parse_args()
    config = Config(
        run=RunConfig(options.env, seed=1),
        rollout=RolloutConfig(
            num_workers=options.groups, num_envs_per_worker=options.envs_per_group, worker_num_splits=1
        ),
        model=ModelConfig(
            encoder_mlp_layers=(64, 64), nonlinearity="tanh", normalize_input=False, normalize_returns=False
        ),
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
    if options.eager:
        inference.policy = CollectPolicy(
            inference.network, emit_log_probability=True, automatic_state_reset=False, validate_args=False
        )
    slots = Slots(shared.topology, shared.arena, info)
    steps, forwards = [], []
    end_s = time.monotonic() + options.seconds
    while time.monotonic() < end_s:
        for worker in workers:
            worker.step()
        before, started = inference.record["forward"], time.thread_time()
        if inference.step():
            steps.append(time.thread_time() - started)
            forwards.append(inference.record["forward"] - before)
        for slot in slots.waiting_for(0).tolist():
            slots.take(slot, 0)
            slots.release(slot, 0)
    step, forward = (1e6 * np.median(seconds) for seconds in (steps, forwards))
    rows = options.groups * options.envs_per_group
    print(
        f"step {step:.0f} us of CPU, forward {forward:.0f} us by the clock, {step / rows:.2f} us per sample (medians)"
    )


if __name__ == "__main__":
    main()
