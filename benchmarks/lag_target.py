"""`--target_policy_lag` against fixed bounds, with a learner that is slow and fast by turns.

    python benchmarks/lag_target.py [--target 3] [--seconds 150] [--directory results]

The lag with the target is shown for each window of 30 seconds. The bounds are those of a sweep. The one with the
highest throughput at a mean lag of the target or less is the best fixed setting.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import sf
from sf.learner.batch import Batch
from sf.learner.dataset import Transitions
from sf.policy import ActorCritic

WINDOW_S, PHASE_S = 30, 10
SLOW_S, FAST_S = 0.03, 0.01
"""Mean pauses before a dataset."""
SIZES = ("--num_workers=2", "--num_envs_per_worker=8", "--worker_num_splits=2", "--rollout=32", "--batch_size=512")
FLAGS = ("--env=CartPole-v1", "--num_epochs=1", "--num_batches_per_epoch=1", "--num_batches_to_accumulate=12")


class Moody(sf.PPO):
    """PPO that waits before each dataset, for ten seconds long and for ten seconds shortly."""

    def prepare(self, batch: Batch, policy: ActorCritic) -> Transitions:
        """See `sf.Algorithm.prepare`."""
        mean_s = SLOW_S if int(time.monotonic() / PHASE_S) % 2 else FAST_S
        time.sleep(random.expovariate(1 / mean_s))
        return super().prepare(batch, policy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=float, default=3.0)
    parser.add_argument("--seconds", type=int, default=150)
    parser.add_argument("--directory", type=Path, default=Path("results"))
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    found = measure(f"--target_policy_lag={options.target:g}", options.seconds)
    print(f"target {options.target:g}: {found['fps']:.0f} FPS, mean lag {found['lag']:.2f}")
    print("windows of 30 s:", ", ".join(f"{lag:.2f}" for lag in found["windows"]), flush=True)
    sweep = []
    for bound in range(1, 2 * round(options.target) + 1):
        fixed = measure(f"--bound_policy_lag={bound}", 2 * WINDOW_S)
        sweep.append(fixed)
        print(f"bound {bound}: {fixed['fps']:.0f} FPS, mean lag {fixed['lag']:.2f}", flush=True)
    best = max(run["fps"] for run in sweep if run["lag"] <= options.target + 0.05)
    print(f"target / best fixed bound with a mean lag of at most {options.target:g}: {found['fps'] / best:.3f}")


def measure(limit: str, seconds: int) -> dict[str, Any]:
    """One run."""
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, "-m", "sf.cli.train", f"--train_dir={folder}", "--experiment=run", *FLAGS, *SIZES]
        line += [
            "--algorithm=benchmarks.lag_target:Moody",
            "--seed=1",
            f"--experiment_summaries_interval={WINDOW_S}",
            limit,
        ]
        subprocess.run([*line, f"--train_for_seconds={seconds}"], check=True, stdout=subprocess.DEVNULL)
        summary = json.loads((Path(folder) / "run/summary.json").read_text())
        points = [json.loads(each) for each in (Path(folder) / "run/metrics.jsonl").read_text().splitlines()]
    sources = ("lag/acting", "lag/queued", "lag/epochs")
    windows = [sum(point[source] for source in sources) for point in points if "lag/epochs" in point]
    return {"fps": summary["fps"], "lag": summary["policies"][0]["lag_of_run"]["avg"], "windows": windows}


if __name__ == "__main__":
    main()
