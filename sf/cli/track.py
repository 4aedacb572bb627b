"""``sf-track``: the curves of a run for Weights & Biases or trackio."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sf.cli.command import run_command
from sf.cli.which import WhichRun
from sf.errors import ExitCode

DESCRIPTION = "Send the curves of a run to a tracker. Example: sf-track --experiment=cartpole --to=wandb"


@dataclass(frozen=True)
class TrackConfig(WhichRun):
    """Which run is sent, and where to."""

    to: Literal["wandb", "trackio"] = "wandb"
    """The tracker. It gets what it does not have yet."""
    project: str = "sf"
    """Name of the project there."""
    entity: str | None = None
    """User or team at wandb; None is the default of the account."""
    group: str | None = None
    """Group of runs there."""
    tags: str = ""
    """Words for wandb, with commas between them."""
    follow: bool = False
    """Go on until standard input ends; sf-train --with_wandb=True starts it so."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run_command(_track, arguments)


def _track(arguments: Sequence[str]) -> int:
    from sf.cli.arguments import parse
    from sf.cli.experiments import experiment_directory
    from sf.run.trackers import expect_installed
    from sf.storage.experiment import errors_told
    from sf.tools.tracking.sending import send

    config = parse(
        TrackConfig, arguments, "sf-track", DESCRIPTION, "--experiment=default_experiment", runs="experiment"
    )
    expect_installed(config.to)
    directory = Path(config.train_dir) / (config.experiment or "")
    if not config.follow:  # else it is about to be there
        directory = experiment_directory(Path(config.train_dir), config.experiment or "")
    tags = tuple(tag.strip() for tag in config.tags.split(",") if tag.strip())
    with errors_told(directory.absolute()):
        run_id, number = send(
            directory, config.to, config.project, sys.stdin.buffer if config.follow else None,
            entity=config.entity, group=config.group, tags=tags,
        )  # fmt: skip
    if not config.follow:
        print(f"Sent {number} points to {config.to}, project {config.project}, run {run_id}")
    return ExitCode.FINISHED


if __name__ == "__main__":
    sys.exit(main())
