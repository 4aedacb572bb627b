"""``sf-export``: write a policy for another runtime."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from sf.cli.command import run_command
from sf.cli.experiments import chosen_policy, trust
from sf.cli.which import WhichPolicy
from sf.config.ranges import AT_LEAST_0
from sf.errors import ConfigError, ExitCode

DESCRIPTION = "Write a policy for another runtime. Example: sf-export --experiment=cartpole --to=onnx"


@dataclass(frozen=True)
class ExportConfig(WhichPolicy):
    """Which policy is written where and how."""

    policy_id: Annotated[int, AT_LEAST_0] = 0
    """Number of the policy in a run with several ones."""
    to: Literal["onnx", "torchscript", "torch_export"] = "onnx"
    """Format of the file."""
    encoder: str | None = None
    """The encoder module:Name of the policy; a file does not get to import modules."""
    output: str | None = None
    """The file; None names it after the experiment or the directory."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run_command(_export, arguments)


def _export(arguments: Sequence[str]) -> int:
    from sf.cli.arguments import parse
    from sf.config.checks import range_problems

    required = "--experiment=default_experiment", "--policy=my_policy"
    config = parse(ExportConfig, arguments, "sf-export", DESCRIPTION, required, runs="experiment")
    if problems := range_problems(config):
        raise ConfigError(problems)
    trust(config.encoder)
    policy = chosen_policy(config.experiment, config.train_dir, config.checkpoint, config.policy_id, config.policy)
    from sf.policy.exporting import SUFFIXES, export_policy

    name = config.experiment or Path(config.policy or "").name
    path = export_policy(policy, config.output or f"{name}{SUFFIXES[config.to]}", config.to)
    print(f"Wrote {path} ({path.stat().st_size / 1024:.0f} KiB, {config.to})")
    return ExitCode.FINISHED


if __name__ == "__main__":
    sys.exit(main())
