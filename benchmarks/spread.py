"""``python benchmarks/spread.py results.json``: IPPO and MAPPO on `simple_spread` of the particle worlds.

Three agents cover three landmarks for 25 steps. With `local_ratio=0.5`, the default, an agent gets half of the shared
reward, minus the distance from each landmark to its nearest agent, and half of its own, minus its collisions. Twice the
sum over the agents is the sum of the undivided rewards. Papoudakis et al. (2021, "Benchmarking Multi-Agent Deep
Reinforcement Learning Algorithms in Cooperative Tasks") report returns after 20 million steps. The JSON file keeps
finished runs, so that the command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import sf

SEEDS = 1, 2, 3
AGENTS = 3
ENVS = {"ippo": "pettingzoo/mpe2.simple_spread_v3", "mappo": "central/pettingzoo/mpe2.simple_spread_v3"}
EPISODES = 300
"""In an evaluation; each has a return of every agent."""


def measure(preset: str, seed: int, env_steps: int) -> dict[str, Any]:
    """Trains with shared parameters and evaluates the last policy, drawing its actions and taking the likeliest."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        result = sf.train(
            ENVS[preset], preset=preset, seed=seed, train_dir=directory, experiment="run",
            train_for_env_steps=AGENTS * env_steps,
        )  # fmt: skip
        seconds = time.monotonic() - began_s
        returns = {}
        for name, deterministic in (("drawn", False), ("likeliest", True)):
            summary = sf.evaluate(str(result.path), episodes=EPISODES, seed=0, deterministic=deterministic)
            returns[name] = 2 * AGENTS * summary.mean
    return {"env_steps": env_steps, "seconds": seconds, "shared return": returns}


def main() -> None:
    """Makes the runs that are missing, and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--env_steps", type=int, default=200_000)
    arguments = parser.parse_args()
    done = json.loads(arguments.results.read_text()) if arguments.results.exists() else {}
    for seed in SEEDS:
        for preset in ENVS:
            if (key := f"{preset}-{seed}") not in done:
                done[key] = measure(preset, seed, arguments.env_steps)
                arguments.results.write_text(json.dumps(done, indent=2) + "\n")
            print(key, done[key], flush=True)


if __name__ == "__main__":
    main()
