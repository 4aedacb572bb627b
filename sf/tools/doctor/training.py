"""A short training of CartPole, as a user would start it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sf.machine.kernel import is_linux
from sf.tools.doctor.findings import Finding

WITHIN_S = 120.0
MOST_OF_A_REASON = 300
"""Characters."""


def training(seconds: float) -> Iterator[Finding]:
    """Trains for so long in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="sf-doctor-") as folder:
        command = [
            sys.executable, "-m", "sf.cli.train", "--env=CartPole-v1", f"--train_for_seconds={max(1, round(seconds))}",
            f"--train_dir={folder}", "--experiment=run",
            f"--serial_mode={not is_linux()}",
        ]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + WITHIN_S, check=False)
        except subprocess.TimeoutExpired:
            yield Finding("training", "fail", f"CartPole did not end within {seconds + WITHIN_S:.0f} s")
            return
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["nothing"]
            yield Finding("training", "fail", f"exit code {done.returncode}: {said[-1][:MOST_OF_A_REASON]}")
            return
        summary = json.loads((Path(folder) / "run" / "summary.json").read_text())
    frames, took_s = summary["frames"], summary["wall_time_s"]
    yield Finding(
        "training", "ok", f"CartPole, {frames:,} frames in {took_s:.1f} s ({frames / took_s:,.0f} per second)"
    )
