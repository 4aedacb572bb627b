"""Wall time from the command to a score: sf, Stable-Baselines3 with tuned hyperparameters, and a loop of one page.

    python benchmarks/minutes.py --sb3-python PATH [--tasks CartPole ...] [--systems sf sb3 loop] [--seeds 1 2 3]
                                 [--core 0] [--directory results/minutes]

A system has the score when the mean return of its last 100 training episodes reaches it. Each of them has one core,
the same for all, and they take turns. One that needs five times as long as sf with the same seed is stopped, and counts
as "more than". Every run is kept in minutes.jsonl and not repeated, so the command can be stopped and started at will.

`sb3` and `loop` run with the interpreter of an environment that has stable-baselines3 and sb3-contrib, see
`minutes_sb3.py` and `minutes_loop.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PATIENCE, SHORTEST_S = 5.0, 30.0
"""How many times as long as sf a system may take, and what it may take in any case."""
EPISODES = 100
REPORT = re.compile(r"mean return of (\S+) over (\d+) episodes after ([\d,]+) frames")


@dataclass(frozen=True)
class Task:
    """An environment, the score, the most frames, and flags of sf beside the plain defaults."""

    env_id: str
    score: float
    most_frames: int
    flags: tuple[str, ...] = ()


TASKS = {
    "CartPole": Task("CartPole-v1", 475, 1_000_000),
    "LunarLander": Task("LunarLander-v3", 200, 2_000_000),
    "DoorKey": Task("strangers:VectorDoorKey-5x5-v0", 0.95, 1_000_000),
    "CartPole without velocities": Task("strangers:CartPoleNoVel-v0", 475, 2_000_000, ("--use_rnn=True",)),
    "Hopper": Task("Hopper-v5", 2400, 3_000_000, ("--preset=mujoco", "--num_envs_per_worker=8", "--rollout=256")),
    "HalfCheetah": Task("HalfCheetah-v5", 4000, 3_000_000, ("--preset=mujoco",)),
    "BipedalWalker": Task("BipedalWalker-v3", 250, 5_000_000),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sb3-python", default="", help="interpreter with stable-baselines3 and sb3-contrib")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--directory", type=Path, default=Path("results/minutes"))
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    path = arguments.directory / "minutes.jsonl"
    runs = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    os.sched_setaffinity(0, {arguments.core})
    for name in arguments.tasks:
        for seed in arguments.seeds:
            for system in sorted(arguments.systems, key=SYSTEMS.index):  # sf first: the others are measured by it
                run = {"task": name, "system": system, "seed": seed}
                if any(run.items() <= each.items() for each in runs):
                    continue
                ours = [each for each in runs if (each["task"], each["system"], each["seed"]) == (name, "sf", seed)]
                most_s = max(SHORTEST_S, PATIENCE * ours[0]["seconds"]) if ours else None
                run |= _timed(TASKS[name], system, seed, arguments.sb3_python, None if system == "sf" else most_s)
                runs.append(run)
                with path.open("a") as file:
                    file.write(json.dumps(run) + "\n")
                print(f"{name}, {system}, seed {seed}: {_told(run)}, {run['frames']:,} frames", flush=True)
    print(table([run for run in runs if run["task"] in arguments.tasks and run["system"] in arguments.systems]))


SYSTEMS = ["sf", "sb3", "loop"]


def _timed(task: Task, system: str, seed: int, python: str, most_s: float | None) -> dict[str, Any]:
    """Seconds from the command to the score, whether it was reached, and the frames and the mean return of the end."""
    with tempfile.TemporaryDirectory() as folder:
        if system == "sf":
            line = [sys.executable, "-m", "sf.cli.train", f"--env={task.env_id}", f"--stop_at_reward={task.score}"]
            line += [f"--train_for_env_steps={task.most_frames}", f"--train_dir={folder}", "--experiment=run"]
            line += [f"--seed={seed}", "--async_rl=False", "--serial_mode=True", *task.flags]
        else:
            line = [python, str(HERE / f"minutes_{system}.py"), task.env_id, str(task.most_frames), str(seed)]
        began = time.monotonic()
        child = subprocess.Popen(
            line,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=_environment(),
            start_new_session=True,
        )
        assert child.stdout is not None
        is_late, said = threading.Event(), list[str]()
        mean, frames, reached = float("nan"), 0, False
        deadline = threading.Timer(most_s or 1e6, lambda: (is_late.set(), os.killpg(child.pid, signal.SIGKILL)))
        deadline.daemon = True
        deadline.start()
        try:
            for text in child.stdout:
                said.append(text)
                if found := _progress(text):
                    mean, frames, episodes = found
                    if reached := episodes >= EPISODES and mean >= task.score:
                        break
            seconds = time.monotonic() - began
            if reached and system == "sf":
                child.wait()  # which leaves a directory behind that is removed below
        finally:
            deadline.cancel()
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    if not reached and child.returncode and not is_late.is_set():
        raise RuntimeError(f"{' '.join(line)} failed:\n{''.join(said[-30:])}")
    return {"seconds": seconds, "reached": reached, "frames": frames, "mean": mean}


def _progress(text: str) -> tuple[float, int, int] | None:
    """Mean return, frames and number of episodes of a line of one of the systems; None in any other line."""
    if text.startswith("{"):
        point = json.loads(text)
        return point["mean"], point["frames"], point["episodes"]
    if found := REPORT.search(text):
        return float(found[1]), int(found[3].replace(",", "")), int(found[2])
    return None


def _environment() -> dict[str, str]:
    """With this folder as a source of modules, and one thread for each process."""
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")]))
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def _told(run: dict[str, Any]) -> str:
    """A cell of the table."""
    return f"{run['seconds']:.1f} s" if run["reached"] else f"> {run['seconds']:.0f} s ({run['mean']:.4g})"


def table(runs: list[dict[str, Any]]) -> str:
    """Seconds of all seeds, and the median of the ratios to sf; a bound below where a system was stopped."""
    systems = [system for system in SYSTEMS if any(run["system"] == system for run in runs)]
    lines = ["| Task | Score | " + " | ".join(systems) + " |", "|---|---|" + "---|" * len(systems)]
    for name in dict.fromkeys(run["task"] for run in runs):
        cells = []
        for system in systems:
            own = {run["seed"]: run for run in runs if (run["task"], run["system"]) == (name, system)}
            ours = {run["seed"]: run for run in runs if (run["task"], run["system"]) == (name, "sf")}
            cell = ", ".join(_told(own[seed]) for seed in sorted(own))
            if system != "sf" and own.keys() & ours.keys():
                ratios = [own[seed]["seconds"] / ours[seed]["seconds"] for seed in sorted(own.keys() & ours.keys())]
                least = "" if all(run["reached"] for run in own.values()) else "at least "
                cell += f": **{least}{statistics.median(ratios):.1f} times**"
            cells.append(cell)
        lines.append(f"| {name} | {TASKS[name].score:g} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
