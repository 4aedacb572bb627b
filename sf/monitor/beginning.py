"""The lines of a run without anything to report yet: no batch is complete, or no episode has ended."""

from __future__ import annotations

from sf.monitor.hints import Seen
from sf.monitor.snapshot import Snapshot

ENDLESS_S, ENDLESS_STEPS = 30.0, 2_000
"""Training time and steps of each environment from which it is said that no episode has ended."""


def progress_of_first_batch(snapshot: Snapshot, needed: int, rollout: int) -> str:
    """How far the first batch is.

    Args:
        snapshot: before the first training iteration.
        needed: transitions of all policies in one training iteration.
        rollout: steps of a trajectory.
    """
    parts = [f"First batch: {snapshot.collected:,} of {needed:,} steps"]
    if snapshot.collected >= needed:
        parts.append(f"learners wait for whole trajectories of {rollout} steps")
    if snapshot.resetting:
        parts.append(f"rollout workers inside reset(): {snapshot.resetting}")
    return f"{'; '.join(parts)}."


def nothing_learned(first: Snapshot, last: Snapshot, needed: int, num_died: int = 0) -> str:
    """For the end of a run without a training iteration.

    Args:
        first, last: snapshots of the run.
        needed: transitions of all policies in one training iteration.
        num_died: trajectories of a group that were lost because their worker had died.
    """
    is_untrained = all(policy.version == 0 for policy in last.policies)
    saved = "Its checkpoints are untrained" if is_untrained else "Its checkpoints hold what was learned before"
    remedy = (
        "Let the run go on longer, or make the batch smaller with fewer --num_envs_per_worker, a smaller --rollout or "
        "a smaller --batch_size."
    )
    if num_died:
        lost = "1 trajectory was" if num_died == 1 else f"{num_died:,} trajectories were"
        remedy = f"{lost} lost because rollout workers died, as is said above: correct what they died of."
    return (
        f"Nothing was learned: in {last.time_s - first.time_s:.1f} s {last.collected:,} steps were collected, and a "
        f"training iteration takes {needed:,}. {saved}. {remedy}"
    )


class EndlessEpisodes:
    """Says once that no episode has ended, when that has lasted."""

    def __init__(self, num_envs: int, num_agents: int) -> None:
        """Has seen nothing yet.

        Args:
            num_envs: of the run.
            num_agents: in one environment.
        """
        self._rows = num_envs * num_agents
        self._is_told = False

    def look(self, seen: Seen) -> str | None:
        """See `Hint`."""
        steps = seen.now.collected // self._rows
        if sum(seen.ended.counts) or self._is_told:
            self._is_told = True
            return None
        if seen.now.time_s - seen.first.time_s < ENDLESS_S or steps < ENDLESS_STEPS:
            return None
        self._is_told = True
        return (
            f"No episode has ended yet, after about {steps:,} steps of each environment, so there are no returns to "
            "report. If episodes never end by themselves, cut them with --max_episode_steps=N; values are bootstrapped."
        )
