"""The examples run as they are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gymnasium import spaces

from sf.policy import PolicySaver, TrainedPolicy
from tests.helpers.policies import network

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_b26_loop_with_memory(tmp_path: Path) -> None:
    observation = spaces.Box(-float("inf"), float("inf"), (4,))
    torch.manual_seed(0)
    policy = TrainedPolicy(network(observation, spaces.Discrete(2), use_rnn=True, rnn_type="lstm"))
    PolicySaver(policy).save(tmp_path / "policy")
    command = [sys.executable, str(EXAMPLES / "memory_loop.py"), str(tmp_path / "policy")]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert finished.stdout.startswith("return "), finished.stderr
    assert float(finished.stdout.split()[1]) > 5


def replay_loop(frames: int) -> tuple[list[float], float]:
    """The staleness that the loop logs, and the mean return at its end."""
    command = [sys.executable, str(EXAMPLES / "replay_loop.py"), str(frames)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert finished.returncode == 0, finished.stderr
    staleness = [float(number) for number in re.findall(r"mean staleness ([\d.]+)", finished.stdout)]
    return staleness, float(finished.stdout.split()[-1])


def test_e19_loop_logs_its_staleness_and_learns(tmp_path: Path) -> None:
    staleness, mean_return = replay_loop(15_000)
    assert staleness[0] == 3.5, "8 steps on the first rows, which are all of version 0"
    assert 3.5 < staleness[1] <= 16
    assert mean_return > 60, "a random policy gets 22"


@pytest.mark.slow
def test_e19_loop_learns_cartpole() -> None:
    assert replay_loop(60_000)[1] > 300


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")
def test_notebook() -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(EXAMPLES / "policy.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert any("100 episodes of CartPole-v1: reward" in output.get("text", "") for output in outputs)
