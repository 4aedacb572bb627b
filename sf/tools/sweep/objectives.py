"""Whether the runs of a sweep can have its objective."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Collection

from sf.monitor import tags

SCALARS = "reward", "frames", "wall_time_s"
"""Objectives that are in the summary of every run."""
OPEN = "train"
"""The family in which algorithms have curves of their own."""


def objective_problem(objective: str, flags: Collection[str]) -> str:
    """A sentence about an objective that no run can have; "" for any other.

    Args:
        objective: of the file.
        flags: names of those that the file gives.
    """
    if objective in SCALARS:
        return ""
    family, is_curve, _ = objective.partition("/")
    if not is_curve:
        return f"objective={objective!r} must be {', '.join(SCALARS)}, or a scalar like eval/reward."
    rows = (*tags.RUN, *tags.FAULTS, *tags.TRAIN, *tags.EVALUATION)
    known = [tag for row in rows for tag in row.tags.split() if not tag.endswith("histogram")]
    if family != OPEN and not any(fnmatch.fnmatchcase(objective, tag) for tag in known):
        near = difflib.get_close_matches(objective, known, 1, 0.5)
        meant = f"Did you mean {near[0]}?" if near else "docs/reference/metrics.md lists the curves."
        return f"objective={objective!r} is no curve of a run. {meant}"
    if family == "eval" and "eval_every_steps" not in flags:
        return f"objective={objective!r} needs evaluations. Give eval_every_steps in [flags]."
    return ""
