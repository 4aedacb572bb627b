"""sf and other libraries on the same work, in turns: environment steps per second that the learners have used.

    python benchmarks/side_by_side.py WORKLOAD [--systems sf,sample-factory,...] [--rounds 3] [--seconds 10]
        [--peers DIRECTORY] [--sf-flags=--vectorization=envpool] [--workers 2] [--install]

`--install` first makes an environment for each library below the directory of the peers (some gigabytes). The window
opens 5 s after the first report of a system and both its ends are reports. Leave the machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import peers
from peers import WORKLOADS, Workload

COMMON = ["torch==2.13.0", "mujoco==3.3.7", "imageio", "packaging", "ale-py==0.12.1", "opencv-python-headless<4.12"]
"""MuJoCo as old and new Gymnasium accept it, Atari, and the imports of their environments."""
OLD = [*COMMON, "gymnasium==0.29.1", "numpy<2"]
NEW = [*COMMON, "gymnasium==1.4.0"]
REQUIREMENTS = {
    "loop": [*NEW, "envpool"],
    "sb3": [*NEW, "stable-baselines3==2.9.2"],
    "sample-factory": [*OLD, "sample-factory==2.1.1"],
    "pufferlib": [*OLD, "setuptools<81", "wheel", "cython", "psutil", "rich", "rich_argparse", "gym==0.23.0",
                  "pettingzoo<=1.24.1", "shimmy[gym-v21]"],
}  # fmt: skip
PUFFERLIB = ["--no-build-isolation", "--no-deps", "pufferlib==3.0.0"]
"""Without its own environments and trainer, which need CUDA; its setup.py then misses a list that they would make."""
OWN = {
    "sf": [],
    "sf-deep": ["--num_batches_to_accumulate=4"],
    "sf-inference": ["--policy_workers_per_policy=1"],
}
"""As it comes; with up to four datasets in flight, at the price of lag; and with an inference process in any case."""
SYSTEMS = {"loop": "loop", "loop-envpool": "loop", "pufferlib": "pufferlib", "sb3": "sb3"}
SYSTEMS |= {"sample-factory": "sample-factory"}
"""Each other system and the environment it runs in."""
WARM_UP_S = 5.0
FIRST_REPORT_S = 90.0
COUNT = re.compile(r"learned (\d+)|Total num frames: (\d+)")
COUNTED_BY = ("num_epochs", "batch_size", "num_learners")
"""Flags that change how many steps an optimizer step learns from."""
VERSION = re.compile(r"policy_version (\d+) \(")


def flags(work: Workload, workers: int, directory: str) -> list[str]:
    """The work as flags of sf, and of Sample Factory."""
    own: dict[str, object] = {
        "env": work.env_id, "experiment": "bench", "train_dir": directory, "device": "cpu", "async_rl": True,
        "num_workers": workers, "num_envs_per_worker": work.num_envs // workers,
        "rollout": work.rollout, "batch_size": work.minibatch, "num_batches_per_epoch": work.batch // work.minibatch,
        "num_epochs": work.epochs, "use_rnn": False, "normalize_input": False, "normalize_returns": False,
        "nonlinearity": "tanh", "learning_rate": peers.LEARNING_RATE, "gamma": peers.GAMMA,
        "gae_lambda": peers.LAMBDA, "ppo_clip_ratio": peers.CLIP, "exploration_loss_coeff": peers.ENTROPY_COEFF,
        "value_loss_coeff": peers.VALUE_COEFF, "max_grad_norm": peers.MAX_GRAD_NORM, "adaptive_stddev": False,
    }  # fmt: skip
    if work.has_images:
        own |= {"nonlinearity": "relu", "encoder_conv_architecture": "convnet_atari", "encoder_conv_mlp_layers": 512}
        own |= {"obs_scale": 255.0, "summaries_use_frameskip": False}
    return [*(f"--{name}={value}" for name, value in own.items()), "--encoder_mlp_layers", "64", "64"]


def command(system: str, name: str, options: argparse.Namespace, directory: str) -> list[str]:
    work = WORKLOADS[name]
    if system in OWN:
        extra = [*OWN[system], *(["--vectorization=none"] if work.one_by_one else []), *shlex.split(options.sf_flags)]
        workers = options.workers or work.workers
        return [sys.executable, "-m", "sf.cli.train", *flags(work, workers, directory), *extra]
    python = str(options.peers / SYSTEMS[system] / "bin" / "python")
    line = [python, peers.__file__, system, name]
    workers = options.workers or os.cpu_count() or 1  # what suits Sample Factory best
    return line + (flags(work, workers, directory) if system == "sample-factory" else [])


@contextlib.contextmanager
def started(line: list[str], directory: str) -> Iterator[subprocess.Popen[str]]:
    """In a session of its own, all of which is ended."""
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=directory, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, signal.SIGINT)
                process.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def count_of(system: str, work: Workload, text: str) -> int | None:
    """Steps learned from, if the line tells.

    Lines of sf come every 5 s, and their frames count whole batches, of which Pong has two or three in that time. The
    version of the weights that act counts optimizer steps, which are finer. Elsewhere frames are the right count: they
    leave out fillers of vector environments.
    """
    if system in OWN and work.has_images:
        found = VERSION.search(text)
        return int(found[1]) * work.minibatch // work.epochs if found else None
    found = COUNT.search(text)
    return int(found[1] or found[2]) if found else None


def rate(line: list[str], count: Callable[[str], int | None], seconds: float) -> float:
    """Steps per second in a window between two reports.

    Raises:
        RuntimeError: the system ended, or reported nothing.
    """
    reports: list[tuple[float, int]] = []
    last_lines: list[str] = []
    with tempfile.TemporaryDirectory() as directory, started(line, directory) as process:

        def read() -> None:
            assert process.stdout is not None
            for text in process.stdout:
                last_lines[:] = [*last_lines[-19:], text]
                if (steps := count(text)) is not None:
                    reports.append((time.monotonic(), steps))

        threading.Thread(target=read, daemon=True).start()
        began = time.monotonic()
        while True:
            time.sleep(0.2)
            window = [report for report in reports if report[1] > 0 and report[0] >= reports[0][0] + WARM_UP_S]
            if window and window[-1][0] - window[0][0] >= seconds:
                (first_s, first), (last_s, last) = window[0], window[-1]
                return (last - first) / (last_s - first_s)
            if process.poll() is not None or time.monotonic() - began > FIRST_REPORT_S + WARM_UP_S + 3 * seconds:
                raise RuntimeError(f"{shlex.join(line)} gave no figure:\n{''.join(last_lines)}")


def install(directory: Path) -> None:
    """One environment per library."""
    for name, requirements in REQUIREMENTS.items():
        if not (directory / name).exists():
            venv.create(directory / name, with_pip=True)
        _pip(directory / name, *requirements)
    with tempfile.TemporaryDirectory() as shim:
        Path(shim, "sitecustomize.py").write_text("import builtins\nbuiltins.c_extension_paths = []\n")
        _pip(directory / "pufferlib", *PUFFERLIB, NO_OCEAN="1", NO_TRAIN="1", PYTHONPATH=shim)


def _pip(environment: Path, *arguments: str, **variables: str) -> None:
    line = [environment / "bin" / "python", "-m", "pip", "install", "--quiet", *arguments]
    subprocess.run(line, check=True, env=os.environ | variables)


def main() -> None:
    """Prints a line per run, then the table."""
    parser = argparse.ArgumentParser(description=Path(__file__).stem)
    parser.add_argument("workload", choices=sorted(WORKLOADS))
    parser.add_argument("--systems", default="sf,sf-inference,sample-factory,sb3,pufferlib,loop")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--peers", type=Path, default=Path.home() / ".cache" / "sf-benchmark-peers")
    parser.add_argument("--sf-flags", default="", help="further flags of sf")
    parser.add_argument("--workers", type=int, help="rollout workers of sf and of Sample Factory")
    parser.add_argument("--install", action="store_true")
    options = parser.parse_args()
    given = [name for name in COUNTED_BY if f"--{name}" in options.sf_flags]
    if given and WORKLOADS[options.workload].has_images:
        parser.error(f"--{given[0]} cannot be in --sf-flags with pictures, because optimizer steps are counted")
    options.peers = options.peers.absolute()
    systems = options.systems.split(",")
    known = [*OWN, *SYSTEMS]
    if unknown := [system for system in systems if system not in known]:
        parser.error(f"unknown systems {', '.join(unknown)}; there are {', '.join(known)}")
    if options.install:
        install(options.peers)
    rates: dict[str, list[float]] = {system: [] for system in systems}
    for index in range(options.rounds):
        for system in systems:
            with tempfile.TemporaryDirectory() as directory:
                count = partial(count_of, system, WORKLOADS[options.workload])
                line = command(system, options.workload, options, directory)
                rates[system].append(rate(line, count, options.seconds))
            print(f"round {index + 1}, {system}: {rates[system][-1]:,.0f} steps/s", flush=True)
    first = statistics.median(rates[systems[0]])
    print(f"\n| system | median | min - max | {systems[0]} is |\n|---|---:|---:|---:|")
    for system, values in rates.items():
        median = statistics.median(values)
        print(f"| {system} | {median:,.0f} | {min(values):,.0f} - {max(values):,.0f} | {first / median:.2f} times |")


if __name__ == "__main__":
    main()
