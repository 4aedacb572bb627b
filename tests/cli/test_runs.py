"""``sf ls``: runs as a table, and removing them safely."""

from __future__ import annotations

import fcntl
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from sf.cli.runs import in_bytes, in_time, main
from sf.storage import checkpoint
from sf.storage.experiment import MARKER
from sf.storage.names import list_checkpoints
from sf.storage.runs import runs_in

VERSIONS = (100, 200, 300)


def run_of(
    train_dir: Path, name: str, env: str, reward: float | None, code: int | None, frames: int = 1000, age_s: float = 0.0
) -> Path:
    """A directory as a run leaves it; without a code it was killed."""
    path = train_dir / name
    (path / "checkpoint_p0" / "best").mkdir(parents=True)
    (path / MARKER).write_text("pid 1 on here, started then\n")
    (path / "config.json").write_text(json.dumps({"run": {"env": env}}))
    for version in VERSIONS:
        for folder in (path / "checkpoint_p0", path / "checkpoint_p0" / "best")[: 2 if version == 100 else 1]:
            checkpoint.save(folder, version, 10 * version, {"weights": torch.zeros(12_500)}, {"is_trained": True})
    points: list[dict[str, Any]] = [{"policy_id": 0, "frames": 10}, {"policy_id": 0, "frames": frames}]
    if reward is not None:
        points[0]["reward/reward"] = reward
    (path / "metrics.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points) + '{"frames": 5')
    if code is not None:
        policies = [{"reward": reward}]
        (path / "summary.json").write_text(json.dumps({"exit_code": code, "frames": frames, "policies": policies}))
    for file in path.rglob("*"):
        os.utime(file, (file.stat().st_mtime - age_s,) * 2)
    return path


@pytest.fixture
def train_dir(tmp_path: Path) -> Path:
    run_of(tmp_path, "pole", "CartPole-v1", 475.25, 0, frames=111_865, age_s=7200)
    run_of(tmp_path, "stopped", "CartPole-v1", 20.0, 130, age_s=400)
    run_of(tmp_path, "failed", "Pendulum-v1", None, 7, age_s=130)
    run_of(tmp_path, "killed", "Pendulum-v1", -900.5, None, frames=5000, age_s=5 * 86400)
    (tmp_path / "begun" / "checkpoint_p0").mkdir(parents=True)  # and refused before its configuration was written
    (tmp_path / "begun" / MARKER).touch()
    (tmp_path / "no_run").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "pole")
    return tmp_path


def names(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines()[1:]]


def test_the_table_has_each_run_with_its_state(train_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (train_dir / "stopped" / MARKER).open("r+b") as marker:
        fcntl.flock(marker, fcntl.LOCK_EX)
        assert main([f"--train_dir={train_dir}", "--sort=name"]) == 0
    text = re.sub(r"20\d kB", "SIZE", capsys.readouterr().out)
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in text.splitlines()}
    assert rows.pop("run") == "environment frames score state size age"
    assert rows == {
        "begun": "? 0 - empty 0 B 0 s",
        "failed": "Pendulum-v1 1,000 - failed SIZE 2 min",
        "killed": "Pendulum-v1 5,000 -900.500 killed SIZE 5 d",
        "pole": "CartPole-v1 111,865 475.250 ended SIZE 2 h",
        "stopped": "CartPole-v1 1,000 20.000 running SIZE 7 min",
    }
    assert {run.name: run.state for run in runs_in(train_dir)}["stopped"] == "stopped"


def test_the_score_of_a_run_is_what_it_looks_at(tmp_path: Path) -> None:
    path = run_of(tmp_path, "doors", "Doors-v0", 475.25, 0)
    (path / "config.json").write_text(json.dumps({"run": {"env": "Doors-v0", "score": "env/success"}}))
    point = {"policy_id": 0, "frames": 900, "reward/reward": 475.25, "env/success": 0.25}
    (path / "metrics.jsonl").write_text(json.dumps(point) + "\n")
    assert [run.score for run in runs_in(tmp_path)] == [0.25]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--sort=score"], ["pole", "stopped", "killed", "begun", "failed"]),
        (["--sort=frames", "--env=Pend"], ["killed", "failed"]),
        (["--state=killed"], ["killed"]),
        (["pole", "killed", "--sort=name"], ["killed", "pole"]),
        (["--env=Pendulum"], ["failed", "killed"]),
    ],
)
def test_runs_are_chosen_and_sorted(
    train_dir: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: list[str]
) -> None:
    assert main([f"--train_dir={train_dir}", *words]) == 0
    assert names(capsys.readouterr().out) == expected


def test_pruning_leaves_what_a_resume_and_an_evaluation_need(
    train_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"--train_dir={train_dir}", "pole", "--prune", "--yes"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "101 kB are free."
    left = sorted(path.parent.name for path in (train_dir / "pole").rglob("tensors.safetensors"))
    assert left == ["checkpoint_000000100_1000", "checkpoint_000000300_3000"], "the best one and the newest"
    assert len(list((train_dir / "killed").rglob("tensors.safetensors"))) == 4


def test_pruning_keeps_the_checkpoint_that_a_resume_would_fall_back_to(tmp_path: Path) -> None:
    path = run_of(tmp_path, "pole", "CartPole-v1", 1.0, 0)
    newest = path / "checkpoint_p0" / f"checkpoint_{VERSIONS[-1]:09d}_{10 * VERSIONS[-1]}"
    (newest / "tensors.safetensors").write_bytes(b"cut")
    assert main([f"--train_dir={tmp_path}", "--prune", "--yes"]) == 0
    assert [one.name for one in list_checkpoints(path / "checkpoint_p0")] == ["checkpoint_000000200_2000"]


def test_runs_without_their_files_or_with_strange_ones_are_rows_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = run_of(tmp_path, "plan", "x", 3.0, None)
    (plan / "config.json").unlink()
    strange = run_of(tmp_path, "strange", "CartPole-v1", 2.5, None)
    (strange / "summary.json").write_text('{"frames": null, "policies": {}, "exit_code": 0}')
    ended = run_of(tmp_path, "ended", "CartPole-v1", 28.75, 0)
    (ended / "summary.json").write_text('{"frames": 5, "policies": [{"reward": null}], "exit_code": 0}')
    assert main([f"--train_dir={tmp_path}", "--sort=name"]) == 0
    rows = {line.split()[0]: line.split()[2:5] for line in capsys.readouterr().out.splitlines()[1:]}
    assert rows == {
        "ended": ["5", "28.750", "ended"], "plan": ["1,000", "3.000", "killed"], "strange": ["1,000", "2.500", "ended"],
    }  # fmt: skip


def test_a_run_that_goes_on_is_not_removed(train_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (train_dir / "pole" / MARKER).open("r+b") as marker:
        fcntl.flock(marker, fcntl.LOCK_EX)
        for what in ("--delete", "--prune"):
            assert main([f"--train_dir={train_dir}", "pole", what, "--yes"]) == 0
            assert "pole is in use and stays as it is." in capsys.readouterr().out
    assert len(list((train_dir / "pole").rglob("tensors.safetensors"))) == 4
    assert main([f"--train_dir={train_dir}", "--env=CartPole", "--delete", "--yes"]) == 0
    assert sorted(path.name for path in train_dir.iterdir()) == ["begun", "failed", "killed", "link", "no_run"]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--delete"], 2, "Delete 5 runs, 8.. kB? There is no terminal to ask. Add --yes."),
        (["--prune", "--delete"], 2, "Give one of them"),
        (["pol"], 4, "There is no run 'pol' in .*Did you mean pole?"),
        (["--sort=reward"], 2, "must be age"),
    ],
)
def test_nothing_is_removed_by_mistake(
    train_dir: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    code: int,
    told: str,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main([f"--train_dir={train_dir}", *words]) == code
    assert re.search(told.replace("?", r"\?"), capsys.readouterr().err)
    assert len(runs_in(train_dir)) == 5


def test_a_directory_of_runs_is_no_run(train_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"--train_dir={train_dir.parent}", train_dir.name]) == 4
    assert f"holds runs itself: sf ls --train_dir={train_dir}" in capsys.readouterr().err
    assert main([f"--train_dir={train_dir.parent}"]) == 0
    told = re.search(r"^(.*): more runs, such as those of a sweep \(--train_dir=", capsys.readouterr().out, re.M)
    assert told
    assert train_dir.name in told[1].split(", ")


def test_a_directory_without_runs_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"--train_dir={tmp_path / 'none'}"]) != 0
    assert "There is no directory" in capsys.readouterr().err
    assert main([f"--train_dir={tmp_path}"]) == 0
    assert "No run in" in capsys.readouterr().out


def test_sizes_and_ages_in_words() -> None:
    assert [in_bytes(number) for number in (0, 999, 1500, 123_456, 2.5e9, 7e12)] == [
        "0 B", "999 B", "1.5 kB", "123 kB", "2.5 GB", "7.0 TB",
    ]  # fmt: skip
    assert [in_time(seconds) for seconds in (-1, 59, 61, 7300, 47 * 3600, 49 * 3600)] == [
        "0 s", "59 s", "1 min", "2 h", "47 h", "2 d",
    ]  # fmt: skip
