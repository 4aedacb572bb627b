"""What came out of a sweep, as text: the table of trials and the best command line."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from sf.console import rounded
from sf.tools.sweep.description import Description
from sf.tools.sweep.record import SweepRecord
from sf.tools.sweep.trials import flags_of

MOST_SHOWN = 20
"""Trials in the table; results.csv has all."""


def table(description: Description, record: SweepRecord) -> str:
    """The trials by objective, the best one first, with the 95 % interval of the mean over seeds."""
    ranked, seeds = record.ranked(), len(description.settings.seeds)
    rows = [("trial", description.settings.objective, "low", "high", "seeds", *description.varied)]
    for trial, score in ranked[:MOST_SHOWN]:
        numbers = [rounded(number, 2) for number in (score.mean, score.low, score.high)]
        if score.count == 1:
            numbers[1:] = "-", "-"
        values = [_shown(trial.flags[name]) for name in description.varied]
        mark = " pruned" if record.is_pruned(trial) else ""
        rows.append((str(trial.number), *numbers, f"{score.count}/{seeds}{mark}", *values))
    failed = sum(outcome.state == "failed" for outcome in record.outcomes.values())
    notes = [f"{len(ranked) - MOST_SHOWN} others are in results.csv."] if len(ranked) > MOST_SHOWN else []
    notes += [f"{failed} of {len(record.outcomes)} runs failed; the next start tries them again."] if failed else []
    pruned = sum(record.is_pruned(trial) for trial in record.trials)
    notes += [f"{pruned} of {len(record.trials)} trials were pruned, and count with what they had reached."] * bool(
        pruned
    )
    return "\n".join([_aligned(rows), *notes])


def best_command(description: Description, record: SweepRecord) -> str:
    """The command line that trains with the best combination, ready to paste."""
    trial, _ = record.ranked()[0]
    flags = {**description.flags, **trial.flags}
    own = f"--experiment={description.settings.sweep}-best", f"--train_dir={description.settings.train_dir}"
    return shlex.join(["sf-train", *flags_of(flags.items()), *own])


def _shown(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows)
