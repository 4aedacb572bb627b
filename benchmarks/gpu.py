"""Frames per second of training on an accelerator, as a table.

    python benchmarks/gpu.py [--device gpu] [--seconds 60] [--rounds 3]

The environments cost nothing (see `free_images`), so the measured part is the way of a picture from shared memory
through acting and learning: 84x84x4 bytes, the network of Mnih et al. 2015, one epoch. The aim on one H200 with 16
cores is 100,000 frames per second. CartPole-v1 is there because small networks may be faster on the CPU, where
rollout workers act for themselves.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

HERE = Path(__file__).parent
LEARNING = ["--num_epochs=1", "--num_batches_per_epoch=1", "--normalize_returns=False", "--max_grad_norm=0.5"]
WORKLOADS = {
    f"images, {envs} environments per worker": [
        "--env=free_images:FreeImages-v0", "--vectorization=native", f"--num_envs_per_worker={envs}",
        "--worker_num_splits=2", "--rollout=32", "--batch_size=4096", "--encoder_conv_architecture=convnet_atari",
        "--encoder_conv_mlp_layers", "512", *LEARNING,
    ]
    for envs in (64, 256)
} | {
    "CartPole-v1": [
        "--env=CartPole-v1", "--num_envs_per_worker=64", "--rollout=32", "--batch_size=4096", *LEARNING,
        "--encoder_mlp_layers", "64", "64",
    ],
}  # fmt: skip


def frames_per_second(flags: list[str], seconds: int) -> float:
    """Rate of one run: the median of the 10 s windows, without the first reports, which see the start."""
    with tempfile.TemporaryDirectory() as directory:
        line = [sys.executable, "-m", "sf.cli.train", f"--train_dir={directory}", "--experiment=bench", *flags]
        line += [f"--train_for_seconds={seconds}", "--experiment_summaries_interval=5"]
        path = os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            line, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}, timeout=seconds + 300
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(line)} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr}")
        points = [json.loads(text) for text in (Path(directory) / "bench/metrics.jsonl").read_text().splitlines()]
    rates = [point["perf/_fps"] for point in points if point.get("perf/_fps")]
    if not rates:
        raise SystemExit(f"{seconds} s are too short to measure anything; use a larger --seconds.")
    return statistics.median(rates[2:] or rates[-1:])


def where(device: str) -> str:
    """Device, versions and date, for below the table."""
    name = platform.processor() or platform.machine()
    if device == "gpu":
        accelerator = torch.accelerator.current_accelerator()
        name = torch.cuda.get_device_name() if torch.cuda.is_available() else str(accelerator)
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{name}, {len(os.sched_getaffinity(0))} cores, {versions}, {datetime.date.today().isoformat()}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="gpu")
    parser.add_argument("--seconds", type=int, default=60, help="of each run")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in WORKLOADS}
    for _ in range(options.rounds):
        for name, flags in WORKLOADS.items():
            found[name].append(frames_per_second([*flags, f"--device={options.device}"], options.seconds))
    print("| | frames/s, median | least - most |\n|---|---:|---:|")
    for name, rates in found.items():
        print(f"| {name} | {statistics.median(rates):,.0f} | {min(rates):,.0f} - {max(rates):,.0f} |")
    print(f"\n{where(options.device)}")


if __name__ == "__main__":
    main()
