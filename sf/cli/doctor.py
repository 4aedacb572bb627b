"""``sf doctor``: whether this machine and this installation can train, and what would make them better at it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from sf.cli.command import run_command
from sf.config.ranges import AT_LEAST_0
from sf.errors import ExitCode

DESCRIPTION = "Look at this machine and this installation. Example: sf doctor"


@dataclass(frozen=True)
class DoctorConfig:
    """How long it takes."""

    seconds: Annotated[float, AT_LEAST_0] = 5.0
    """For the litmus test of shared memory, and again for the training; 0 leaves both out."""
    train_dir: str = "train_dir"
    """Directory where runs are to be."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run_command(_look, arguments)


def _look(arguments: Sequence[str]) -> int:
    """Prints a line for each finding; something that does not work has an exit code of its own."""
    from sf.cli.arguments import parse
    from sf.tools.doctor import handovers, machine, software, training
    from sf.tools.doctor.findings import Check, findings

    config = parse(DoctorConfig, arguments, "sf doctor", DESCRIPTION, ())
    checks: list[tuple[str, Check]] = [
        ("python", software.python),
        ("packages", software.packages),
        ("processor", machine.processor),
        ("kernel", machine.kernel),
        ("memory", machine.memory),
        ("limits", machine.limits),
        ("runs", functools.partial(machine.places, Path(config.train_dir))),
        ("accelerator", software.accelerators),
        ("compiler", software.compiler),
    ]
    if config.seconds > 0:
        checks.append(("hand-overs", functools.partial(handovers.handovers, config.seconds)))
        checks.append(("training", functools.partial(training.training, config.seconds)))
    states = []
    for finding in findings(checks):
        print(finding, flush=True)
        states.append(finding.state)
    failed, noted = states.count("fail"), states.count("note")
    print(f"\nDoes not work: {failed}. Could be better: {noted}. Add this page to a report of a fault.")
    return ExitCode.RESOURCES if failed else ExitCode.FINISHED


if __name__ == "__main__":
    sys.exit(main())
