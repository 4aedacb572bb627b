"""`sf doctor`: the page about a machine and an installation."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sf.cli.doctor import main
from sf.errors import ExitCode, ResourceError
from sf.shared.arena import Array
from sf.tools.doctor import handovers, litmus, machine, software, training
from sf.tools.doctor.findings import Finding, findings


def states(found: Iterator[Finding]) -> dict[str, str]:
    return {finding.subject: finding.state for finding in found}


def test_this_machine_is_well(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/tmp")
    assert main(["--seconds=0"]) == ExitCode.FINISHED
    printed = capfd.readouterr().out
    for subject in ("python", "packages", "processor", "kernel", "memory", "limits", "runs", "accelerator", "compiler"):
        assert f" {subject} " in printed
    assert "\nDoes not work: 0. " in printed
    assert "training" not in printed


@pytest.mark.more
def test_hand_overs_and_a_training() -> None:
    (read,) = handovers.handovers(0.3)
    assert read.state == "ok", read
    assert "none torn" in read.found
    (trained,) = training.training(1.0)
    assert trained.state == "ok", trained
    assert "frames in" in trained.found


def test_a_check_that_breaks_is_a_line_and_the_page_goes_on() -> None:
    def refused() -> Iterator[Finding]:
        raise ResourceError("There is no room. Make some.")
        yield

    def broken() -> Iterator[Finding]:
        yield Finding("one", "ok", "found")
        raise KeyError("two")

    found = list(findings([("room", refused), ("one", broken), ("three", lambda: [Finding("three", "note", "so")])]))
    assert [(finding.subject, finding.state) for finding in found] == [
        ("room", "fail"), ("one", "ok"), ("one", "fail"), ("three", "note"),
    ]  # fmt: skip
    assert "Make some" in str(found[0])
    assert "KeyError" in str(found[2])


def everywhere(litmus: Any) -> Array:
    """The numbers behind the words of a litmus."""
    if litmus.name == "weights":
        buffers: Array = litmus.weights._views()[1]
        return buffers
    name = {"records": "records/learner", "slots": "observations/obs", "exchange": "exchange/weight"}
    array: Array = litmus.arena[name.get(litmus.name, "actions")]
    return array


@pytest.mark.parametrize("make", [make for make in litmus.LITMUSES if make is not litmus.MailboxLitmus])
def test_torn_reads_are_counted(make: Callable[[], Any]) -> None:
    """A third party writes behind the words; without it nothing is torn. A torn message cannot even be unpickled."""
    for is_spoiled in (False, True):
        hammered, stop = make(), litmus.Stop()
        spoiled = everywhere(hammered)

        def spoil(spoiled: Array = spoiled, stop: litmus.Stop = stop) -> None:
            while stop.go_on():
                spoiled.reshape(-1)[-1] = 5.5
                time.sleep(0)

        with ThreadPoolExecutor(2) as pool, sooner_switches():
            if is_spoiled:
                pool.submit(spoil)
            taking = pool.submit(hammered.take_over, stop.go_on)
            end_s = time.monotonic() + 0.4
            reads = hammered.hand_over(lambda end_s=end_s: time.monotonic() < end_s)
            stop.set(True)
            reads = reads.and_those(taking.result(10))
        assert reads.number > 0
        assert (reads.torn > 0) == is_spoiled, reads


@contextlib.contextmanager
def sooner_switches() -> Iterator[None]:
    """Between threads, which then are what processes are."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def test_reads_that_go_backwards_are_counted() -> None:
    tally = litmus.ReadCount()
    for version in (4, 3, 3, 5):
        tally.look(version, [version] * 3)
    assert tally.reads == (4, 0, 1)


@pytest.mark.more
def test_a_hand_over_that_fails_in_the_other_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handovers, "LITMUSES", [BrokenLitmus])
    (found,) = handovers.handovers(0.1)
    assert (found.state, found.found) == ("fail", "broken: KeyError: 'no such word'")


@pytest.mark.more
def test_the_end_of_the_other_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handovers, "LITMUSES", [CrashedLitmus])
    (found,) = handovers.handovers(0.1)
    assert (found.state, found.found) == ("fail", "the other process has ended with exit code 3")


class CrashedLitmus:
    """The other process crashes."""

    name = "crashed"

    def hand_over(self, go_on: Callable[[], bool]) -> litmus.Reads:
        return litmus.Reads()

    def take_over(self, go_on: Callable[[], bool]) -> litmus.Reads:
        os._exit(3)


class BrokenLitmus:
    """The other process cannot take over."""

    name = "broken"

    def hand_over(self, go_on: Callable[[], bool]) -> litmus.Reads:
        return litmus.Reads()

    def take_over(self, go_on: Callable[[], bool]) -> litmus.Reads:
        raise KeyError("no such word")


def test_the_page_says_what_keeps_the_order_of_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr(machine, "DESCRIPTION", "fences")
    first, *_ = findings([("processor", machine.processor)])
    assert first.state == "ok"
    assert "(aarch64)" in first.found
    assert first.found.endswith("fences")


def test_little_room_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gone = type("Usage", (), {"free": 1000, "total": 2000})
    monkeypatch.setattr("shutil.disk_usage", lambda _: gone)
    monkeypatch.setattr(machine, "available_memory", lambda: (1000, "container"))
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (100, 100))
    assert states(machine.memory()) == {"memory": "note", "shared memory": "note"}
    assert states(machine.places(tmp_path / "new")) == {"runs": "note"}
    assert [finding.state for finding in machine.limits()] == ["note"] * 3


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert states(machine.places(tmp_path / "runs")) == {"runs": "fail"}


def test_without_a_compiler_and_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    (found,) = software.compiler()
    assert found.state == "note"
    assert "install gcc" in found.advice
    monkeypatch.setattr(software, "requires", lambda _: ["numpy>=1", "no-such-package>=2; python_version > '3'"])
    assert [(finding.subject, finding.state) for finding in software.packages()][:2] == [
        ("packages", "fail"), ("packages", "ok"),
    ]  # fmt: skip


def test_a_driver_without_a_torch_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    (found,) = software.accelerators()
    assert found.state == "note"


def test_a_training_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Any, **__: Any) -> Any:
        return type("Done", (), {"returncode": 5, "stderr": "one\nResourceError: no memory\n", "stdout": ""})

    monkeypatch.setattr("subprocess.run", refuses)
    (found,) = training.training(1.0)
    assert found == Finding("training", "fail", "exit code 5: ResourceError: no memory")


def test_it_needs_no_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sf.tools.doctor.findings.findings", lambda checks: iter(()))
    assert main([]) == 0
