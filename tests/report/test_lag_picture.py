"""`sf-report`: from a real run to a picture, and what stands in its way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sf.cli.report import main
from sf.errors import ExitCode
from sf.report.run_files import read_run
from tests.helpers.commands import run

pytest.importorskip("matplotlib")
from matplotlib import image


def test_picture_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--env=CartPole-v1", f"--train_dir={tmp_path}", "--experiment=seen", "--experiment_summaries_interval=1"
    finished = run(tmp_path / "out", *flags, "--train_for_seconds=4")
    assert finished.code == ExitCode.FINISHED, finished.err
    assert main([f"--train_dir={tmp_path}", "--experiment=seen"]) == ExitCode.FINISHED
    path = tmp_path / "seen" / "policy_lag.png"
    assert str(path) in capsys.readouterr().out
    assert image.imread(path).std() > 0.1, "something is drawn"

    files = read_run(tmp_path / "seen")
    assert files.tags("train/ESS_at_lag/").keys() >= {"1", "2-3", "4-7", "8-15"}
    lag_of_run = json.loads((tmp_path / "seen" / "summary.json").read_text())["policies"][0]["lag_of_run"]
    assert files.total("lag/histogram") == lag_of_run["histogram"], "no transition between two points is lost"
    for source in ("acting", "queued", "epochs"):
        assert min(files.curve(f"lag/{source}")[1]) >= 0


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (None, "metrics.jsonl is missing. It comes with the first curves of a run."),
        (['{"policy_id": 1, "frames": 3}'], "has no curves of policy 0."),
        (['{"policy_id": 0, "frames": 3}', '{"policy_id": 0, "fra'], "has no lag/histogram"),
    ],
)
def test_run_without_lag(
    lines: list[str] | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "seen" / "checkpoint_p0").mkdir(parents=True)
    if lines is not None:
        (tmp_path / "seen" / "metrics.jsonl").write_text("\n".join(lines))
    assert main([f"--train_dir={tmp_path}", "--experiment=seen"]) == ExitCode.CHECKPOINT
    assert message in capsys.readouterr().err


def test_missing_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"--train_dir={tmp_path}", "--experiment=seen"]) == ExitCode.CHECKPOINT
    assert "There is no experiment 'seen'" in capsys.readouterr().err
