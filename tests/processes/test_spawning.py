"""What a child is given reaches it, and nothing waits for one that does not take it."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from multiprocessing import spawn
from threading import Thread
from typing import Any

import psutil
import pytest

from sf.processes.child import Child
from sf.processes.disposable import in_disposable_child
from sf.processes.simulators import Simulators

LONG = "x" * 200_000
"""Three times as much as a pipe takes."""


@pytest.fixture
def simulators() -> Iterator[Simulators]:
    simulators = Simulators()
    yield simulators
    simulators.close()


def test_arguments_of_any_length_reach_a_process() -> None:
    assert in_disposable_child(len, LONG, timeout_s=60, what="A test") == len(LONG)


def command_line() -> list[str]:
    return sys.argv


@pytest.mark.parametrize("arguments", [["program", "--flag"], ["program", LONG]])
def test_command_line_of_any_length_is_told(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.setattr(sys, "argv", arguments)
    assert in_disposable_child(command_line, timeout_s=60, what="A test") == arguments


def surroundings() -> tuple[str, str, bool, str]:
    parent = multiprocessing.parent_process()
    assert parent is not None
    return (
        multiprocessing.current_process().name,
        multiprocessing.get_start_method(),
        parent.is_alive(),
        sys.stdin.read(),
    )


def test_fault_b18_child_is_one_of_multiprocessing_and_reads_no_terminal() -> None:
    ours, theirs = os.pipe()  # where a read would wait
    before = os.dup(0)
    os.dup2(ours, 0)
    try:
        found = in_disposable_child(surroundings, timeout_s=60, what="A test")
    finally:
        os.dup2(before, 0)
        for descriptor in (before, ours, theirs):
            os.close(descriptor)
    assert found == ("A test", "spawn", True, "")


def refuse(pid: int) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_fault_c4_child_that_cannot_be_watched_is_killed(
    monkeypatch: pytest.MonkeyPatch, simulators: Simulators
) -> None:
    before = {one.pid for one in psutil.Process().children()}
    with monkeypatch.context() as patch:
        patch.setattr(os, "pidfd_open", refuse)
        with pytest.raises(OSError, match="Too many open files"):
            Child("newborn", never_called, LONG, simulators=simulators)
    (newborn,) = (one for one in psutil.Process().children() if one.pid not in before)
    assert newborn.wait(10) == -signal.SIGKILL


def never_called(tell: Callable[[Any], None], text: str) -> None:
    raise AssertionError


def test_fault_a4_start_does_not_wait_for_a_process_that_ends_before_it_reads(
    monkeypatch: pytest.MonkeyPatch, simulators: Simulators
) -> None:
    monkeypatch.setattr(spawn, "_python_exe", b"/bin/true")
    children: list[Child] = []

    def start() -> None:
        children.append(Child("newborn", never_called, LONG, simulators=simulators))

    thread = Thread(target=start, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    (child,) = children
    child.reap(10)
    assert child.exit_code == 0
