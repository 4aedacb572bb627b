"""Commands that are forked from a Python that has loaded torch are what a new Python would be."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.commands import ROOT, Running, run, running
from tests.helpers.starter import ForkedCommand

PROGRAM = """
import json, multiprocessing.process, os, signal, sys, time

print(json.dumps({
    "name": __name__, "arguments": sys.argv, "line": sys.orig_argv, "path": sys.path, "folder": os.getcwd(),
    "began": multiprocessing.process.ORIGINAL_DIR, "leads": os.getsid(0) == os.getpid(), "spec": __spec__.name,
    "environment": {name: value for name, value in os.environ.items()},
    "descriptors": sorted(map(int, os.listdir("/proc/self/fd")))[:3],
    "handlers": [str(signal.getsignal(one)) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)],
    "tests": sorted(name for name in sys.modules if name.startswith("tests")),
}), flush=True)
if "wait" in sys.argv:
    time.sleep(60)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def python_path(tmp_path: Path) -> str:
    (tmp_path / "program.py").write_text(PROGRAM)
    return f"{ROOT}:{tmp_path}"


def test_a_fork_finds_what_a_new_python_finds(tmp_path: Path, python_path: str) -> None:
    found = []
    for in_new_python in (False, True):
        with running(
            tmp_path, "7", "a b", module="program", python_path=python_path, in_new_python=in_new_python
        ) as command:
            assert isinstance(command.process, subprocess.Popen if in_new_python else ForkedCommand)
            assert command.finish().code == 7
        found.append(json.loads(command.out))
    assert found[0] == found[1]
    assert found[0]["line"] == [sys.executable, "-m", "program", "7", "a b"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_fork(tmp_path: Path, python_path: str, number: signal.Signals) -> None:
    with running(tmp_path, "0", "wait", module="program", python_path=python_path) as command:
        command.wait_for_text('"tests"')
        assert expect_running(command) is None
        command.process.send_signal(number)
        assert command.process.wait(20.0) == -number
        command.process.send_signal(number)  # to one that has ended


def expect_running(command: Running) -> int | None:
    with pytest.raises(subprocess.TimeoutExpired):
        command.process.wait(0.01)
    return command.process.poll()


def test_variables_that_are_read_once_get_a_new_python(
    tmp_path: Path, python_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(tmp_path, "0", module="program", python_path=python_path).code == 0
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    with running(tmp_path, "0", module="program", python_path=python_path) as command:
        assert isinstance(command.process, subprocess.Popen)


@pytest.mark.parametrize("name", ["sitecustomize.py", "torch/__init__.py"])
def test_a_module_in_place_of_a_loaded_one_gets_a_new_python(tmp_path: Path, python_path: str, name: str) -> None:
    other = tmp_path / "other" / name
    other.parent.mkdir(parents=True)
    other.write_text("")
    with running(tmp_path, "0", module="program", python_path=f"{tmp_path / 'other'}:{python_path}") as command:
        assert isinstance(command.process, subprocess.Popen)
