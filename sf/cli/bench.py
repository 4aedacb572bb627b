"""``sf-bench``: the cost of a sample, the distance of a run from the limit of the machine, and latencies."""

from __future__ import annotations

import argparse
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
    "cost": "run the real system; print the CPU time that a sample takes, part by part",
    "predict": "run the real system; print what it would do with other --cores and --gpus, and what would limit it",
    "latency": "run the real system; print how long requests and new weights take, as percentiles",
}
KEEPS_NOTHING = ("train_dir", "experiment", "restart_behavior")
SECONDS = "20"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run_command(_bench, arguments)


def _bench(arguments: Sequence[str]) -> int:
    if arguments and arguments[0] in ("-h", "--help"):
        print(_usage())
        return ExitCode.FINISHED
    if not arguments or arguments[0] not in COMMANDS:
        found = f"found {arguments[0]!r}" if arguments else "found nothing"
        raise UsageError(
            f"The first argument must be {', '.join([*COMMANDS][:-1])} or {[*COMMANDS][-1]}, {found}. Example: "
            "sf-bench roofline --env=CartPole-v1"
        )
    command, *flags = arguments
    machine: list[int] = []
    if command == "predict":
        flags, machine = _without_machine(flags)
    config = _config(command, flags)
    from sf.output import stdout_goes_to
    from sf.processes.process import set_title
    from sf.tools.bench import measurements

    set_title("bench")
    measurement: Callable[..., list[str]] = getattr(measurements, command)
    with stdout_goes_to(2):  # so that standard output has the figures alone
        lines = measurement(config, *machine)
    print("\n".join(lines))
    return ExitCode.FINISHED


def _without_machine(flags: Sequence[str]) -> tuple[list[str], list[int]]:
    """The flags of the run, and the numbers of cores and GPUs of another machine."""
    parser = argparse.ArgumentParser(prog="sf-bench predict", add_help=False, allow_abbrev=False)
    parser.add_argument("--cores")
    parser.add_argument("--gpus", default="0")
    machine, rest = parser.parse_known_args(flags)
    if {"-h", "--help"} & {*rest}:
        return rest, []
    numbers = []
    for name, text, least in (("cores", machine.cores, 1), ("gpus", machine.gpus, 0)):
        if text is None or not text.isdecimal() or int(text) < least:
            found = "nothing" if text is None else repr(text)
            raise UsageError(
                f"sf-bench predict --{name} is the number of {name} of the other machine, at least {least}; found "
                f"{found}. Example: sf-bench predict --cores=64 --env=CartPole-v1"
            )
        numbers.append(int(text))
    return rest, numbers


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
