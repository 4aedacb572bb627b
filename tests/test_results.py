"""The command that compares scores with published ones."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent.parent / "benchmarks/results.py"
pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="benchmarks are in the repository only")


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The module, with runs that are over at once and without pictures."""
    spec = importlib.util.spec_from_file_location("results", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "results", module)
    spec.loader.exec_module(module)

    def train(task: Any, seed: int, directory: Path) -> None:
        path = directory / module.experiment_of(task, seed)
        path.mkdir()
        summary = {"exit_reason": module.FINISHED, "wall_time_s": 60.0, "frames": 1000}
        (path / "summary.json").write_text(json.dumps(summary))
        (path / "metrics.jsonl").write_text(json.dumps({"frames": 1000, "reward/reward": 100.0 + seed}))

    monkeypatch.setattr(module, "train", train)
    monkeypatch.setattr(module, "draw", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    return module


def table(results: Any, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[str]:
    """First columns of the table that a call leaves behind."""
    monkeypatch.setattr(sys, "argv", ["results.py", *arguments])
    results.main()
    return [line.split(" | ")[0] for line in Path("results/results.md").read_text().splitlines()[2:]]


def test_rows_of_other_tasks_stay(results: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert table(results, monkeypatch, "--only=Pong") == ["| Pong"]
    assert table(results, monkeypatch, "--only=Acrobot-v1", "--seeds", "1", "2") == ["| Acrobot-v1", "| Pong"]


def test_unknown_name_is_refused_and_the_table_stays(
    results: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table(results, monkeypatch, "--only=Pong")
    before = Path("results/results.md").read_text()
    with pytest.raises(SystemExit) as ended:
        table(results, monkeypatch, "--only=Pnog")
    assert ended.value.code == 2
    groups = "algorithms, atari, classic, mujoco, mujoco_paper, own, recurrent, zoo"
    assert f"--only=Pnog is no task and no group. There are {groups}, 'CartPole-v1'" in capsys.readouterr().err
    assert Path("results/results.md").read_text() == before
