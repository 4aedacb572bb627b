"""Sweeps whose runs have an objective that is known beforehand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sf.cli.sweep import checked
from sf.errors import ExitCode
from sf.tools.sweep.conduct import Queue
from sf.tools.sweep.description import Description
from sf.tools.sweep.reading import read_description
from sf.tools.sweep.record import SweepRecord
from sf.tools.sweep.search import make_search
from sf.tools.sweep.trials import Trial, TrialOutcome, TrialRun

Objective = Callable[[dict[str, Any], int], float | None]
"""From the flags of a trial and the seed; None for a run that fails."""


def described(path: Path, tables: str, top: str = "") -> Description:
    """A sweep of CartPole below `path`."""
    file = path / "sweep.toml"
    file.write_text(f'sweep = "known"\ntrain_dir = "{path}"\n{top}\n[flags]\nenv = "CartPole-v1"\n{tables}')
    return read_description(file, checked)


def carried_out(
    description: Description, objective: Objective, search: str | None = None, most: int = 1000
) -> tuple[list[Trial], list[TrialRun]]:
    """The trials so far, and the runs of this start, which ends after the `most`-th one."""
    record = SweepRecord(description)
    queue = Queue(description, record, make_search(search, description, record), lambda line: None)
    runs: list[TrialRun] = []
    while len(runs) < most and (run := queue.next_run()) is not None:
        runs.append(run)
        value = objective(dict(record.trials[run.trial].flags), run.seed)
        failed = TrialOutcome("failed", ExitCode.ENVIRONMENT)
        queue.ended_run(run, failed if value is None else TrialOutcome("finished", ExitCode.FINISHED, value))
    record.close()
    return record.trials, runs
