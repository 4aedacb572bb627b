"""Systems without Linux: everything imports there, serial runs train, and several processes are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sf.errors import ExitCode, ResourceError
from sf.machine import kernel
from sf.machine.cores import allowed_cores
from sf.machine.kernel import ensure_linux
from sf.processes.disposable import in_disposable_child
from sf.processes.simulators import Simulators
from sf.shared.arena import Arena, Field
from sf.shared.doorbell import Doorbell
from tests.helpers.commands import ROOT
from tests.helpers.without_linux import HIDDEN_NAMES, hidden_names

SERIAL = ("--env=CartPole-v1", "--serial_mode=True", "--seed=1", "--experiment=serial")


def without_linux(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command in a Python without the names that only Linux has."""
    place = {"PYTHONPATH": f"{ROOT}:{ROOT}/envs"}
    line = [sys.executable, "-m", "tests.helpers.without_linux", *words]
    return subprocess.run(line, capture_output=True, text=True, cwd=folder, env=os.environ | place, timeout=300)


@pytest.mark.more
def test_every_module_imports_without_linux(tmp_path: Path) -> None:
    done = without_linux(tmp_path, "import")
    assert done.returncode == 0, done.stderr
    there = {path.relative_to(ROOT).with_suffix("") for path in Path(ROOT, "sf").rglob("*.py")}
    modules = {".".join(path.parts) for path in there if path.name not in ("__init__", "__main__")}
    assert modules <= set(done.stdout.split())


@pytest.mark.more
def test_a_serial_run_trains_resumes_and_is_evaluated_without_linux(tmp_path: Path) -> None:
    for frames in (6000, 12000):
        done = without_linux(tmp_path, "train", *SERIAL, f"--train_for_env_steps={frames}", "--eval_every_steps=5000")
        assert done.returncode == 0, done.stderr
        summary = json.loads((tmp_path / "train_dir/serial/summary.json").read_text())
        assert summary["frames"] >= frames
    assert "Evaluating the last policy." in done.stdout
    assert "reward" in done.stdout.partition("Evaluating the last policy.")[2]
    done = without_linux(tmp_path, "evaluate", "--experiment=serial", "--num_episodes=5")
    assert done.returncode == 0, done.stderr
    assert "5 episodes of CartPole-v1" in done.stdout


@pytest.mark.more
@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (("train", "--env=CartPole-v1"), "--serial_mode=True"),
        (("bench", "latency", "--env=CartPole-v1"), "--serial_mode=True"),
        (("plan", f"{ROOT}/examples/plans/a2c.py", "--env=CartPole-v1"), "num_workers=0"),
    ],
)
def test_several_processes_are_refused_in_one_sentence(tmp_path: Path, words: tuple[str, ...], instead: str) -> None:
    done = without_linux(tmp_path, *words)
    assert done.returncode == ExitCode.RESOURCES
    assert done.stderr == (
        f"ResourceError: Several processes need Linux, but this system is darwin: use {instead}, or a machine or a "
        "container with Linux.\n"
    )


@pytest.mark.more
def test_the_doctor_says_that_runs_have_one_process(tmp_path: Path) -> None:
    done = without_linux(tmp_path, "doctor", "--seconds=0")
    assert done.returncode == 0, done.stdout
    assert "darwin, one process. Use --serial_mode=True" in done.stdout


def test_the_names_are_those_of_this_python() -> None:
    """So that each beginning still hides something."""
    assert all(hidden_names(module) for module in HIDDEN_NAMES)
    assert {"sched_getaffinity", "eventfd", "memfd_create", "pidfd_open"} <= set(hidden_names(os))


def test_what_stands_in_for_the_calls_of_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("eventfd", "memfd_create", "posix_fallocate", "sched_getaffinity"):
        monkeypatch.delattr(os, name)
    assert allowed_cores() == set(range(os.cpu_count() or 1))
    bell = Doorbell()
    for _ in range(100_000):  # more than a pipe holds
        bell.ring()
    assert bell.wait(0.0)
    assert not bell.wait(0.0)
    arena = Arena({"numbers": Field((3, 2), "int64", 7)})
    arena["numbers"][1] += 1
    again = Arena(arena.fields, arena.block)
    assert again["numbers"].tolist() == [[7, 7], [8, 8], [7, 7]]


def test_a_look_is_taken_in_this_process_where_there_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert in_disposable_child(os.getpid, what="A look") == os.getpid()
    with pytest.raises(Exception, match=r"A look.*invalid literal"):
        in_disposable_child(int, "x", what="A look")
    with pytest.raises(ResourceError, match="use --serial_mode=True"):
        Simulators()
    monkeypatch.setattr(sys, "platform", "linux")
    ensure_linux()
    assert kernel.is_linux()
