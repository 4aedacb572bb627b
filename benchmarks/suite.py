"""Trains on the tasks of the suite: the plain defaults, sets of other flags, and Stable-Baselines3's plain defaults.

    python benchmarks/suite.py [--tasks Pendulum ...] [--systems defaults sb3 ...] [--seeds 1 2 3]
                               [--sb3-python PATH] [--directory results]

All systems have the same budget of frames. Every run is kept in suite.jsonl and not repeated, so the command can be
stopped and started at will. The score of a run is the mean return of its last policy in 50 episodes with sampled
actions. The mean of the last 100 training episodes is kept beside it; with many environments at once it holds older
policies. `sb3` needs the interpreter of an environment with stable-baselines3, see `suite_sb3.py`.

The tables have the interquartile mean of the scores over the seeds with its bootstrapped interval, and the seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from csv import DictReader
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).parent
EPISODES = 50
"""Episodes of the evaluation at the end."""
SERIAL = ("--async_rl=False", "--serial_mode=True")


@dataclass(frozen=True)
class Task:
    """An environment, and the budget for it in frames."""

    env_id: str
    budget: int
    waits: bool = False
    """Whether a step waits; such a task is too slow for one process."""


def _strangers(**tasks: Task) -> dict[str, Task]:
    return {name: Task(f"strangers:{task.env_id}", task.budget, task.waits) for name, task in tasks.items()}


TASKS = {
    "CartPole": Task("CartPole-v1", 60_000),
    "Acrobot": Task("Acrobot-v1", 80_000),
    "Pendulum": Task("Pendulum-v1", 100_000),
    "MountainCarContinuous": Task("MountainCarContinuous-v0", 100_000),
    "LunarLander": Task("LunarLander-v3", 300_000),
    "LunarLanderContinuous": Task("LunarLanderContinuous-v3", 300_000),
    "BipedalWalker": Task("BipedalWalker-v3", 300_000),
    "HalfCheetah": Task("HalfCheetah-v5", 300_000),
    "Hopper": Task("Hopper-v5", 300_000),
    "Walker2d": Task("Walker2d-v5", 300_000),
    "Ant": Task("Ant-v5", 300_000),
    "Swimmer": Task("Swimmer-v5", 300_000),
    "Reacher": Task("Reacher-v5", 200_000),
    **_strangers(
        DoorKey=Task("VectorDoorKey-5x5-v0", 100_000),
        Unlock=Task("VectorUnlock-v0", 100_000),
        KeyCorridor=Task("VectorKeyCorridorS3R1-v0", 300_000),
        Breakout=Task("MinAtarBreakout-v0", 300_000),
        Asterix=Task("MinAtarAsterix-v0", 300_000),
        SpaceInvaders=Task("MinAtarSpaceInvaders-v0", 300_000),
        Arm=Task("Arm-v0", 100_000),
        Follow=Task("Follow-v0", 60_000),
        Stock=Task("Stock-v0", 60_000),
        TicTacToe=Task("TicTacToe-v0", 60_000),
        Parcels=Task("Parcels-v0", 100_000),
        **{
            f"{name}{wait_ms}ms": Task(f"{name}{wait_ms}ms-v0", budget, waits=True)
            for name, budget in (("CartPole", 60_000), ("Pendulum", 100_000), ("Follow", 60_000))
            for wait_ms in (1, 5, 20)
        },
    ),
}


@dataclass(frozen=True)
class Candidate:
    """Flags to compare with the defaults."""

    flags: tuple[str, ...] = ()
    is_serial: bool = True

    def line(self, task: Task) -> tuple[str, ...]:
        """All flags for this task; a step that waits needs several processes."""
        mode = SERIAL if self.is_serial and not task.waits else ()
        return *mode, *self.flags


CANDIDATES = {
    "defaults": Candidate(),
    "asynchronous": Candidate(is_serial=False),
    "fast": Candidate(("--updates=fast",)),
    "balanced": Candidate(("--updates=balanced",)),
    "efficient": Candidate(("--updates=efficient",)),
    "fast, two networks": Candidate(("--updates=fast", "--actor_critic_share_weights=False")),
    "balanced, two networks": Candidate(("--updates=balanced", "--actor_critic_share_weights=False")),
    "balanced, one network": Candidate(("--updates=balanced", "--actor_critic_share_weights=True")),
    "balanced, entropy bonus": Candidate(("--updates=balanced", "--exploration_loss_coeff=0.01")),
    "balanced, 32 x 64": Candidate(("--updates=balanced", "--num_envs_per_worker=32", "--rollout=64")),
    "efficient, 32 x 64": Candidate(("--updates=efficient", "--num_envs_per_worker=32", "--rollout=64")),
    "efficient, 16 x 128": Candidate(("--updates=efficient", "--num_envs_per_worker=16", "--rollout=128")),
    "efficient, two networks": Candidate(("--updates=efficient", "--actor_critic_share_weights=False")),
    "efficient, two networks, 16 x 128": Candidate(
        ("--updates=efficient", "--actor_critic_share_weights=False", "--num_envs_per_worker=16", "--rollout=128")
    ),
    "balanced, KL 0.01": Candidate(("--updates=balanced", "--target_kl=0.01")),
    "constant rate": Candidate(("--lr_schedule=constant",)),
    "constant rate, target KL 0.02": Candidate(("--lr_schedule=constant", "--target_kl=0.02")),
    "rate by epoch": Candidate(("--lr_schedule=kl_adaptive_epoch",)),
    "rate by minibatch": Candidate(("--lr_schedule=kl_adaptive_minibatch",)),
    "rate by batch, 0.008": Candidate(("--lr_schedule_kl_threshold=0.008",)),
    "rate by batch, 0.016": Candidate(("--lr_schedule_kl_threshold=0.016",)),
    "rate by batch, no limit": Candidate(("--lr_adaptive_max=0.01",)),
    "fast, constant rate": Candidate(("--updates=fast", "--lr_schedule=constant")),
    "balanced, constant rate": Candidate(("--updates=balanced", "--lr_schedule=constant")),
    "asynchronous, constant rate": Candidate(("--lr_schedule=constant",), is_serial=False),
    "linear rate": Candidate(("--lr_schedule=linear",)),
    "raw returns": Candidate(("--normalize_returns=False",)),
    "raw observations": Candidate(("--normalize_input=False",)),
    "values not clipped": Candidate(("--ppo_clip_value=0",)),
    "deviation 0.6": Candidate(("--initial_stddev=0.6",)),
    "8 x 256": Candidate(("--num_envs_per_worker=8", "--rollout=256")),
    "4 x 512": Candidate(("--num_envs_per_worker=4", "--rollout=512")),
    "advantages anew": Candidate(("--recompute_advantages=True",)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--systems", nargs="+", choices=[*CANDIDATES, "sb3"], default=["defaults"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--sb3-python", default=sys.executable, help="interpreter with stable-baselines3")
    parser.add_argument("--directory", type=Path, default=Path("results"))
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    path = arguments.directory / "suite.jsonl"
    runs = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {_key(run) for run in runs}
    for seed in arguments.seeds:
        for name in arguments.tasks:
            for system in arguments.systems:
                run: dict[str, Any] = {"task": name, "system": system, "seed": seed}
                if _key(run) in done:
                    continue
                run |= _sb3(name, seed, arguments.sb3_python) if system == "sb3" else _train(name, system, seed)
                runs.append(run)
                with path.open("a") as file:
                    file.write(json.dumps(run) + "\n")
                print(f"{name}, {system}, seed {seed}: {run['score']:.4g} after {run['seconds']:.1f} s", flush=True)
    wanted = [run for run in runs if run["task"] in arguments.tasks and run["system"] in arguments.systems]
    print(table(wanted))


def _key(run: dict[str, Any]) -> tuple[Any, ...]:
    return run["task"], run["system"], run["seed"]


def _environment() -> dict[str, str]:
    """With this folder as a source of modules, and one thread for each process."""
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")]))
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def _train(name: str, system: str, seed: int) -> dict[str, Any]:
    """One run of this library: its score, seconds, and the curve as frames, seconds and mean return."""
    task = TASKS[name]
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, "-m", "sf.cli.train", f"--env={task.env_id}", f"--seed={seed}"]
        line += [f"--train_for_env_steps={task.budget}", f"--train_dir={folder}", "--experiment=run"]
        line += ["--experiment_summaries_interval=1", *CANDIDATES[system].line(task)]
        began = time.monotonic()
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_environment())
        in_all = time.monotonic() - began
        score = _evaluated(folder, task.env_id)
        summary = json.loads((Path(folder) / "run/summary.json").read_text())
        metrics = [json.loads(line) for line in (Path(folder) / "run/metrics.jsonl").read_text().splitlines()]
    points = [(each["time_s"], each["frames"], each["reward/reward"]) for each in metrics if "reward/reward" in each]
    start = metrics[-1]["time_s"] - summary["wall_time_s"]
    return {
        "score": score,
        "last_100": summary["policies"][0]["reward"],
        "seconds": summary["wall_time_s"],
        "seconds_in_all": in_all,
        "frames": summary["frames"],
        "lag": summary["policies"][0]["lag_of_run"]["avg"],
        "curve": [(frames, round(time_s - start, 2), reward) for time_s, frames, reward in points],
    }


def _evaluated(folder: str, env_id: str) -> float:
    """The mean return of the last policy."""
    csv = Path(folder) / "episodes.csv"
    line = [sys.executable, "-m", "sf.cli.evaluate", "--experiment=run", f"--train_dir={folder}", "--checkpoint=latest"]
    line += [f"--env={env_id}", f"--num_episodes={EPISODES}", "--deterministic=False", "--seed=7", f"--csv={csv}"]
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_environment())
    with csv.open() as file:
        return float(np.mean([float(episode["reward"]) for episode in DictReader(file)]))


def _sb3(name: str, seed: int, python: str) -> dict[str, Any]:
    task = TASKS[name]
    line = [python, str(HERE / "suite_sb3.py"), task.env_id, str(task.budget), str(seed), str(EPISODES)]
    done = subprocess.run(line, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=_environment())
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def interquartile_mean(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """[...] of the middle half of [..., n], the two at its edges in part (Agarwal et al. 2021, section 4.3)."""
    number = scores.shape[-1]
    edges = np.clip(np.arange(number + 1), number / 4, 3 * number / 4)
    weights = np.diff(edges) / (number / 2)
    mean: NDArray[np.float64] = np.sort(scores) @ weights
    return mean


def interval(scores: NDArray[np.float64], num_draws: int = 2000) -> tuple[float, float]:
    """The middle 95 % of interquartile means of scores that are drawn again, with replacement."""
    draws = np.random.default_rng(0).choice(scores, (num_draws, len(scores)))
    low, high = np.percentile(interquartile_mean(draws), [2.5, 97.5])
    return float(low), float(high)


def table(runs: list[dict[str, Any]]) -> str:
    """A line for each task, a column for each system."""
    systems = list(dict.fromkeys(run["system"] for run in runs))
    lines = [f"| Task | {' | '.join(systems)} |", f"|---|{'---|' * len(systems)}"]
    for task in dict.fromkeys(run["task"] for run in runs):
        cells = []
        for system in systems:
            own = [run for run in runs if run["task"] == task and run["system"] == system]
            if not own:
                cells.append("-")
                continue
            scores = np.array([run["score"] for run in own], np.float64)
            low, high = interval(scores)
            seconds = np.median([run["seconds"] for run in own])
            cells.append(f"{interquartile_mean(scores):.4g} ({low:.4g} to {high:.4g}; {len(own)}), {seconds:.0f} s")
        lines.append(f"| {task} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
