"""``sf ls``: the runs of a directory as a table, and removing those that are not needed any more."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sf.cli.command import run_command
from sf.errors import ExitCode, ExperimentError, UsageError

if TYPE_CHECKING:
    from sf.storage.runs import Run

DESCRIPTION = (
    "The runs of a directory. RUN is a name; none means all of them. Example: sf ls --env=CartPole --sort=score"
)
HEAD = ("run", "environment", "frames", "score", "state", "size", "age")


@dataclass(frozen=True)
class RunsConfig:
    """Which runs are shown, in which order, and what is removed of them."""

    experiment: tuple[str, ...] = ()
    """Names of runs; none for all."""
    train_dir: str = "train_dir"
    """Directory that holds the experiments."""
    env: str = ""
    """Only runs whose environment has this in its name."""
    state: Literal["any", "running", "ended", "stopped", "failed", "killed", "empty"] = "any"
    """Only runs that stand so. Stopped is by a signal; killed has left no summary; empty has never begun."""
    sort: Literal["age", "name", "env", "frames", "score", "size"] = "age"
    """The order: the newest, largest or best first, names from A to Z."""
    prune: bool = False
    """Remove all checkpoints of these runs but the newest and the best one."""
    delete: bool = False
    """Remove these runs; those that go on are left alone."""
    yes: bool = False
    """Remove without asking."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run_command(_list, arguments)


def _list(arguments: Sequence[str]) -> int:
    from sf.cli.arguments import parse
    from sf.storage.experiment import hint_at
    from sf.storage.runs import directories_of_runs, runs_in

    config = parse(RunsConfig, arguments, "sf ls", DESCRIPTION, (), runs="experiment")
    if config.prune and config.delete:
        raise UsageError("--prune keeps a part of what --delete removes. Give one of them.")
    directory = Path(config.train_dir)
    if not directory.is_dir():
        raise ExperimentError(
            f"There is no directory {directory.absolute()}. Give the one of the runs: --train_dir=DIR"
        )
    there = runs_in(directory)
    names = [run.name for run in there]
    if unknown := [name for name in config.experiment if name not in names]:
        hint = hint_at(unknown[0], names)
        if (directory / unknown[0]).is_dir() and runs_in(directory / unknown[0]):  # those of a sweep
            hint = f"The directory of this name holds runs itself: sf ls --train_dir={directory / unknown[0]}"
        raise ExperimentError(f"There is no run {unknown[0]!r} in {directory.absolute()}. {hint}")
    chosen = [run for run in there if _is_chosen(config, run)]
    chosen.sort(key=lambda run: _place(config.sort, run))
    print(table(chosen, time.time()) if chosen else f"No run in {directory.absolute()} is one of these.")
    asks_for_all = config == RunsConfig(train_dir=config.train_dir, sort=config.sort)
    if asks_for_all and (further := directories_of_runs(directory)):
        example = shlex.quote(str(directory / further[0]))
        print(f"{', '.join(further)}: more runs, such as those of a sweep (--train_dir={example}).")
    if chosen and (config.prune or config.delete):
        _remove(config, chosen)
    return ExitCode.FINISHED


def _is_chosen(config: RunsConfig, run: Run) -> bool:
    is_named = not config.experiment or run.name in config.experiment
    return is_named and config.env in run.env and config.state in ("any", run.state)


def _place(order: str, run: Run) -> Any:
    """What to sort by: small comes first, and runs without a score last."""
    score = (run.score is None, -(run.score or 0.0))
    places = {"age": -run.changed_s, "name": run.name, "env": run.env, "frames": -run.frames, "score": score}
    return places.get(order, -run.num_bytes)


def table(runs: Sequence[Run], now_s: float) -> str:
    """A line for each run, in columns."""
    from sf.console import rounded

    rows = [
        (
            run.name, run.env, f"{run.frames:,}", "-" if run.score is None else rounded(run.score), run.state,
            in_bytes(run.num_bytes), in_time(now_s - run.changed_s),
        )
        for run in runs
    ]  # fmt: skip
    widths = [max(map(len, column)) for column in zip(HEAD, *rows, strict=True)]
    is_text = (True, True, False, False, True, False, False)
    lines = [
        "  ".join(
            cell.ljust(width) if left else cell.rjust(width)
            for cell, width, left in zip(row, widths, is_text, strict=True)
        ).rstrip()
        for row in (HEAD, *rows)
    ]
    return "\n".join(lines)


def _remove(config: RunsConfig, runs: Sequence[Run]) -> None:
    """After a question, unless the user has answered it.

    Raises:
        UsageError: standard input is no terminal, so the question has no answer.
    """
    from sf.storage.runs import prune, remove

    size = in_bytes(sum(run.num_bytes for run in runs))
    several = f"{len(runs)} run{'s' if len(runs) > 1 else ''}"
    what = f"Delete {several}, {size}" if config.delete else f"Remove older checkpoints of {several}"
    if not config.yes:
        if not sys.stdin.isatty():
            raise UsageError(f"{what}? There is no terminal to ask. Add --yes.")
        if input(f"{what}? [y/N] ").strip().lower() not in ("y", "yes"):
            print("Nothing was removed.")
            return
    freed = 0
    for run in runs:
        removed = (run.num_bytes if remove(run) else None) if config.delete else prune(run)
        if removed is None:
            print(f"{run.name} is in use and stays as it is.")
        freed += removed or 0
    print(f"{in_bytes(freed)} are free.")


def in_bytes(number: float) -> str:
    """A size for people, such as ``1.2 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def in_time(seconds: float) -> str:
    """An age for people, such as ``3 h``."""
    for unit, length in (("s", 60), ("min", 60), ("h", 48)):
        if seconds < length:
            return f"{max(0.0, seconds):.0f} {unit}"
        seconds /= 24 if unit == "h" else 60
    return f"{seconds:.0f} d"


if __name__ == "__main__":
    sys.exit(main())
