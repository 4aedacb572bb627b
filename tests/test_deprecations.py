"""No process of a run uses what Python, NumPy or torch will take away."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.commands import ROOT

OURS = re.compile(rf"{re.escape(ROOT)}/(?:sf|envs)/\S+:\d+: (?:Pending)?DeprecationWarning: .*")
"""A warning about a line of ours, as Python prints it."""


def warnings_of(folder: Path, *words: str) -> list[str]:
    """The warnings about lines of ours that a command and all its processes print."""
    place = {
        "PYTHONPATH": f"{ROOT}:{ROOT}/envs",
        "PYTHONWARNINGS": "always::DeprecationWarning,always::PendingDeprecationWarning",
    }
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=folder, env=os.environ | place, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return OURS.findall(done.stdout + done.stderr)


@pytest.mark.more
def test_no_process_of_a_run_uses_what_is_deprecated(tmp_path: Path) -> None:
    words = ("-m", "sf.cli.train", "--env=CartPole-v1", "--train_for_env_steps=3000", "--eval_every_steps=1000")
    assert warnings_of(tmp_path, *words) == []


def test_a_warning_about_a_line_of_ours_is_found(tmp_path: Path) -> None:
    line = f"import warnings; warnings.warn_explicit('old', DeprecationWarning, '{ROOT}/sf/old.py', 3)"
    assert warnings_of(tmp_path, "-c", line) == [f"{ROOT}/sf/old.py:3: DeprecationWarning: old"]
