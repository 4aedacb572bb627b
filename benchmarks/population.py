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
FRAMES = 120_000
SETTINGS: dict[str, Any] = {
    "env": "CartPole-v1", "num_policies": 4, "learning_rate": 1e-6, "num_workers": 1, "num_envs_per_worker": 16,
    "rollout": 32, "updates": "balanced", "train_for_env_steps": FRAMES,
}  # fmt: skip
POPULATION: dict[str, Any] = {
    "with_pbt": True, "pbt_space": {"learning_rate": {"min": 1e-6, "max": 1e-2}}, "pbt_period_env_steps": 1000,
    "pbt_start_mutation": 1000, "pbt_mutation_rate": 1.0, "pbt_perturb_min": 2.0, "pbt_perturb_max": 10.0,
}  # fmt: skip


def best_return(seed: int, flags: dict[str, Any]) -> float:
    """Mean return over 100 episodes of the best policy at the end of a run."""
    with tempfile.TemporaryDirectory() as directory:
        result = sf.train(train_dir=directory, experiment="run", seed=seed, **SETTINGS, **flags)
        summary = json.loads((result.path / "summary.json").read_text())
    return float(max(policy["reward"] or 0.0 for policy in summary["policies"]))


def main(path: Path) -> None:
    """Makes the runs that are missing, and prints a table."""
    done: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
    for seed in SEEDS:
        for name, flags in (("alone", {}), ("population", POPULATION)):
            if (key := f"{name}-{seed}") not in done:
                done[key] = best_return(seed, flags)
                path.write_text(json.dumps(done, indent=2) + "\n")
    print("| Seed | alone | population |\n|---|---|---|")
    for seed in SEEDS:
        print(f"| {seed} | {done[f'alone-{seed}']:.1f} | {done[f'population-{seed}']:.1f} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
