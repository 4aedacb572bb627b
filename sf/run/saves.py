"""The schedule of the checkpoints of a run: which are due, and which would be the best so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from sf.config import Config
from sf.shared.messages import SaveKind, SaveRequest

MeanScore = Callable[[int], float | None]
"""Mean score of the last episodes of a policy; None while there are too few."""


class SaveSchedule:
    """Says which checkpoints learners are to write."""

    def __init__(self, config: Config, num_policies: int) -> None:
        self._config, self._num_policies = config, num_policies
        self._best_reward = [-math.inf] * num_policies
        """Asked for already; a learner knows what it has written, and answers nothing if that is better."""
        self._due: dict[SaveKind, float] = {}

    def begin(self, now: float) -> None:
        """Counts all intervals from now on."""
        self._due = {kind: now + every for kind, every in self._intervals().items()}

    def due(self, now: float, mean_score: MeanScore) -> Iterator[tuple[int, SaveRequest]]:
        """The requests whose time has come, each with its policy."""
        for kind, every in self._intervals().items():
            if now < self._due[kind]:
                continue
            self._due[kind] = now + every
            if kind == "periodic":  # a best one that could not be written may be possible now
                self._best_reward = [-math.inf] * self._num_policies
            if kind == "best":
                yield from self.best(mean_score)
                continue
            for policy_id in range(self._num_policies):
                yield policy_id, SaveRequest(kind, mean_score(policy_id))

    def best(self, mean_score: MeanScore) -> Iterator[tuple[int, SaveRequest]]:
        """A request for every policy that is better than when this was asked for before."""
        if "best" not in self._intervals():
            return
        for policy_id, before in enumerate(self._best_reward):
            if policy_id in self._config.acting_only:
                continue
            reward = mean_score(policy_id)
            if reward is not None and reward > before:
                self._best_reward[policy_id] = reward
                yield policy_id, SaveRequest("best", reward)

    def _intervals(self) -> dict[SaveKind, float]:
        run = self._config.run
        intervals: dict[SaveKind, float] = {"periodic": run.save_every_sec}
        if self._config.evaluation.eval_every_steps == 0:  # else the evaluator knows which one is the best
            intervals["best"] = run.save_best_every_sec
        if run.save_milestones_sec > 0:
            intervals["milestone"] = run.save_milestones_sec
        return intervals
