"""Samples per second of training, of sf-eval and of Stable-Baselines3's evaluate_policy, on one environment.

    python benchmarks/evaluation.py [--peer PYTHON] [--env CartPole-v1] [--episodes 10000] [--rounds 3]

In every round a policy is trained for some seconds, as fast as it goes, and then it plays whole episodes. Then a policy
of the same size plays in Stable-Baselines3, in one environment, as its users do, and in 32. PYTHON is an interpreter
that has Stable-Baselines3; without it that part is left out. The time that the command needs to start counts for
sf-eval only. On a busy machine the rates per second of CPU time say more.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

TRAINING = ["--num_workers=2", "--num_envs_per_worker=64", "--worker_num_splits=2", "--rollout=32"]
TRAINING += ["--policy_workers_per_policy=1"]
TRAINING += ["--batch_size=4096", "--num_batches_per_epoch=1", "--num_epochs=1", "--nonlinearity=tanh"]
TRAINING += ["--normalize_input=False", "--normalize_returns=False", "--encoder_mlp_layers", "64", "64"]
PEER = """
import sys, time
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

env_id, num_envs = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
model = PPO("MlpPolicy", make_vec_env(env_id, n_envs=num_envs), policy_kwargs={"net_arch": [64, 64]}, device="cpu")
env, options = model.get_env(), {"deterministic": False, "return_episode_rewards": True}
evaluate_policy(model, env, 2, **options)
steps, started = 0, (time.perf_counter(), time.process_time())
while time.perf_counter() < started[0] + 5.0:
    steps += sum(evaluate_policy(model, env, 4 * num_envs, **options)[1])
print(steps, time.perf_counter() - started[0], time.process_time() - started[1])
"""


class Rate(NamedTuple):
    """Samples per second."""

    wall: float
    cpu: float = math.nan
    """Per second of CPU time."""


def train(env_id: str, directory: Path, seconds: int) -> Rate:
    """Trains a policy; the median of the frames per second that were shown, without the time to start."""
    flags = [f"--env={env_id}", f"--train_dir={directory}", "--experiment=bench", "--seed=1", *TRAINING]
    _run(sys.executable, "-m", "sf.cli.train", f"--train_for_seconds={seconds}", *flags)
    lines = (directory / "bench/metrics.jsonl").read_text().splitlines()
    return Rate(statistics.median(point["perf/_fps"] for point in map(json.loads, lines) if "perf/_fps" in point))


def evaluate(directory: Path, episodes: int) -> Rate:
    """Plays with the policy of `train`; the start of the command counts."""
    table = directory / "episodes.csv"
    flags = [f"--train_dir={directory}", "--experiment=bench", f"--num_episodes={episodes}", f"--csv={table}"]
    before = time.perf_counter(), _cpu_of_children()
    _run(sys.executable, "-m", "sf.cli.evaluate", *flags)
    after = time.perf_counter(), _cpu_of_children()
    with table.open() as file:
        steps = sum(int(row["length"]) for row in csv.DictReader(file))
    return Rate(steps / (after[0] - before[0]), steps / (after[1] - before[1]))


def play_in_peer(python: str, env_id: str, num_envs: int) -> Rate:
    """Plays in Stable-Baselines3."""
    steps, wall, cpu = map(float, _run(python, "-c", PEER, env_id, str(num_envs)).split())
    return Rate(steps / wall, steps / cpu)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure(options: argparse.Namespace, directory: Path) -> dict[str, Rate]:
    """One round."""
    found = {"training": train(options.env, directory, options.train_seconds)}
    found["sf-eval"] = evaluate(directory, options.episodes)
    if options.peer:
        for num_envs in (1, 32):
            found[f"evaluate_policy, {num_envs} envs"] = play_in_peer(options.peer, options.env, num_envs)
    return found


def main() -> None:
    """Prints every round and the medians of the ratios."""
    parser = argparse.ArgumentParser(description=Path(__file__).stem)
    parser.add_argument("--peer")
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--episodes", type=int, default=10000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--train-seconds", type=int, default=20)
    options = parser.parse_args()
    rounds = []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as directory:
            rounds.append(measure(options, Path(directory)))
        shown = (f"{name} {rate.wall:,.0f}/s ({rate.cpu:,.0f} per CPU second)" for name, rate in rounds[-1].items())
        print("; ".join(shown).replace(" (nan per CPU second)", ""), flush=True)
    for name in rounds[0]:
        wall, cpu = (statistics.median(one["sf-eval"][at] / one[name][at] for one in rounds) for at in (0, 1))
        if name != "sf-eval":
            print(f"sf-eval / {name}: {wall:.2f}" + ("" if math.isnan(cpu) else f", per CPU second {cpu:.2f}"))


if __name__ == "__main__":
    main()
