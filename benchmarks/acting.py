"""The cost of acting on one observation, in microseconds, and of loading a policy, in milliseconds.

    python benchmarks/acting.py [--env CartPole-v1] [--sizes 64 64] [--blocks 60]

The bare network and the policies around it take turns in blocks of a few milliseconds, because a shared machine is
noisy for seconds at a time. Medians over the blocks and medians of the ratios within a round are printed. A policy is
loaded in a fresh process each time; the measured time begins after torch is imported.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from sf.config import ModelConfig
from sf.envs import find_env, probe
from sf.policy import (
    ActorCritic,
    CollectPolicy,
    GreedyPolicy,
    NumpyPolicy,
    PolicySaver,
    TimeStep,
    TrainedPolicy,
    to_tensors,
)
from sf.policy.nests import leaves_with_paths, map_leaves
from sf.shared.arena import Array

BLOCK_CALLS = 50
LOADS = 7
LOAD = """
import sys, time, torch
started = time.perf_counter(), time.process_time()
from sf import load_policy
load_policy(sys.argv[1])
print(1e3 * (time.perf_counter() - started[0]), 1e3 * (time.process_time() - started[1]))
"""


def ways_to_act(network: ActorCritic, env_id: str) -> dict[str, Callable[[], object]]:
    """Functions that choose one action, by name; the bare network comes first."""
    env = find_env(env_id).make()
    time_step = TimeStep.first(env.reset(seed=0)[0])
    env.close()
    checked, unchecked = TrainedPolicy(network), TrainedPolicy(network, validate_args=False)
    batch = map_leaves(lambda leaf: leaf[None], to_tensors(time_step.observation, checked.time_step_spec.observation))
    stored = {name: leaf for (_, leaf), name in zip(leaves_with_paths(batch), network.info.observations, strict=True)}
    for_training = TimeStep((), (), (), stored)
    collect = CollectPolicy(network, emit_log_probability=True, validate_args=False)
    memory, own = collect.get_initial_state(1), network.get_initial_state(1)
    state = NumpyPolicy(checked).get_initial_state()
    policies = {
        "NumpyPolicy": NumpyPolicy(checked),
        "NumpyPolicy, validate_args=False": NumpyPolicy(unchecked),
        "NumpyPolicy, greedy": NumpyPolicy(GreedyPolicy(checked)),
    }
    return {
        "bare network": torch.inference_mode()(lambda: network.policy_forward(stored, own)),
        "network.act": lambda: network.act(stored, own),
        "CollectPolicy, validate_args=False": lambda: collect.action(for_training, memory),
        **{name: lambda policy=policy: policy.action(time_step, state) for name, policy in policies.items()},  # type: ignore[misc]
    }


def microseconds(
    ways: dict[str, Callable[[], object]], blocks: int
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """[blocks, ways] per call."""
    rounds = []
    for _ in range(blocks):
        spent = []
        for act in ways.values():
            started = time.process_time()
            for _ in range(BLOCK_CALLS):
                act()
            spent.append(1e6 * (time.process_time() - started) / BLOCK_CALLS)
        rounds.append(spent)
    return np.array(rounds)


def milliseconds_to_load(folder: Path) -> Array:
    """[loads, 2] wall time and CPU time in one fresh process after the other, imports of sf included."""
    found = []
    for _ in range(LOADS):
        command = [sys.executable, "-c", LOAD, str(folder)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found.append([float(number) for number in output.split()])
    return np.array(found)


def main() -> None:
    """Prints the medians."""
    parser = argparse.ArgumentParser(description=Path(__file__).stem)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--sizes", type=int, nargs="*", default=[64, 64])
    parser.add_argument("--blocks", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    network = ActorCritic(probe(find_env(options.env)), ModelConfig(encoder_mlp_layers=tuple(options.sizes)))
    ways = ways_to_act(network, options.env)
    microseconds(ways, 2)
    rounds = microseconds(ways, options.blocks)
    print(f"{'one observation of ' + options.env:36}{'median':>9}{'least':>9}{'/ bare':>9}{'/ act':>9}")
    for index, name in enumerate(ways):
        of_bare, of_act = (np.median(rounds[:, index] / rounds[:, column]) for column in (0, 1))
        median, least = np.median(rounds[:, index]), rounds[:, index].min()
        print(f"{name:36}{median:6.1f} us{least:6.1f} us{of_bare:9.2f}{of_act:9.2f}")
    with tempfile.TemporaryDirectory() as directory:
        loads = milliseconds_to_load(PolicySaver(TrainedPolicy(network)).save(Path(directory) / "policy"))
    for name, row in zip(("wall time", "CPU time"), loads.T, strict=True):
        print(f"loading a saved policy beyond torch, {name}: {np.median(row):.0f} ms (least {row.min():.0f} ms)")


if __name__ == "__main__":
    main()
