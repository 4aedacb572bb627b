"""A process for a single call: nothing of it outlives the call, and nobody waits for what does not end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.commands import ROOT

INTERRUPTED = """
import os, signal, time
from multiprocessing import resource_tracker, util
from sf.cli.command import run_command
from sf.processes.disposable import in_disposable_child
from sf.processes.signals import early_signals

def interrupt_after(owner, name):
    call = getattr(owner, name)
    def interrupted(*arguments):
        result = call(*arguments)
        os.kill(os.getpid(), signal.SIGINT)
        return result
    setattr(owner, name, interrupted)

def look(_):
    early_signals()
    interrupt_after(PLACE)
    return in_disposable_child(time.sleep, 1000, timeout_s=1000, what="A look")

if __name__ == "__main__":
    raise SystemExit(run_command(look))
"""
BEFORE = INTERRUPTED.replace("PLACE", "resource_tracker, 'ensure_running'")
"""The signal comes before there is a process."""
MEANWHILE = INTERRUPTED.replace("PLACE", "util, 'spawnv_passfds'")
"""It comes while the process is started, when signals have to wait."""

UNKILLABLE = """
import os, psutil, time
from sf.processes.child import Child
from sf.processes import disposable
from sf.cli.command import run_command

def look(_):
    Child.kill = psutil.Process.kill = os.killpg = lambda *_: None
    disposable.KILL_GRACE_S = 1.0
    return disposable.in_disposable_child(time.sleep, 1000, timeout_s=1.0, what="A look")

if __name__ == "__main__":
    raise SystemExit(run_command(look))
"""


@pytest.mark.parametrize(("program", "code"), [(BEFORE, 130), (MEANWHILE, 130), (UNKILLABLE, 3)])
def test_fault_a17_e4_end_of_the_command_waits_for_no_first_look(tmp_path: Path, program: str, code: int) -> None:
    (tmp_path / "look.py").write_text(program)
    command = [sys.executable, "-u", str(tmp_path / "look.py")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env={"PYTHONPATH": ROOT})
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
