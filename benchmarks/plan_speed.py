"""How fast plans are: PPO beside `sf-train` on the same sizes, A2C beside Stable-Baselines3 where it is installed.

python benchmarks/plan_speed.py [--rounds=3] [--seconds=10] [--sb3=python]

Each round runs all of them in turn; medians are shown. `--sb3` names an interpreter that has stable-baselines3.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

PLANS = Path(__file__).resolve().parents[1] / "examples" / "plans"
ENV = "--env=CartPole-v1"
SIZES = ("--num_envs_per_worker=64", "--batch_size=4096", "--rollout=32", "--num_epochs=1", "--num_batches_per_epoch=1")
A2C = "--num_workers=1", "--num_envs_per_worker=16", "--rollout_fragment_length=20", "--train_batch_size=320"
SB3 = """
import sys, time
from stable_baselines3 import A2C
from stable_baselines3.common.env_util import make_vec_env
envs = make_vec_env("CartPole-v1", n_envs=16, seed=1)
model = A2C("MlpPolicy", envs, n_steps=20, device="cpu")
model.learn(3200)
start, frames, seconds = time.time(), 0, float(sys.argv[1])
while time.time() - start < seconds:
    model.learn(16000, reset_num_timesteps=False)
    frames += 16000
print(frames / (time.time() - start))
"""


def train(seconds: int) -> float:
    """Frames per second of `sf-train` on the workload ``cartpole``: 128 environments, 32 steps."""
    flags = "--num_workers=1", "--worker_num_splits=2", "--num_envs_per_worker=128", *SIZES[1:]
    return _run("sf.cli.train", [ENV, *flags], seconds)


def ppo(seconds: int) -> float:
    """The same sizes as a plan."""
    flags = "--num_workers=1", "--num_envs_per_worker=128", "--rollout_fragment_length=32", "--train_batch_size=4096"
    learning = "--num_sgd_iter=1", "--sgd_minibatch_size=4096", "--sample_async=True"
    return _run("sf.cli.plan", [str(PLANS / "ppo.py"), ENV, *flags, *learning], seconds)


def a2c(seconds: int, ahead: bool = False) -> float:
    """16 environments, 20 steps; the worker collects the next batch meanwhile if it may go ahead."""
    return _run("sf.cli.plan", [str(PLANS / "a2c.py"), ENV, f"--sample_async={ahead}", *A2C], seconds)


def sb3(seconds: int, interpreter: str) -> float:
    """Stable-Baselines3 on the same sizes."""
    return float(subprocess.check_output([interpreter, "-c", SB3, str(seconds)], text=True))


def _run(module: str, flags: list[str], seconds: int) -> float:
    with tempfile.TemporaryDirectory() as directory:
        ends = f"--train_for_seconds={seconds}", f"--train_dir={directory}"
        command = [sys.executable, "-m", module, *flags, *ends, "--seed=1"]
        done = subprocess.run(command, capture_output=True, text=True)
        found = list(Path(directory).rglob("summary.json"))
        if done.returncode or not found:
            raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
        summary = json.loads(found[0].read_text())
        return float(summary["frames"] / summary["wall_time_s"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--sb3")
    given = parser.parse_args()
    systems: dict[str, Callable[[int], float]] = {"sf-train": train, "PPO plan": ppo}
    systems |= {"A2C plan": a2c, "A2C plan, ahead": partial(a2c, ahead=True)}
    if given.sb3:
        systems["SB3 A2C"] = partial(sb3, interpreter=given.sb3)
    rates: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(given.rounds):
        for name, measure in systems.items():
            rates[name].append(measure(given.seconds))
            print(f"{name}: {rates[name][-1]:,.0f} FPS", flush=True)
    medians = {name: median(found) for name, found in rates.items()}
    print(f"PPO plan / sf-train = {medians['PPO plan'] / medians['sf-train']:.2f}")
    for name in ("A2C plan", "A2C plan, ahead") if given.sb3 else ():
        print(f"{name} / SB3 A2C = {medians[name] / medians['SB3 A2C']:.2f}")


if __name__ == "__main__":
    main()
