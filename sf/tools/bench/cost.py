"""The CPU time that a sample costs in a run, part by part."""

from __future__ import annotations

from collections.abc import Mapping

from sf.monitor.time_shares import ACT, WAIT
from sf.tools.bench.usage import Usage

ENVIRONMENT, ACTING, WRITING, BATCH, UPDATE, PUBLISHING, SUPERVISION = PARTS = (
    "environment", "acting", "writing", "batch", "update", "publishing", "supervision",
)  # fmt: skip
ACTIVITIES: Mapping[str, Mapping[str, str]] = {
    "rollout": {"step": WRITING, "write": WRITING, ACT: ACTING},
    "inference": dict.fromkeys(("weights", "gather", "forward", "scatter"), ACTING),
    "learner": {"batch": BATCH, "update": UPDATE, "publish": PUBLISHING, "save": PUBLISHING},
}
"""The part that each activity of a role belongs to; of a step the environment takes its share."""


def parts_of(usage: Usage) -> dict[str, float]:
    """Seconds of CPU time for a sample, by part.

    The CPU time of a process is dealt to its activities by the time that they take on the clock, waiting left out.
    Where one process runs all roles, that time counts itself, and what is left of its CPU time is supervision.

    Args:
        usage: the growth of all counters over a run.
    """
    seconds = dict.fromkeys(PARTS, 0.0)
    inside = usage.inside / usage.timed if usage.timed else 1.0
    for name, activities in usage.activities.items():
        parts = ACTIVITIES.get(name.split("-")[0], {})
        work = {activity: taken for activity, taken in activities.items() if activity != WAIT}
        total = sum(work.values())
        scale = usage.cpu.get(name, total) / total if total else 0.0
        for activity, taken in work.items():
            own = taken * scale
            if activity == "step":
                seconds[ENVIRONMENT] += own * inside
                own -= own * inside
            seconds[parts.get(activity, SUPERVISION)] += own
    seconds[SUPERVISION] += max(0.0, sum(usage.cpu.values()) - sum(seconds.values()))
    return {part: taken / usage.samples for part, taken in seconds.items()}


def part_lines(costs: Mapping[str, float]) -> list[str]:
    """The lines for the user, in microseconds."""
    lines = [f"  {part:<12} {1e6 * taken:10.3f} us" for part, taken in costs.items()]
    return ["CPU time per sample:", *lines, f"  {'together':<12} {1e6 * sum(costs.values()):10.3f} us"]
