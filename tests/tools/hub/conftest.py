"""A run that was trained, its folder as it would be sent, and a Hub."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from sf.cli import hub as command
from tests.helpers.commands import run
from tests.helpers.hub_runs import NEAR, PUSH
from tests.helpers.hub_server import Hub, running_hub


@pytest.fixture(scope="package")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory where train_dir/pole is a run that has started twice."""
    path = tmp_path_factory.mktemp("trained")
    for frames in (2000, 4000):  # too few for a score at its limit of 500
        # By its whole path, which is not to be published.
        assert run(path, *NEAR, f"--train_dir={path}/train_dir", f"--train_for_env_steps={frames}").code == 0
    return path


@pytest.fixture(scope="package")
def written(trained: Path) -> Path:
    """The folder of that run, as it would be sent."""
    folder = trained / "written"
    assert command.main([*PUSH, f"--train_dir={trained}/train_dir", f"--output={folder}"]) == 0
    return folder


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A Hub that the client of every command finds."""
    if importlib.util.find_spec("huggingface_hub") is None:
        pytest.skip("the extra hub is not installed")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with running_hub() as hub:
        for name, value in hub.variables().items():
            monkeypatch.setenv(name, value)
        yield hub
