"""The examples run as they are."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium import spaces

from sf.policy import PolicySaver, TrainedPolicy
from tests.helpers.policies import network

EXAMPLES = Path(__file__).parent.parent / "examples"
kernels_may_warn = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")


@pytest.mark.more
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


@pytest.mark.more
def test_e19_loop_logs_its_staleness_and_learns(tmp_path: Path) -> None:
    staleness, mean_return = replay_loop(15_000)
    assert staleness[0] == 3.5, "8 steps on the first rows, which are all of version 0"
    assert 3.5 < staleness[1] <= 16
    assert mean_return > 60, "a random policy gets 22"


@pytest.mark.slow
def test_e19_loop_learns_cartpole() -> None:
    assert replay_loop(60_000)[1] > 300


def executed(name: str) -> list[Any]:
    """The outputs of a notebook, in order."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(EXAMPLES / name, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def num_pictures(outputs: list[Any]) -> int:
    return sum("image/png" in output.get("data", {}) for output in outputs)


def values(outputs: list[Any]) -> list[Any]:
    """The results of cells that are literals."""
    texts = [output["data"]["text/plain"] for output in outputs if output.output_type == "execute_result"]
    return [ast.literal_eval(text) for text in texts]


@pytest.mark.slow
@kernels_may_warn
def test_notebook_of_policies() -> None:
    outputs = executed("policy.ipynb")
    assert num_pictures(outputs) == 2
    assert any("100 episodes of CartPole-v1: reward" in output.get("text", "") for output in outputs)


@pytest.mark.more
@kernels_may_warn
def test_notebook_trains_loads_evaluates_and_plots() -> None:
    outputs = executed("train_and_plot.ipynb")
    assert num_pictures(outputs) == 3
    assert any("mean with 95% confidence from" in output.get("text", "") for output in outputs)
    reason, total = values(outputs)
    assert reason == "train_for_env_steps reached"
    assert total > 60, "a random policy gets 22"


@pytest.mark.more
@kernels_may_warn
def test_notebook_of_an_algorithm_learns_with_both_losses() -> None:
    outputs = executed("custom_algorithm.ipynb")
    assert num_pictures(outputs) == 1
    returns, penalties = values(outputs)
    assert set(returns) == {(name, seed) for name in ("PPO", "SPO") for seed in (1, 2)}
    assert min(returns.values()) > 60, "a random policy gets 22"
    assert all(penalty > 0 for _, penalty in penalties.values())


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.name)
def test_notebooks_are_kept_with_the_outputs_of_one_run(path: Path) -> None:
    """As a reader on a hosting site sees them. `make notebooks` writes them anew."""
    text = path.read_text()
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    assert len(text) < 200_000
