"""Trains on known tasks with three seeds each and compares the scores with published ones.

    python benchmarks/results.py [--only classic] [--seeds 1 2 3] [--directory results]

Every run is an experiment of its own below the directory. One that has finished is not repeated and one that was cut
short goes on, so the command can be stopped and started at will. At the end it writes a table of everything that has
finished there, results.md, and one picture for each task that was asked for.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FINISHED = "train_for_env_steps reached"


@dataclass(frozen=True)
class Task:
    """One line of the table."""

    name: str
    group: str
    flags: tuple[str, ...]
    threshold: float
    published: str
    """Mean and deviation over seeds: CleanRL's later benchmark, in the group mujoco Tianshou, else what can be had."""


OWN = "--train_for_env_steps=300000"
REMEMBER = "--env=sf/Remember-v0"
STRONG = "--preset=mujoco", "--eval_every_steps=50000"
LONG_TRAJECTORIES = "--num_envs_per_worker=8", "--rollout=256"
LARGE_BATCHES = (
    "--num_envs_per_worker=64", "--rollout=128", "--num_batches_per_epoch=8", "--num_epochs=4", "--learning_rate=5e-4",
    "--lr_schedule=linear", "--exploration_loss_coeff=0.01",
)  # fmt: skip
FEW = "--stats_avg=20"
"""Episodes in a mean, where a run has few of them."""
SERIAL = "--async_rl=False", "--serial_mode=True"


LONG_HORIZON = (
    "--gamma=0.9999", "--gae_lambda=0.98", "--num_envs_per_worker=4", "--worker_num_splits=1", "--rollout=1024",
)  # fmt: skip
"""Where a reward follows from what was done a thousand steps before."""


def _plain(env: str, frames: int, *flags: str) -> tuple[str, ...]:
    """The defaults, in one process so that a seed repeats."""
    return f"--env={env}", f"--train_for_env_steps={frames}", *SERIAL, *flags


def _recurrent(name: str, threshold: float, published: str, *flags: str) -> Task:
    """A task whose observations have no velocities, for a policy with a memory."""
    line = _plain(f"strangers:{name}NoVel-v0", 300_000, "--use_rnn=True", *flags)
    return Task(f"{name} without velocities", "recurrent", line, threshold, published)


def _algorithm(name: str, env: str, frames: int, threshold: float, published: str, *flags: str) -> Task:
    """An algorithm with its defaults."""
    short = env.rpartition("/")[2].partition("-")[0]
    line = _plain(env, frames, f"--algorithm={name}", *flags)
    return Task(f"{name}, {short}", "algorithms", line, threshold, published)


TASKS = (
    Task("CartPole-v1", "classic", ("--env=CartPole-v1", "--preset=classic"), 475, "490.04 ± 6.12"),
    Task("Acrobot-v1", "classic", ("--env=Acrobot-v1", "--preset=classic"), -100, "-86.36 ± 1.32"),
    Task("MountainCar-v0", "classic", ("--env=MountainCar-v0", "--preset=classic"), -200, "-200 ± 0"),
    Task(
        "CartPole-v1, asynchronous",
        "classic",
        ("--env=CartPole-v1", "--preset=classic", "--async_rl=True", "--serial_mode=False", "--worker_num_splits=2"),
        475,
        "490.04 ± 6.12",
    ),
    Task(
        "Acrobot-v1, asynchronous",
        "classic",
        ("--env=Acrobot-v1", "--preset=classic", "--async_rl=True", "--serial_mode=False", "--worker_num_splits=2"),
        -100,
        "-86.36 ± 1.32",
    ),
    Task(
        "InvertedPendulum-v4",
        "mujoco_paper",
        ("--env=mujoco/InvertedPendulum", "--preset=mujoco_paper"),
        850,
        "963.09 ± 22.20",
    ),
    Task(
        "HalfCheetah-v4", "mujoco_paper", ("--env=mujoco/HalfCheetah", "--preset=mujoco_paper"), 1300, "1442.64 ± 46.03"
    ),
    Task("Hopper-v4", "mujoco_paper", ("--env=mujoco/Hopper", "--preset=mujoco_paper"), 1700, "2382.86 ± 271.74"),
    Task("Walker2d-v4", "mujoco_paper", ("--env=mujoco/Walker2d", "--preset=mujoco_paper"), 1700, "2287.95 ± 571.78"),
    Task("HalfCheetah-v5", "mujoco", ("--env=HalfCheetah-v5", *STRONG), 4500, "5784 ± 1244, best evaluation"),
    Task("Hopper-v5", "mujoco", ("--env=Hopper-v5", *STRONG), 1500, "2609 ± 701, best evaluation"),
    Task("Hopper-v5, 8 x 256", "mujoco", ("--env=Hopper-v5", *STRONG, *LONG_TRAJECTORIES), 2000, "the same"),
    Task("Walker2d-v5", "mujoco", ("--env=Walker2d-v5", *STRONG), 2500, "3589 ± 757, best evaluation"),
    Task("Ant-v4", "mujoco", ("--env=Ant-v4", *STRONG), 2000, "3258 ± 1079, best evaluation"),
    Task("Pong", "atari", ("--env=atari/Pong", "--preset=atari"), 19, "20.36 ± 0.20"),
    Task("Breakout", "atari", ("--env=atari/Breakout", "--preset=atari"), 350, "414.66 ± 28.09"),
    Task("Remember, GRU", "own", (REMEMBER, OWN, "--use_rnn=True"), 0.9, "optimum 1"),
    Task("Remember, LSTM", "own", (REMEMBER, OWN, "--use_rnn=True", "--rnn_type=lstm"), 0.9, "optimum 1"),
    Task("Remember, no memory", "own", (REMEMBER, OWN), 0.25, "optimum 0.25"),
    Task("Couriers", "own", ("--env=sf/Couriers-v0", OWN), 1.8, "optimum 1.90"),
    Task("DoorKey-5x5", "zoo", _plain("minigrid/DoorKey-5x5", 500_000), 0.9, "0.964"),
    Task("Unlock", "zoo", _plain("minigrid/Unlock", 500_000), 0.9, "0.963"),
    Task("KeyCorridorS3R1", "zoo", _plain("minigrid/KeyCorridorS3R1", 500_000), 0.9, "0.949"),
    Task("RedBlueDoors-6x6", "zoo", _plain("minigrid/RedBlueDoors-6x6", 1_000_000), 0.8, "0.860, 5M frames"),
    Task("FourRooms", "zoo", _plain("minigrid/FourRooms", 5_000_000, *LARGE_BATCHES), 0.5, "0.573"),
    Task("LunarLander-v3", "zoo", _plain("LunarLander-v3", 1_000_000), 200, "242.1"),
    Task("LunarLanderContinuous-v3", "zoo", _plain("LunarLanderContinuous-v3", 1_000_000), 200, "270.9"),
    Task("BipedalWalker-v3", "zoo", _plain("BipedalWalker-v3", 1_000_000), 280, "287.9, 5M frames"),
    Task("Swimmer-v5", "zoo", _plain("Swimmer-v5", 1_000_000, *LONG_HORIZON), 250, "281.6"),
    Task("Pendulum-v1", "zoo", _plain("Pendulum-v1", 300_000), -200, "-172.2"),
    _recurrent("CartPole", 475, "500"),
    _recurrent("Pendulum", -250, "-218"),
    _recurrent("MountainCarContinuous", 90, "91.5", "--noise_correlation=0.97"),
    _algorithm("appo", "CartPole-v1", 80_000, 475, "optimum 500"),
    _algorithm("ppg", "CartPole-v1", 80_000, 475, "optimum 500"),
    _algorithm("rnd", "sf/DeepSea-v0", 200_000, 0.99, "optimum 0.99", '--env_kwargs={"size": 12}'),
    _algorithm("pqn", "CartPole-v1", 80_000, 475, "optimum 500"),
    _algorithm("dqn", "CartPole-v1", 60_000, 475, "optimum 500", FEW),
    _algorithm("drqn", "sf/Remember-v0", 60_000, 0.95, "optimum 1", FEW),
    _algorithm("discrete_sac", "CartPole-v1", 60_000, 475, "optimum 500", FEW),
    _algorithm("sac", "Pendulum-v1", 20_000, -200, "about -150 at best", FEW),
    _algorithm("td3", "Pendulum-v1", 20_000, -200, "about -150 at best", FEW),
)


def experiment_of(task: Task, seed: int) -> str:
    """Name of the run."""
    return f"{file_name(task)}-{seed}"


def file_name(task: Task) -> str:
    """Name of its picture, without the ending."""
    return task.name.replace(", ", "-").replace(" ", "-")


def train(task: Task, seed: int, directory: Path) -> None:
    """Runs one seed."""
    experiment = experiment_of(task, seed)
    print(f"{task.name}, seed {seed}", flush=True)
    names = f"--train_dir={directory}", f"--experiment={experiment}", f"--seed={seed}"
    command = [sys.executable, "-m", "sf.cli.train", *task.flags, *names, "--experiment_summaries_interval=2"]
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    with open(directory / f"{experiment}.log", "a") as log:
        subprocess.run(command, check=True, stdout=log, stderr=log, env=os.environ | {"PYTHONPATH": path})


def finished(task: Task, seed: int, directory: Path) -> dict[str, Any] | None:
    """Summary and curve of a run, None if it has not come to its end."""
    path = directory / experiment_of(task, seed)
    if not (path / "summary.json").exists():
        return None
    summary: dict[str, Any] = json.loads((path / "summary.json").read_text())
    return None if summary["exit_reason"] != FINISHED else summary | {"curve": curve(path / "metrics.jsonl")}


def curve(metrics: Path) -> list[tuple[float, float]]:
    """Frames and mean return of the last 100 episodes, over the run."""
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [(line["frames"], line["reward/reward"]) for line in lines if "reward/reward" in line]


def row(task: Task, runs: list[dict[str, Any]]) -> str:
    """The line of the table."""
    rewards = [run["curve"][-1][1] for run in runs]
    mean, deviation = statistics.mean(rewards), statistics.pstdev(rewards)
    minutes = statistics.mean(run["wall_time_s"] for run in runs) / 60
    digits = 1 if abs(task.threshold) >= 10 else 2
    each = ", ".join(f"{reward:.{digits}f}" for reward in rewards)
    frames = runs[0]["frames"]
    return (
        f"| {task.name} | {frames:,} | {mean:.{digits}f} ± {deviation:.{digits}f} | {each} "
        f"| {task.threshold:g} | {task.published} | {minutes:.1f} |"
    )


def draw(task: Task, runs: list[dict[str, Any]], picture: Path) -> None:
    """The mean curve over the seeds, with the band between the lowest and the highest."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    frames = np.linspace(0, min(run["curve"][-1][0] for run in runs), 200)
    curves = np.array([np.interp(frames, *zip(*run["curve"], strict=True)) for run in runs])
    figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
    axes.fill_between(
        frames / 1000, curves.min(0), curves.max(0), alpha=0.25, label=f"lowest to highest of {len(runs)} seeds"
    )
    axes.plot(frames / 1000, curves.mean(0), label="mean")
    axes.axhline(task.threshold, color="gray", linestyle="--", linewidth=1, label="threshold")
    axes.set(title=task.name, xlabel="environment steps, thousands", ylabel="mean return")
    axes.legend(fontsize="small")
    figure.savefig(picture, dpi=110)
    plt.close(figure)


def main() -> None:
    """Runs what is asked for and writes what is there."""
    parser = argparse.ArgumentParser(description=Path(__file__).stem)
    parser.add_argument(
        "--only",
        help="name of a task or of a group: classic, mujoco, mujoco_paper, atari, own, zoo, recurrent, algorithms",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--directory", type=Path, default=Path("results"))
    options = parser.parse_args()
    chosen = [task for task in TASKS if options.only in (None, task.name, task.group)]
    if not chosen:
        names = sorted({task.group for task in TASKS}) + [repr(task.name) for task in TASKS]
        parser.error(f"--only={options.only} is no task and no group. There are {', '.join(names)}.")
    options.directory.mkdir(parents=True, exist_ok=True)
    for task in chosen:
        for seed in options.seeds:
            if finished(task, seed, options.directory) is None:
                train(task, seed, options.directory)
    rows = []
    for task in TASKS:
        runs = [run for seed in options.seeds if (run := finished(task, seed, options.directory)) is not None]
        if not runs:
            continue
        rows.append(row(task, runs))
        if task in chosen:
            print(rows[-1], flush=True)
            draw(task, runs, options.directory / f"{file_name(task)}.png")
    head = (
        "| Task | Steps | Mean ± deviation | Seeds | Threshold | Published | Minutes |\n|---|---|---|---|---|---|---|\n"
    )
    (options.directory / "results.md").write_text(head + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
