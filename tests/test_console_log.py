"""The console log: lines of all processes of a run, in a file that does not grow without limit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sf.console import Console, forget_unlogged, log_to, logged, logged_to
from sf.console_log import SHORTENED, ConsoleLog
from sf.processes.disposable import in_disposable_child
from tests.helpers.commands import CARTPOLE, EXPERIMENT, run


def test_a_log_that_is_full_keeps_its_newer_half(tmp_path: Path) -> None:
    log = ConsoleLog(tmp_path / "log", most_bytes=1000)
    for number in range(500):
        log.append(f"line {number}\n")
        assert (tmp_path / "log").stat().st_size <= 1000 + 20
    lines = (tmp_path / "log").read_text().splitlines(keepends=True)
    assert lines[0] == SHORTENED
    first = int(lines[1].split()[1])
    assert lines[1:] == [f"line {number}\n" for number in range(first, 500)]
    assert len(lines) > 40
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_a_process_that_may_not_shorten_stops_at_twice_the_size(tmp_path: Path) -> None:
    log = ConsoleLog(tmp_path / "log", may_shorten=False, most_bytes=1000)
    for _ in range(500):
        log.append("a line\n")
    assert 2000 <= (tmp_path / "log").stat().st_size < 2010


def test_a_directory_that_has_gone_stops_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with logged(tmp_path / "gone" / "log", "sf-train"):
        Console().plain("a line")
    assert capsys.readouterr().out == "a line\n"


def test_the_log_has_lines_from_before_it_and_the_error(tmp_path: Path) -> None:
    console = Console()
    console.plain("of another run")
    forget_unlogged()
    console.plain("found before there was a directory")
    with pytest.raises(ValueError, match="broken"), logged(tmp_path / "log", "sf-train --env=A"):
        breaks(console)
    console.plain("afterwards")
    assert logged_to() is None
    assert (tmp_path / "log").read_text() == (
        "$ sf-train --env=A\nfound before there was a directory\na line\nValueError: it is\nbroken\n"
    )


def breaks(console: Console) -> None:
    console.plain("a line")
    raise ValueError("it is\nbroken")


def says(text: str) -> None:
    Console().plain(text)


def test_children_write_into_the_log_of_their_parent(tmp_path: Path) -> None:
    with logged(tmp_path / "log", "sf-train"):
        in_disposable_child(says, "from a child", timeout_s=60.0, what="A child that says something")
    assert "from a child\n" in (tmp_path / "log").read_text()


@pytest.mark.more
def test_a_run_leaves_what_it_has_printed_and_a_resume_adds_to_it(tmp_path: Path) -> None:
    first = run(tmp_path, *CARTPOLE, "--train_for_env_steps=2000")
    second = run(tmp_path, *CARTPOLE, "--train_for_env_steps=6000")
    assert (first.code, second.code) == (0, 0), first.err + second.err
    text = (tmp_path / EXPERIMENT / "console.log").read_text()
    assert text.count(f"$ {sys.executable} -m sf.cli.train --env=CartPole-v1") == 2
    for finished in first, second:
        printed = finished.out[: finished.out.index("Checkpoints, curves and configuration")]
        assert printed in text
    assert text.index("Resumed from") > text.index(printed_last(first.out))


def printed_last(out: str) -> str:
    return next(line for line in out.splitlines() if "The run has ended" in line)


@pytest.fixture(autouse=True)
def _no_log_is_left() -> None:
    forget_unlogged()
    log_to(None)
