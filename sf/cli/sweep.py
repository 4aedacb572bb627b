"""``sf-sweep``: many trainings from one file, and what came out of them."""

from __future__ import annotations

import contextlib
import io
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sf.cli.command import run_command
from sf.console import Console
from sf.errors import ConfigError, ExitCode, ExperimentError, UsageError

if TYPE_CHECKING:
    from sf.config import Config
    from sf.tools.sweep.description import Description
    from sf.tools.sweep.record import SweepRecord

DESCRIPTION = "Train with many combinations of flags. Example: sf-sweep examples/sweep.toml --search=random"


@dataclass(frozen=True)
class SweepConfig:
    """How a sweep is carried out; what it is about is in the file."""

    backend: Literal["local", "slurm", "ray"] = "local"
    """Where runs go: processes of this machine, jobs of Slurm by submitit, or trials of Ray Tune."""
    search: Literal["grid", "random", "tpe"] | None = None
    """Try all combinations, random ones, or those that Optuna's TPE expects to be good; None takes a grid where no flag
    has a range, else random."""
    prune: Literal["median", "none"] = "none"
    """End runs that are worse than the median of those before at the same place, by Optuna's median pruner."""
    show: bool = False
    """Start nothing and show what there is."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run_command(_sweep, arguments)


def _sweep(arguments: Sequence[str]) -> int:
    from sf.cli.arguments import parse
    from sf.tools.sweep.reading import read_description

    if not arguments or arguments[0].startswith("-"):
        if not {"-h", "--help"} & set(arguments):
            raise UsageError("The file of the sweep is missing. Give it first: sf-sweep examples/sweep.toml")
        parse(SweepConfig, ["--help"], "sf-sweep FILE", DESCRIPTION, ())
    file, *others = arguments
    flags = ["--show=True" if argument == "--show" else argument for argument in others]
    config = parse(SweepConfig, flags, f"sf-sweep {file}", DESCRIPTION, ())
    description = read_description(Path(file), checked)
    from sf.tools.sweep.record import SweepRecord

    record = SweepRecord(description, read_only=config.show)
    try:
        code = ExitCode.FINISHED if config.show else _conduct(config, description, record, file)
    finally:
        record.close()
    return code or _show(description, record)


def checked(flags: Mapping[str, Any]) -> Config:
    """The configuration of one run; `sf-train` refuses the same ones.

    Raises:
        SfError: with everything that is wrong.
    """
    from sf.cli.train import parse_config
    from sf.config import check
    from sf.tools.sweep.trials import flags_of

    with contextlib.redirect_stdout(io.StringIO()):  # a preset that is chosen by environment is told by the run
        config = parse_config(flags_of(flags.items()))
    problems: list[str] = []
    for each in (check, expect_plugin_settings):
        try:
            each(config)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return config


def expect_plugin_settings(config: Config) -> None:
    """Refuses settings that an encoder or algorithm does not take; a run tries it out as well.

    Raises:
        ConfigError: it does not take them, or cannot be imported.
    """
    from sf.config.checks import json_problems
    from sf.plugins import ALGORITHMS, ENCODERS
    from sf.plugins.settings import settings_for

    for plugins, name, text, num_given in (
        (ALGORITHMS, config.learner.algorithm, config.learner.algorithm_kwargs, 1),
        (ENCODERS, config.model.encoder, config.model.encoder_kwargs, 2),
    ):
        if name != plugins.default and text != "{}" and not json_problems("", text, ""):
            settings_for(plugins.kind, name, plugins.find(name), text, num_given)


def _conduct(config: SweepConfig, description: Description, record: SweepRecord, file: str) -> int:
    """Runs what is left of the sweep; returns 0, or the exit code of a sweep that shows nothing."""
    from sf.processes.signals import noted_signals
    from sf.tools.sweep.backends import local, slurm
    from sf.tools.sweep.conduct import Queue, drive
    from sf.tools.sweep.pruning import make_pruner
    from sf.tools.sweep.search import make_search

    pruner = make_pruner(config.prune, description, record)
    queue = Queue(description, record, make_search(config.search, description, record), _tell, pruner)
    jobs = description.settings.jobs
    if config.backend == "ray" and config.prune != "none":
        raise UsageError(f"--prune={config.prune} ends runs of --backend=local and slurm only. Leave it out with ray.")
    if config.backend == "ray":
        from sf.tools.sweep.ray_tune import drive_ray

        drive_ray(queue, description)  # which has a handler of its own for Ctrl-C
        return queue.exit_code() if queue.is_over else _stopped(config, file, ExitCode.SIGINT)
    if config.backend == "local":
        _tell_shared_cores(description)
    with contextlib.ExitStack() as stack:
        submit = stack.enter_context(local(jobs)) if config.backend == "local" else slurm(description)
        signals = stack.enter_context(noted_signals(second_one_exits=False))
        drive(queue, submit, jobs, signals, _tell)
    if signals.received:
        return _stopped(config, file, ExitCode.SIGINT if signals.first == signal.SIGINT else ExitCode.SIGTERM)
    return queue.exit_code()


def _stopped(config: SweepConfig, file: str, code: ExitCode) -> ExitCode:
    """Says how to go on, and hands the exit code back."""
    given = "" if config.backend == "local" else f" --backend={config.backend}"
    given += "" if config.search is None else f" --search={config.search}"
    given += "" if config.prune == "none" else f" --prune={config.prune}"
    _tell(f"Stopped. Go on with the same command: sf-sweep {shlex.quote(file)}{given}")
    return code


def _show(description: Description, record: SweepRecord) -> int:
    """The table, the picture and the best command line.

    Raises:
        ExperimentError: no run has ended with an objective.
    """
    from sf.storage.experiment import errors_told
    from sf.tools.sweep.picture import draw_sweep
    from sf.tools.sweep.results import best_command, table

    if not (ranked := record.ranked()):
        raise ExperimentError(f"No run of {record.path} has ended with a {description.settings.objective} yet.")
    _tell(f"\n{table(description, record)}\n")
    path = record.path / "sweep.png"
    try:
        with errors_told(path):
            draw_sweep(description, ranked, path, {each.number for each in record.trials if record.is_pruned(each)})
        _tell(f"Wrote {path}")
    except UsageError as error:  # the results are not to be had a second time for want of a picture
        _tell(str(error))
    _tell(f"Every run is in {record.path / 'results.csv'}. The best combination again:\n")
    _tell(f"  {best_command(description, record)}")
    return ExitCode.FINISHED


def _tell(text: str) -> None:
    Console().plain(text)


def _tell_shared_cores(description: Description) -> None:
    """Runs that do not know of each other take a worker for each core."""
    from sf.machine.cores import usable_cores

    jobs, cores = description.settings.jobs, usable_cores()
    run = checked({**description.flags, **description.first})
    processes = 1 if run.run.serial_mode else run.rollout.num_workers or cores
    if jobs > 1 and jobs * processes > cores:
        _tell(
            f"{jobs} runs at once with {processes} rollout workers each share {cores} cores. For the same speed alone "
            f"and together give num_workers = {max(1, cores // jobs)} in [flags], or fewer jobs."
        )


if __name__ == "__main__":
    sys.exit(main())
