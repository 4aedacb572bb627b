"""The examples run as they are."""

from __future__ import annotations

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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")
def test_notebook() -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(EXAMPLES / "policy.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert any("100 episodes of CartPole-v1: reward" in output.get("text", "") for output in outputs)
