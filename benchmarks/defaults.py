"""Compares candidates for the plain defaults: frames until known scores, over tasks, modes and seeds.

    python benchmarks/defaults.py [--tasks CartPole-v1 ...] [--candidates defaults ...] [--modes async sync serial]
                                  [--seeds 1 2 3] [--directory results]

Every run stops at the score of its task or at its budget of frames. Finished runs are kept in defaults.jsonl and not
repeated, so the command can be stopped and started at will. The table has a line for each task, mode and candidate. It
holds how many seeds reached the score, the median and the most frames, and the median of the seconds. A seed that did
not reach it counts with the budget. Only in synchronous modes the frames of a seed do not depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Task:
    """A score to reach, and the budget for it."""

    score: float
    budget: int
    flags: tuple[str, ...] = ()


TASKS = {
    "CartPole-v1": Task(475, 500_000),
    "Acrobot-v1": Task(-100, 500_000),
    "Pendulum-v1": Task(-250, 1_500_000),
    "MountainCarContinuous-v0": Task(90, 500_000),
    "LunarLander-v3": Task(200, 2_000_000),
    "sf/CatchPixels-v0": Task(0.9, 300_000),
    "sf/Remember-v0": Task(0.9, 300_000, ("--use_rnn=True",)),
}


def _flags(minibatches: int, epochs: int, entropy: float, rate: float, rollout: int = 32) -> tuple[str, ...]:
    return (
        f"--num_batches_per_epoch={minibatches}",
        f"--num_epochs={epochs}",
        f"--exploration_loss_coeff={entropy:g}",
        f"--learning_rate={rate:g}",
        f"--rollout={rollout}",
    )


CANDIDATES: dict[str, tuple[str, ...]] = {
    "defaults": (),
    "until November 2026": _flags(2, 4, 0.003, 5e-4),
    "4 epochs of 4": _flags(4, 4, 0.01, 5e-4),
    "4 epochs of 8": _flags(8, 4, 0.01, 5e-4),
    "3 epochs of 8": _flags(8, 3, 0.01, 5e-4),
    "2 epochs of 8": _flags(8, 2, 0.01, 5e-4),
    "2 epochs of 8, rate 0.0007": _flags(8, 2, 0.01, 7e-4),
    "2 epochs of 8, rate 0.0007, entropy 0.003": _flags(8, 2, 0.003, 7e-4),
    "2 epochs of 8, rate 0.001": _flags(8, 2, 0.01, 1e-3),
    "1 epoch of 16, rate 0.001": _flags(16, 1, 0.01, 1e-3),
    "4 epochs of 4, 16 steps": _flags(4, 4, 0.01, 5e-4, 16),
    "4 epochs of 4, 16 steps, entropy 0.003": _flags(4, 4, 0.003, 5e-4, 16),
}
MODES = {
    "async": (),
    "sync": ("--async_rl=False",),
    "serial": ("--async_rl=False", "--serial_mode=True"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--candidates", nargs="+", choices=CANDIDATES, default=["defaults", "until November 2026"])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["async", "sync"])
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(1, 11)))
    parser.add_argument("--directory", type=Path, default=Path("results"))
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    path = arguments.directory / "defaults.jsonl"
    done = {_key(run): run for run in map(json.loads, path.read_text().splitlines())} if path.exists() else {}
    for seed in arguments.seeds:
        for task in arguments.tasks:
            for mode in arguments.modes:
                for candidate in arguments.candidates:
                    run: dict[str, Any] = {"task": task, "mode": mode, "candidate": candidate, "seed": seed}
                    if _key(run) not in done:
                        run |= _train(task, mode, candidate, seed)
                        done[_key(run)] = run
                        with path.open("a") as file:
                            file.write(json.dumps(run) + "\n")
    print(table(list(done.values())))


def table(runs: list[dict[str, Any]]) -> str:
    """A line for each task, mode and candidate."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault((run["task"], run["mode"], run["candidate"]), []).append(run)
    lines = [
        "| Task | Mode | Candidate | Reached | Median | Most | Seconds | Lag |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (task, mode, candidate), own in sorted(groups.items()):
        reached = sum(run["reached"] for run in own)
        frames = [run["frames"] if run["reached"] else TASKS[task].budget for run in own]
        seconds, lag = (statistics.median(run[name] for run in own) for name in ("seconds", "lag"))
        median, most = f"{statistics.median(frames) / 1000:.0f}k", f"{max(frames) / 1000:.0f}k"
        cells = [task, mode, candidate, f"{reached} of {len(own)}", median, most, f"{seconds:.1f}", f"{lag:.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _key(run: dict[str, Any]) -> tuple[Any, ...]:
    return run["task"], run["mode"], run["candidate"], run["seed"]


def _train(task: str, mode: str, candidate: str, seed: int) -> dict[str, Any]:
    """One run: whether the score was reached, frames, seconds of training, and the mean lag at the end."""
    goal = TASKS[task]
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, "-m", "sf.cli.train", f"--env={task}", f"--seed={seed}", f"--train_dir={folder}"]
        line += [f"--stop_at_reward={goal.score}", f"--train_for_env_steps={goal.budget}", "--experiment=run"]
        line += [*goal.flags, *MODES[mode], *CANDIDATES[candidate]]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
        summary = json.loads((Path(folder) / "run/summary.json").read_text())
    return {
        "reached": summary["exit_reason"] == "stop_at_reward reached",
        "frames": summary["frames"],
        "seconds": summary["wall_time_s"],
        "lag": summary["policies"][0]["lag"]["avg"],
    }


if __name__ == "__main__":
    main()
