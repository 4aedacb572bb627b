"""What children start, and how it is found, however it was started and at whatever moment."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest

from sf.processes.simulators import Simulators, kill_marked, marked


def test_fault_a14_who_takes_long_to_die_is_reaped_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is looked for again it bears no mark any more."""
    simulators, wait_procs, waits = Simulators(), psutil.wait_procs, []

    def die_late(processes: Iterable[psutil.Process], timeout: float) -> Any:
        waits.append(timeout)
        if len(waits) == 1:  # over before anybody has died
            return [], list(processes)
        return wait_procs(processes, timeout)

    mark = simulators.mark_of("learner-0", 0)
    with marked(mark):
        program = subprocess.Popen(["/bin/sleep", "1000"])
    try:
        monkeypatch.setattr(psutil, "wait_procs", die_late)
        kill_marked(mark)
        assert not psutil.pid_exists(program.pid)
    finally:
        program.kill()
        program.wait()
        simulators.close()


def test_fault_a14_orphans_that_left_the_session_are_reaped_and_children_of_others_are_not(tmp_path: Path) -> None:
    simulators = Simulators()
    child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
    alone = subprocess.Popen([sys.executable, "-c", "raise SystemExit(8)"], start_new_session=True)
    try:
        with marked(simulators.mark_of("rollout-0", 0)):
            program = f"echo $$ > {tmp_path}/pid; while [ ! -e {tmp_path}/done ]; do sleep 0.05; done"
            subprocess.run(f"setsid sh -c '{program}' &", shell=True, check=True)
        deadline = time.monotonic() + 20
        while not (pid := "".join(path.read_text() for path in tmp_path.glob("pid"))):
            time.sleep(0.02)
        orphan = int(pid)  # adopted by this process
        while not {child.pid, alone.pid, orphan} <= zombies():
            assert time.monotonic() < deadline, zombies()
            simulators.reap()
            if orphan in simulators._daemons:
                (tmp_path / "done").touch()
            if orphan not in {one.pid for one in psutil.Process().children()}:
                break
            time.sleep(0.02)
        simulators.reap()
        assert orphan not in zombies()
        assert (child.wait(), alone.wait()) == (7, 8)
    finally:
        child.wait()
        alone.wait()
        simulators.close()


def test_fault_a10_watchdog_that_cannot_be_replaced_now_is_replaced_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the machine gives no more processes there is none, which ends nothing."""
    simulators, nobody = Simulators(), 2**22
    try:
        first = simulators._watchdog
        first.kill()
        first.wait()
        with monkeypatch.context() as patch:
            patch.setattr(subprocess, "Popen", refuse)
            assert "temporarily unavailable" in simulators.reap()
            assert simulators.reap() == "", "once"
            simulators.watch(nobody)
            simulators.end_of(nobody, simulators.mark_of("rollout-0", 0), is_reaped=False)
        simulators.reap()
        assert simulators._watchdog.pid != first.pid
        assert simulators._watchdog.poll() is None
    finally:
        simulators.close()


def zombies() -> set[int]:
    """Children of this process that nobody has waited for."""
    return {one.pid for one in psutil.Process().children() if one.status() == psutil.STATUS_ZOMBIE}


def refuse(*_: Any, **__: Any) -> None:
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
