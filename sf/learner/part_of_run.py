"""The part of a run that is over, which schedules follow."""

from __future__ import annotations

import math

from sf.config import Config
from sf.learner.peers import Peers
from sf.shared.context import RunContext
from sf.shared.records import BEGAN_S

LATEST = 1 - 1e-3
"""Largest progress of a time-limited run. It stays below 1, so that learning rates and clip ranges never reach zero."""


class PartOfRun:
    """Counts by the limit that ends the run first."""

    def __init__(self, config: Config, context: RunContext, frames_per_iteration: int) -> None:
        """Takes the limits.

        Args:
            config: of the run.
            context: of all roles.
            frames_per_iteration: of all ranks.
        """
        self._frames_per_iteration = frames_per_iteration
        self._num_trained = context.topology.num_policies - len(config.acting_only)
        """Policies that share the frames of the run."""
        self._frames_wanted, self._time_limit_s = config.run.frame_limit, config.run.time_limit_s
        self._began_s = context.arena[BEGAN_S].data

    def at(self, now: float, frames: int, peers: Peers, leads: bool) -> float:
        """The part of the run, 0 to 1, that lies before this iteration, by the limit that ends it first.

        By frames it is (u - 1) / U for iteration u of U, and later iterations count as the U-th. By time it is
        counted from the moment when all roles were ready, by the first learner, because all learners must agree.

        Args:
            now: by the monotonic clock.
            frames: that the policy has learned.
            peers: the other learners of the policy.
            leads: whether this learner decides for all of them.
        """
        by_frames = 0.0
        if self._frames_wanted < math.inf:
            num_iterations = max(1.0, self._frames_wanted // (self._frames_per_iteration * self._num_trained))
            by_frames = min(frames / self._frames_per_iteration, num_iterations - 1) / num_iterations
        if self._time_limit_s == math.inf:
            return by_frames
        passed_s = now - self._began_s[0]
        has_begun = math.isfinite(passed_s) and leads
        (by_time,) = peers.sum(min(LATEST, passed_s / self._time_limit_s) if has_begun else 0.0)
        return max(by_frames, by_time)
