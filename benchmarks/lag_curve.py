"""What policy lag costs: return over a million steps against the lag, for each correction and three seeds.

    python benchmarks/lag_curve.py [--tasks CartPole-v1 HalfCheetah] [--lags 0 4 16 64] [--seeds 1 2 3]
                                   [--objectives ppo vtrace decoupled truncated] [--directory results]

Each dataset is one minibatch that is used once, so that lag comes only from data that waits. An algorithm that sleeps
before each dataset makes training the bottleneck, and `--bound_policy_lag` holds the lag. Lag 0 is synchronous mode.
Runs that have finished are kept in lag_curve.jsonl and not repeated. At the end there are a table and a picture.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sf
from sf.learner.batch import Batch
from sf.learner.dataset import Transitions
from sf.policy import ActorCritic

PAUSE = "LAG_CURVE_PAUSE_S"
"""Environment variable with the seconds that `SlowPPO` sleeps."""


class SlowPPO(sf.PPO):
    """PPO that waits before each dataset, so that rollout workers are always ahead."""

    def prepare(self, batch: Batch, policy: ActorCritic) -> Transitions:
        """See `sf.Algorithm.prepare`."""
        time.sleep(float(os.environ.get(PAUSE, "0")))
        return super().prepare(batch, policy)


@dataclass(frozen=True)
class Task:
    """Flags of a task, and the seconds of a pause that is longer than sampling a dataset takes."""

    flags: tuple[str, ...]
    pause_s: float


TASKS = {
    "CartPole-v1": Task(("--env=CartPole-v1",), 0.012),
    "HalfCheetah": Task(
        ("--env=mujoco/HalfCheetah", "--normalize_input=True", "--normalize_rewards=True", "--learning_rate=0.001"),
        0.03,
    ),
}
OBJECTIVES = {
    "ppo": (),
    "vtrace": ("--with_vtrace=True",),
    "decoupled": ("--objective=decoupled",),
    "truncated": ("--objective=truncated",),
}
SAME_AS_PPO = ("decoupled", "truncated")
"""At lag 0, where every importance ratio is 1."""
STEPS = 1_000_000
SIZES = ("--num_workers=2", "--num_envs_per_worker=8", "--worker_num_splits=2", "--rollout=32", "--batch_size=512")
ONE_STEP = ("--num_epochs=1", "--num_batches_per_epoch=1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--objectives", nargs="+", choices=OBJECTIVES, default=list(OBJECTIVES))
    parser.add_argument("--lags", nargs="+", type=int, default=[0, 4, 16, 64])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--directory", type=Path, default=Path("results"))
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    path = arguments.directory / "lag_curve.jsonl"
    done = {_key(run): run for run in map(json.loads, path.read_text().splitlines())} if path.exists() else {}
    for task in arguments.tasks:
        for seed in arguments.seeds:
            for lag in arguments.lags:
                for objective in arguments.objectives:
                    run: dict[str, Any] = {"task": task, "objective": objective, "lag": lag, "seed": seed}
                    if _key(run) in done or (lag == 0 and objective in SAME_AS_PPO):
                        continue
                    run |= _train(**run)
                    done[_key(run)] = run
                    with path.open("a") as file:
                        file.write(json.dumps(run) + "\n")
                    print(run, flush=True)
    runs = list(done.values())
    print(table(runs))
    draw(runs, arguments.directory / "lag_curve.png")


def table(runs: list[dict[str, Any]]) -> str:
    """A line for each task and correction: mean return of the second half, mean and range over the seeds."""
    lags = sorted({run["lag"] for run in runs})
    lines = [f"| Task | Correction | {' | '.join(f'lag {lag}' for lag in lags)} |", "|---|---|" + "---|" * len(lags)]
    for (task, objective), cells in _grouped(runs).items():
        shown = []
        for lag in lags:
            own = cells.get(lag, [])
            shown.append(f"{statistics.fmean(own):.0f} ({min(own):.0f} to {max(own):.0f})" if own else "as ppo")
        lines.append(f"| {task} | {objective} | {' | '.join(shown)} |")
    return "\n".join(lines)


def draw(runs: list[dict[str, Any]], picture: Path) -> None:
    """A panel for each task; the mean over the seeds, and a bar between the lowest and the highest."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    groups = _grouped(runs)
    tasks = list(dict.fromkeys(task for task, _ in groups))
    figure, panels = plt.subplots(1, len(tasks), figsize=(5.5 * len(tasks), 3.6), layout="constrained", squeeze=False)
    for axes, task in zip(panels[0], tasks, strict=True):
        at_zero = groups[task, "ppo"].get(0, [])
        for number, objective in enumerate(each for of, each in groups if of == task):
            cells = {0: at_zero} | groups[task, objective]
            places = [index + 0.06 * (number - 1.5) for index in range(len(cells))]
            means = [statistics.fmean(cells[lag]) for lag in sorted(cells)]
            below = [mean - min(cells[lag]) for mean, lag in zip(means, sorted(cells), strict=True)]
            above = [max(cells[lag]) - mean for mean, lag in zip(means, sorted(cells), strict=True)]
            axes.errorbar(places, means, [below, above], marker="o", markersize=4, capsize=2, label=objective)
        axes.set_xticks(range(len(cells)), [str(lag) for lag in sorted(cells)])
        axes.set(title=task, xlabel="policy lag, optimizer steps", ylabel="mean return, steps 500k to 1M")
        axes.legend(fontsize="small")
    figure.savefig(picture, dpi=110)
    plt.close(figure)


def _grouped(runs: list[dict[str, Any]]) -> dict[tuple[str, str], dict[int, list[float]]]:
    """Task and correction to lag to the returns of all seeds."""
    groups: dict[tuple[str, str], dict[int, list[float]]] = {}
    for run in sorted(runs, key=lambda run: (list(TASKS).index(run["task"]), list(OBJECTIVES).index(run["objective"]))):
        cells = groups.setdefault((run["task"], run["objective"]), {})
        cells.setdefault(run["lag"], []).append(run["second_half"])
    return groups


def _key(run: dict[str, Any]) -> tuple[Any, ...]:
    return run["task"], run["objective"], run["lag"], run["seed"]


def _train(task: str, objective: str, lag: int, seed: int) -> dict[str, Any]:
    """One run: mean return of its second half and of its end, the lag that it had, and seconds."""
    goal = TASKS[task]
    held: tuple[str, ...] = (f"--bound_policy_lag={lag}", f"--num_batches_to_accumulate={lag + 2}")
    pause_s = goal.pause_s
    if lag == 0:
        held, pause_s = ("--async_rl=False",), 0.0
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, "-m", "sf.cli.train", f"--train_dir={folder}", "--experiment=run", f"--seed={seed}"]
        line += [*goal.flags, *SIZES, *ONE_STEP, *OBJECTIVES[objective], *held, f"--train_for_env_steps={STEPS}"]
        line += ["--algorithm=benchmarks.lag_curve:SlowPPO", "--experiment_summaries_interval=1"]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL, env=os.environ | {PAUSE: str(pause_s)})
        summary = json.loads((Path(folder) / "run/summary.json").read_text())
        curve = [json.loads(each) for each in (Path(folder) / "run/metrics.jsonl").read_text().splitlines()]
    policy = summary["policies"][0]
    returns = [(each["frames"], each["reward/reward"]) for each in curve if "reward/reward" in each]
    later = [value for frames, value in returns if frames >= STEPS / 2]
    return {
        "second_half": statistics.fmean(later),
        "end": returns[-1][1],
        "lag_avg": policy["lag_of_run"]["avg"],
        "lag_max": policy["lag_of_run"]["max"],
        "seconds": summary["wall_time_s"],
    }


if __name__ == "__main__":
    main()
