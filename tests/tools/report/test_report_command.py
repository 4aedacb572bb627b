"""`sf-report` from a real run to its page, and what stands in its way."""

from __future__ import annotations

import builtins
import dataclasses
import importlib.util
import json
import re
import shlex
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from sf.cli.report import main
from sf.cli.train import parse_config
from sf.errors import ExitCode
from sf.storage.compared import OUTPUT_FLAGS
from sf.tools.report.runs import read_run
from tests.helpers.commands import run
from tests.helpers.reported import write_run

pytest.importorskip("plotly")


@pytest.mark.more
def test_page_of_a_real_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--env=CartPole-v1", f"--train_dir={tmp_path}", "--experiment=seen", "--experiment_summaries_interval=1"
    finished = run(tmp_path / "out", *flags, "--train_for_env_steps=100000")
    assert finished.code == ExitCode.FINISHED, finished.err
    assert main(["seen", f"--train_dir={tmp_path}"]) == ExitCode.FINISHED
    page = tmp_path / "seen" / "report.html"
    assert f"Wrote {page}" in capsys.readouterr().out
    text = page.read_text()
    (data,) = re.findall(r'<script id="plots" type="application/json">(.*?)</script>', text, re.S)
    learning = {
        f"train-{tag}"
        for tag in ("entropy", "kl_divergence", "fraction_clipped", "explained_variance", "value_loss", "lr")
    }
    assert {"reward", "reward-by-time", "lag", "throughput", "time-shares", "len-len"} | learning <= set(
        json.loads(data)
    )

    (files,) = read_run(tmp_path / "seen")
    assert files.tags("train/ESS_at_lag/").keys() >= {"1", "2-3", "4-7", "8-15"}
    lag_of_run = json.loads((tmp_path / "seen" / "summary.json").read_text())["policies"][0]["lag_of_run"]
    assert files.total("lag/histogram").tolist() == lag_of_run["histogram"], "no transition between two points is lost"

    (command,) = re.findall(r"<pre>(sf-train .*?)</pre>", text)
    again = dataclasses.asdict(parse_config(shlex.split(unescape(command))[1:]))
    own = {"experiment", "train_dir", *OUTPUT_FLAGS}
    plain = json.loads(json.dumps(again))
    for role, fields in json.loads((tmp_path / "seen" / "config.json").read_text()).items():
        for name in fields.keys() - own:
            assert plain[role][name] == fields[name], name


def test_page_of_several_runs_lies_where_the_command_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in (1, 2):
        write_run(tmp_path / "sweep" / f"trial0-seed{seed}", seed=seed)
    monkeypatch.chdir(tmp_path)
    assert main(["sweep"]) == ExitCode.FINISHED
    assert capsys.readouterr().out == "Wrote report.html\n"
    assert "interquartile mean of 2 runs" in (tmp_path / "report.html").read_text()


def test_runs_without_curves_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "sweep" / "good")
    for name in "ab":
        write_run(tmp_path / "sweep" / name, [])
    monkeypatch.chdir(tmp_path)
    assert main(["sweep"]) == ExitCode.FINISHED
    assert capsys.readouterr() == ("Wrote report.html\n", "Left out 2 runs without curves: a, b.\n")


def test_damaged_lines_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_run(tmp_path / "run")
    with (path / "metrics.jsonl").open("a") as metrics:
        metrics.write("damaged\n")
    assert main([str(path)]) == ExitCode.FINISHED
    assert capsys.readouterr().err == "Left out 1 damaged line of metrics.jsonl\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], ExitCode.USAGE, "No run is given. Give names or directories: sf-report cartpole"),
        (["--output=page.html"], ExitCode.USAGE, "No run is given."),
        (["run", "--outptu=page.html"], ExitCode.USAGE, "Did you mean --output?"),
        (["--outptu", "run"], ExitCode.USAGE, "Did you mean --output?"),
        (["run", "--output"], ExitCode.USAGE, "--output needs a value"),
        (["--train_dir", "run"], ExitCode.USAGE, "No run is given."),
        (["rum"], ExitCode.CHECKPOINT, "There is no run 'rum', neither as a directory nor in"),
        (
            ["run", "--output=missing/page.html"],
            ExitCode.CHECKPOINT,
            "--output=missing/page.html cannot be written: No such file",
        ),
        (["run", "--output=/dev/full"], ExitCode.CHECKPOINT, "--output=/dev/full cannot be written: No space left"),
        (["run", "--png=/dev/null"], ExitCode.CHECKPOINT, "--png=/dev/null cannot be written: File exists."),
        (["run", "--png=/proc/x"], ExitCode.CHECKPOINT, "--png=/proc/x cannot be written: No such file"),
    ],
)
def test_mistakes_are_told(
    arguments: list[str],
    code: ExitCode,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_run(tmp_path / "train_dir" / "run")
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == code
    shown = capsys.readouterr().err
    assert message in shown
    assert "cannot be written" not in message or "--train_dir" not in shown


def test_page_that_cannot_lie_in_its_run_names_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = write_run(tmp_path / "run") / "report.html"
    page.mkdir()
    assert main([str(page.parent)]) == ExitCode.CHECKPOINT
    message = f"{page} cannot be written: Is a directory. Choose another path with --output."
    assert capsys.readouterr().err == f"ExperimentError: {message}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--train_dir=td", "--output=page.html", "one", "two"],
        ["one", "--train_dir=td", "two", "--output=page.html"],
        ["--train_dir", "td", "one", "two", "--output", "page.html"],
        ["--train-dir", "td", "--open", "False", "one", "--output=page.html", "two"],
    ],
)
def test_names_stand_anywhere(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed, name in enumerate(("one", "two")):
        write_run(tmp_path / "td" / name, seed=seed)
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == ExitCode.FINISHED
    assert "interquartile mean of 2 runs" in (tmp_path / "page.html").read_text()


def test_missing_plotly_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "plotly" else find_spec(name))
    assert main([str(write_run(tmp_path / "run"))]) == ExitCode.USAGE
    assert capsys.readouterr().err == 'UsageError: Reports need plotly: pip install "sf-rl[report]"\n'


def test_missing_kaleido_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load = builtins.__import__

    def without_kaleido(name: str, *others: Any) -> Any:
        if name == "kaleido":
            raise ImportError(name)
        return load(name, *others)

    monkeypatch.setattr(builtins, "__import__", without_kaleido)
    assert main([str(write_run(tmp_path / "run")), f"--png={tmp_path / 'png'}"]) == ExitCode.USAGE
    assert 'PNGs need kaleido: pip install "sf-rl[report]"' in capsys.readouterr().err


def test_missing_browser_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("kaleido")
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "none"))
    assert main([str(write_run(tmp_path / "run")), f"--png={tmp_path / 'png'}"]) == ExitCode.USAGE
    assert "PNGs need Chrome or Chromium, and none could be started." in capsys.readouterr().err


@pytest.mark.more
def test_every_plot_becomes_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("kaleido")
    image = pytest.importorskip("PIL.Image")
    from choreographer.browsers import Chromium

    if Chromium.find_browser(skip_local=False) is None:
        pytest.skip("no Chromium (Debian: apt-get install chromium)")
    assert main([str(write_run(tmp_path / "run")), f"--png={tmp_path / 'png'}"]) == ExitCode.FINISHED
    names = [
        "lag",
        "lag-effects",
        "lag-histogram",
        "lag-sources",
        "reward",
        "reward-by-time",
        "throughput",
        "time-shares",
    ]
    assert sorted(path.stem for path in (tmp_path / "png").iterdir()) == names
    for name in names:
        with image.open(tmp_path / "png" / f"{name}.png") as picture:
            assert picture.width == 1520
            assert len(picture.convert("RGB").getcolors(1 << 20)) > 20, "something is drawn"


def test_open_shows_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a browser that notes what it was given."""
    shown = tmp_path / "shown"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {shlex.quote(str(shown))}\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    path = write_run(tmp_path / "run")
    name = str(path)
    for words in ([name, "--open=True"], [name, "--open"], ["--open", name], ["--open", "True", name]):
        assert main(words) == ExitCode.FINISHED
        assert shown.read_text().strip() == (path / "report.html").as_uri()
        shown.unlink()
