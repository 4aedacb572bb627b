"""Warns once of a policy lag that is high for long, and not at the last minibatch of an iteration alone."""

from __future__ import annotations

from sf.config import Config, steps_per_round
from sf.monitor.snapshot import Snapshot

HIGH_LAG = 30.0
"""Mean policy lag above which there may be a warning; the tasks of docs/policy-lag.md lose nothing or much below it."""
HIGH_AGE = 2.0
"""The same in batches, both of which must be exceeded: many optimizer steps on each batch make a large lag of data that
is still young."""


class HighLag:
    """Takes the mean, between two reports, of the average lags that the looks at the run have seen."""

    def __init__(self, config: Config, num_agents: int) -> None:
        """Has seen nothing yet.

        Args:
            config: resolved.
            num_agents: in one environment.
        """
        self._config, self._num_agents = config, num_agents
        steps = config.learner.steps_per_batch
        self._limit, self._steps = max(HIGH_LAG, HIGH_AGE * steps), steps
        self._sums = [0.0] * config.run.num_policies
        self._counts = [0] * config.run.num_policies
        self._is_told = config.replay.replay != "none"
        """True from the beginning with a buffer, which is there to draw transitions of any age."""

    def be_silent(self) -> None:
        """Says nothing, because the run has other flags than those that the warning names."""
        self._is_told = True

    def look(self, snapshot: Snapshot) -> None:
        """At the last minibatch of each policy that has had one."""
        for policy_id, policy in enumerate(snapshot.policies):
            if policy.lag.avg >= 0:
                self._sums[policy_id] += policy.lag.avg
                self._counts[policy_id] += 1

    def warning(self) -> str:
        """A sentence, the first time that the lag was high since the last call; "" otherwise."""
        means = [total / max(1, count) for total, count in zip(self._sums, self._counts, strict=True)]
        self._sums, self._counts = [0.0] * len(means), [0] * len(means)
        if self._is_told or max(means) <= self._limit:
            return ""
        self._is_told = True
        steps = float(steps_per_round(self._config, self._num_agents))
        bound = ", --async_rl=False bounds it" if self._config.run.async_rl else ""
        return (
            f"Warning: the average policy lag is {max(means):.1f} optimizer steps, the age of "
            f"{max(means) / self._steps:.2g} batches, with which some tasks learn less (docs/policy-lag.md). One "
            f"sampling round makes {steps:.6g} optimizer steps here. A larger --batch_size, fewer --num_epochs or "
            f"fewer --num_envs_per_worker lower the lag{bound}."
        )
