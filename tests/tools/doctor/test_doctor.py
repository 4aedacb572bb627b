"""`sf doctor`: the page about a machine and an installation."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sf.cli.doctor import main
from sf.errors import ExitCode, ResourceError
from sf.shared.arena import SharedBlock
from sf.shared.weights import PublishedWeights
from sf.tools.doctor import handovers, machine, software, training
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


def test_torn_and_old_reads_are_counted() -> None:
    """A writer that publishes its word before the data, and a version that goes back."""
    weights = PublishedWeights(SharedBlock())
    weights.allocate(8)
    copy, stop = np.zeros(8, np.float32), threading.Event()

    def publish() -> None:
        while not stop.is_set():
            for version in (4, 3):
                weights.publish(version, lambda buffer, version=version: buffer.fill(version))  # type: ignore[misc]
                weights._views()[1][version % 2][5] = -1.0

    writer = threading.Thread(target=publish)
    writer.start()
    try:
        reads = handovers.reads(weights, copy, 0.5)
    finally:
        stop.set()
        writer.join()
    assert reads.torn > 0
    assert reads.backwards > 0


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
