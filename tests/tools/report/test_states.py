"""How runs stand on the page: they go on, have failed, or were killed; and a page that follows them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from sf.cli.report import main
from sf.errors import ExitCode
from sf.storage.experiment import Experiment
from sf.tools.report.following import EVERY_S, LOOK_S, follow, wait_for_curves
from sf.tools.report.groups import make_groups
from sf.tools.report.runs import read_run
from sf.tools.report.states import state_bars
from sf.tools.report.verdict import verdict
from tests.helpers.commands import running
from tests.helpers.reported import write_run

pytest.importorskip("plotly")
NOW = datetime(2026, 11, 26, 9, 0, 5)
REFRESH = '<meta http-equiv="refresh"'


def with_end(path: Path, code: int, reason: str) -> Path:
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps(summary | {"exit_code": code, "exit_reason": reason}))
    return path


def bars_of(*paths: Path) -> list[tuple[str, str]]:
    text = state_bars([run for path in paths for run in read_run(path)], NOW)
    return re.findall(r'<p class="bar (\w+)" role="status">(.*?)</p>', text)


def test_a_failed_run_has_a_red_bar_with_the_reason(tmp_path: Path) -> None:
    path = with_end(write_run(tmp_path / "run"), ExitCode.ENVIRONMENT, "EnvError: <broke>.\nIts stack")
    assert bars_of(path) == [("failed", "The run has failed: EnvError: &lt;broke&gt;.")]
    assert bars_of(path, write_run(tmp_path / "other"))[0][1].startswith("run has failed: ")


def test_a_run_that_broke_off_is_named_beside_the_score_of_its_group(tmp_path: Path) -> None:
    """Its score of an early moment counts as much as those of whole runs."""
    paths = [write_run(tmp_path / f"run{seed}", seed=seed) for seed in (1, 2, 3)]
    groups = make_groups([run for path in paths for run in read_run(path)])
    assert "broken off" not in verdict(groups)
    with_end(paths[1], ExitCode.ENVIRONMENT, "EnvCrashed: boom\nTraceback (most recent call last):")
    (group,) = groups = make_groups([run for path in paths for run in read_run(path)])
    shown = verdict(groups)
    assert "Traceback" not in shown
    assert "EnvCrashed: boom" in shown
    frames = f"{group.runs[0].frames:,}"
    assert (
        f"1 of 3 runs of {group.label} has broken off and counts with the score of its last frames ({frames})." in shown
    )


@pytest.mark.parametrize("code", [ExitCode.FINISHED, ExitCode.SIGINT, ExitCode.SIGTERM, ExitCode.REQUEUE])
def test_a_run_that_has_ended_or_was_stopped_has_no_bar(tmp_path: Path, code: int) -> None:
    assert bars_of(with_end(write_run(tmp_path / "run"), code, "stopped")) == []


def test_a_killed_run_and_one_that_lives_are_told_apart(tmp_path: Path) -> None:
    killed, living = write_run(tmp_path / "killed", ended=False), write_run(tmp_path / "living", ended=False)
    experiment = Experiment(str(tmp_path), "living", "resume")
    try:
        assert bars_of(living) == [("living", "The run goes on. This page has its state at 09:00:05 on 2026-11-26.")]
        assert read_run(living)[0].end == "goes on"
        found = dict(bars_of(killed, living))
    finally:
        experiment.close()
    assert found["failed"].startswith("killed was killed, without a summary.")
    assert found["living"].startswith("living goes on.")
    assert dict(bars_of(living))["failed"].startswith("The run was killed")


def test_rows_of_a_sweep_carry_the_flags_that_differ(tmp_path: Path) -> None:
    flags = [{"max_episode_steps": 100 + number, "stop_at_reward_episodes": 20 + number} for number in range(3)]
    paths = [write_run(tmp_path / f"trial00{number}-seed1", flags=own) for number, own in enumerate(flags)]
    shown = verdict(make_groups([run for path in paths for run in read_run(path)]))
    assert '<th class="flags">Flags that differ</th>' in shown
    for number in range(3):
        text = f"max_episode_steps={100 + number}, stop_at_reward_episodes={20 + number}"
        assert f"<td>trial00{number}-seed1</td>" in shown
        assert f'<td class="flags">{text}</td>' in shown
    short = [write_run(tmp_path / f"short{rate}", learning_rate=rate) for rate in (0.1, 0.2)]
    shown = verdict(make_groups([run for path in short for run in read_run(path)]))
    assert "Flags that differ" not in shown, "their names are the flags"


def test_following_ends_with_the_runs_and_after_an_interrupt() -> None:
    lives, wrote, waited = [True, True, False, False], list[int | None](), list[float]()

    def write(renewed_s: int | None) -> bool:
        wrote.append(renewed_s)
        return bool(lives) and lives.pop(0)

    follow(True, write, waited.append)
    assert wrote == [EVERY_S] * 3 + [None]
    assert waited == [EVERY_S] * 3

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    wrote.clear()
    with pytest.raises(KeyboardInterrupt):
        follow(True, write, interrupted)
    assert wrote == [None], "a browser does not go on loading it"


def test_a_run_that_has_ended_needs_no_following(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "run")
    assert main(["run", f"--train_dir={tmp_path}", "--follow"]) == ExitCode.FINISHED
    assert "No run goes on, so the page stays as it is." in capsys.readouterr().out
    assert REFRESH not in (tmp_path / "run/report.html").read_text()
    assert not list((tmp_path / "run").glob(".report*"))
    assert main(["run", f"--train_dir={tmp_path}", "--follow", "--png=x"]) == ExitCode.USAGE
    assert "--png writes plots once, and --follow a page again and again." in capsys.readouterr().err


def test_a_run_that_has_just_begun_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = write_run(tmp_path / "begun", ended=False) / "metrics.jsonl"
    text, waited = metrics.read_text(), list[float]()
    metrics.unlink()

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            metrics.write_text(text)

    begun = Experiment(str(tmp_path), "begun", "resume")
    try:
        wait_for_curves([tmp_path / "nothing", tmp_path / "begun"], wait)
        assert waited == [LOOK_S] * 2
        assert capsys.readouterr().out == "The first curves of begun are waited for.\n"
    finally:
        begun.close()
    metrics.unlink()
    wait_for_curves([tmp_path / "begun"], wait)
    assert len(waited) == 2, "a run that has ended gets no curves any more"


@pytest.mark.more
def test_a_page_follows_a_run_until_it_ends(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    flags = "--env=CartPole-v1", "--experiment=alive", "--serial_mode", "--num_envs_per_worker=4", "--rollout=16"
    command = [sys.executable, "-m", "sf.cli.report", "alive", f"--output={page}", "--follow"]
    with running(tmp_path, *flags) as training:
        training.wait_for((tmp_path / "train_dir/alive/metrics.jsonl").exists, "curves")
        training.wait_for_text("Fps is")
        report = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        try:
            training.wait_for(page.exists, "the page")
            text = page.read_text()
            assert REFRESH in text
            assert "The run goes on. This page has its state at" in text
            training.process.send_signal(signal.SIGINT)
            training.finish()
            out, _ = report.communicate(timeout=120)
        finally:
            report.kill()
            report.wait()
    assert report.returncode == ExitCode.FINISHED
    assert out.splitlines()[1:] == [
        f"It is renewed every {EVERY_S} s as long as a run goes on. Ctrl-C ends that.",
        "No run goes on any more, so the page stays as it is.",
    ]
    last = page.read_text()
    assert REFRESH not in last
    assert "goes on" not in last
    assert "stopped by SIGINT" in last
