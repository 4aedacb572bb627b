"""Says why no learner has anything to learn, when that lasts: they wait for environments, however slow these are."""

from __future__ import annotations

import math

from sf.monitor.hints import Seen

FIRST_S = 30.0
"""After so long it is said for the first time, and then each time that it has lasted twice as long."""
LONGEST_GAP_S = 5.0
"""Between two looks; what is beyond that, the whole run has been stopped."""


class Standstill:
    """Looks at one snapshot after the other."""

    def __init__(self, dataset: int) -> None:
        """Has seen nothing yet.

        Args:
            dataset: transitions that a learner needs to go on.
        """
        self._dataset = dataset
        self._looked_s = math.inf
        self._lasts_s, self._told_after_s = 0.0, FIRST_S
        self._iterations = self._samples = -1

    def look(self, seen: Seen) -> str | None:
        """See `Hint`."""
        snapshot = seen.now
        iterations = sum(policy.iterations for policy in snapshot.policies)
        samples = sum(policy.samples for policy in snapshot.policies)
        waits = all(policy.waits for policy in snapshot.policies)
        since_s, self._looked_s = snapshot.time_s - self._looked_s, snapshot.time_s
        if iterations != self._iterations or not waits:
            self._iterations, self._samples = iterations, samples
            self._lasts_s, self._told_after_s = 0.0, FIRST_S
        else:
            self._lasts_s += min(since_s, LONGEST_GAP_S)
        if self._lasts_s < self._told_after_s:
            return None
        self._told_after_s = 2 * self._lasts_s
        new = samples - self._samples
        cause = (
            "No action was computed meanwhile: environments are being made, or inside a reset or a step "
            "(--env_init_timeout, --env_reset_timeout, --env_step_timeout), or inference does not answer."
            if new == 0
            else f"{new:,} actions were computed meanwhile, and a dataset takes {self._dataset:,} of one policy."
        )
        return f"Learners have been waiting for trajectories for {self._lasts_s:.0f} s. {cause}"
