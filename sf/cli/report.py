"""``sf-report``: a picture of the policy lag of a run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from sf.cli.command import run_command
from sf.config.ranges import AT_LEAST_0
from sf.errors import ConfigError, ExitCode

DESCRIPTION = "Draw the policy lag of a run, while it goes on or afterwards. Example: sf-report --experiment=cartpole"


@dataclass(frozen=True)
class ReportConfig:
    """Which run is drawn, and where to."""

    experiment: str | None = None
    """Name of the run."""
    train_dir: str = "train_dir"
    """Directory that holds the experiments."""
    policy_id: Annotated[int, AT_LEAST_0] = 0
    """Of a run with several policies."""
    output: str | None = None
    """The PNG file; None is policy_lag.png in the directory of the run."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run_command(lambda: _report(sys.argv[1:] if arguments is None else arguments))


def _report(arguments: Sequence[str]) -> int:
    from sf.cli.arguments import parse
    from sf.cli.experiments import experiment_directory
    from sf.config.checks import range_problems

    config = parse(ReportConfig, arguments, "sf-report", DESCRIPTION, "--experiment=default_experiment")
    if problems := range_problems(config):
        raise ConfigError(problems)
    from sf.report.lag_picture import draw_lag
    from sf.report.run_files import read_run
    from sf.storage.experiment import errors_told

    directory = experiment_directory(Path(config.train_dir), config.experiment or "")
    path = Path(config.output) if config.output else directory / "policy_lag.png"
    with errors_told(path.absolute()):
        draw_lag(read_run(directory, config.policy_id), path)
    print(f"Wrote {path}")
    return ExitCode.FINISHED


if __name__ == "__main__":
    sys.exit(main())
