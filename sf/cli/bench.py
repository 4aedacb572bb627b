"""``sf-bench``: the cost of a sample, the distance of a run from the limit of the machine, and latencies."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sf.cli.command import run_command
from sf.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from sf.config import Config

COMMANDS = {
    "roofline": "measure what one sample costs in isolation, and print the limit that follows for all cores",
    "train": "run the real system; print samples/s, percent of that limit, time shares and a verdict",
    "latency": "run the real system; print how long requests and new weights take, as percentiles",
}
KEEPS_NOTHING = ("train_dir", "experiment", "restart_behavior")
SECONDS = "20"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run_command(lambda: _bench(sys.argv[1:] if arguments is None else arguments))


def _bench(arguments: Sequence[str]) -> int:
    if arguments and arguments[0] in ("-h", "--help"):
        print(_usage())
        return ExitCode.FINISHED
    if not arguments or arguments[0] not in COMMANDS:
        found = f"found {arguments[0]!r}" if arguments else "found nothing"
        raise UsageError(
            f"The first argument must be roofline, train or latency, {found}. Example: sf-bench roofline "
            "--env=CartPole-v1"
        )
    command, *flags = arguments
    config = _config(command, flags)
    from sf.output import stdout_goes_to
    from sf.processes.process import set_title
    from sf.tools.bench import measurements

    set_title("bench")
    measurement: Callable[[Config], list[str]] = getattr(measurements, command)
    with stdout_goes_to(2):  # so that standard output has the figures alone
        lines = measurement(config)
    print("\n".join(lines))
    return ExitCode.FINISHED


def _config(command: str, flags: Sequence[str]) -> Config:
    """The configuration from the flags; a run ends after some seconds."""
    from sf.cli.train import parse_config
    from sf.config import check

    given = {flag.partition("=")[0].removeprefix("--").replace("-", "_") for flag in flags if flag.startswith("--")}
    if found := [f"--{name}" for name in KEEPS_NOTHING if name in given]:
        raise UsageError(f"sf-bench keeps nothing that it trains, so {', '.join(found)} cannot be given.")
    if "train_for_seconds" not in given:
        flags = [*flags, f"--train_for_seconds={SECONDS}"]
    config = parse_config(flags, f"sf-bench {command}", COMMANDS[command].capitalize() + ".")
    check(config)  # before anything is imported or started
    if config.run.device != "cpu" and command != "latency":
        raise UsageError(
            f"sf-bench {command} compares CPU time, which says nothing about --device={config.run.device}. Leave it "
            "out here, or look at perf/_fps of a run of sf-train."
        )
    return config


def _usage() -> str:
    lines = [f"  {name:<10} {what}" for name, what in COMMANDS.items()]
    return "\n".join(
        ["usage: sf-bench COMMAND --env=... [flags of sf-train]", "", *lines, "", "Flags: sf-bench COMMAND --help"]
    )


if __name__ == "__main__":
    sys.exit(main())
