"""A learning rate that is far too small: four policies alone, and four as a population.

    python benchmarks/population.py results.json

The JSON file keeps finished runs, so that the script goes on where it was stopped.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import sf

SEEDS = 1, 2, 3
FRAMES = 800_000
"""Frames of all policies together."""
TARGET = 475.0
"""Mean return over 100 episodes at which CartPole counts as solved."""
SETTINGS: dict[str, Any] = {
    "env": "CartPole-v1", "num_policies": 4, "learning_rate": 1e-6, "num_workers": 1, "num_envs_per_worker": 16,
    "rollout": 32, "updates": "balanced", "train_for_env_steps": FRAMES,
}  # fmt: skip
POPULATION: dict[str, Any] = {
    "with_pbt": True, "pbt_space": {"learning_rate": {"min": 1e-6, "max": 1e-2}}, "pbt_period_env_steps": 1000,
    "pbt_start_mutation": 1000, "pbt_mutation_rate": 1.0, "pbt_perturb_min": 2.0, "pbt_perturb_max": 10.0,
}  # fmt: skip


def measure(seed: int, flags: dict[str, Any]) -> dict[str, float | None]:
    """The largest mean return over 100 episodes of any policy, and the frames of all until one reached the target."""
    with tempfile.TemporaryDirectory() as directory:
        result = sf.train(train_dir=directory, experiment="run", seed=seed, **SETTINGS, **flags)
        points = [json.loads(line) for line in (result.path / "metrics.jsonl").read_text().splitlines()]
    best, until, frames = 0.0, None, dict[int, float]()
    for point in points:
        frames[point["policy_id"]] = point["frames"]
        best = max(best, point.get("reward/reward") or 0.0)
        if best >= TARGET and until is None:
            until = sum(frames.values())
    return {"best": best, "frames": until}


def main(path: Path) -> None:
    """Makes the runs that are missing, and prints a table."""
    done: dict[str, dict[str, float | None]] = json.loads(path.read_text()) if path.exists() else {}
    print("| Seed | | best mean return | frames until 475 |\n|---|---|---|---|")
    for seed in SEEDS:
        for name, flags in (("alone", {}), ("population", POPULATION)):
            if (key := f"{name}-{seed}") not in done:
                done[key] = measure(seed, flags)
                path.write_text(json.dumps(done, indent=2) + "\n")
            frames = done[key]["frames"]
            print(f"| {seed} | {name} | {done[key]['best']:.1f} | {'never' if frames is None else f'{frames:,.0f}'} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
