"""What a spawned process is given reaches it, and nobody waits for one that does not take it."""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing import resource_tracker, spawn
from multiprocessing.connection import Connection
from threading import Thread

import pytest

from sf.processes.disposable import in_disposable_child
from sf.processes.simulators import MARK_LENGTH, starting
from sf.processes.spawning import command_line_in_file, spawned

LONG = "x" * 200_000
"""Three times as much as a pipe takes."""


def test_arguments_of_any_length_reach_a_process() -> None:
    assert in_disposable_child(len, LONG, timeout_s=60, what="A test") == len(LONG)


def tell_command_line(to: Connection) -> None:
    to.send(sys.argv)


@pytest.mark.parametrize("arguments", [["program", "--flag"], ["program", LONG]])
def test_command_line_of_any_length_is_told(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.setattr(sys, "argv", arguments)
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = spawned(tell_command_line, theirs)
    with starting("." * MARK_LENGTH):
        assert sys.argv == arguments
        process.start()
    assert ours.poll(60)
    assert ours.recv() == arguments
    process.join(10)
    assert sys.argv is arguments
    ours.close()
    theirs.close()


def test_fault_a4_start_does_not_wait_for_a_process_that_ends_before_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["program", LONG])
    resource_tracker.ensure_running()  # before Python is another program
    monkeypatch.setattr(spawn, "_python_exe", b"/bin/true")
    process = spawned(len, LONG)

    def start() -> None:
        with command_line_in_file():
            process.start()

    thread = Thread(target=start, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    process.join(10)
    assert process.exitcode == 0
