"""The curves of an update: what is told of the optimizer steps on one dataset."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sf.learner import metrics
from sf.learner.algorithm import Algorithm
from sf.learner.minibatches import Selection
from sf.learner.peers import ALONE, Peers
from sf.learner.training import StepReport
from sf.policy import ActorCritic
from sf.shared.arena import Array


class UpdateSummary(metrics.Summary):
    """Looks closely at the newest step alone, when it turns out to be the last one of its dataset."""

    def __init__(self, policy: ActorCritic, algorithm: Algorithm, loss_terms: Sequence[str], replays: bool) -> None:
        """Starts empty.

        Args:
            policy: under training.
            algorithm: says which transitions were clipped.
            loss_terms: names of the terms of its loss.
            replays: whether minibatches come from a buffer.
        """
        super().__init__(loss_terms)
        self._policy, self._algorithm, self._replays = policy, algorithm, replays
        self._newest: metrics.TakenStep | None = None
        """The newest step, as long as the summary has nothing of it."""

    @torch.no_grad()
    def add_newest(self) -> None:
        """The numbers of the newest step, of which this learner may have no share."""
        step, self._newest = self._newest, None
        if step is None:
            return
        evaluation, rows = step.evaluation, step.rows
        self.add_numbers({"grad_norm": step.grad_norm, "lr": step.lr, "actual_lr": step.actual_lr})
        if self._replays:
            self.add(metrics.replay_facts(evaluation, rows, step.lags))
        if not len(rows):
            return
        losses = step.losses or self._algorithm.loss(evaluation, step.normalized)
        for scalars in (
            losses.scalars(),
            metrics.policy_change(evaluation, rows, self._algorithm),
            metrics.value_change(evaluation, rows, self._policy),
            metrics.deviation(evaluation, self._policy),
        ):
            self.add_share(scalars, len(rows))

    @torch.no_grad()
    def note(self, step: metrics.TakenStep, each_lag: Array) -> None:
        """Keeps a step that has just been taken.

        Args:
            step: what was done.
            each_lag: [n] lags of the transitions that trained, of this learner's share.
        """
        self._newest = step
        if len(step.rows):
            clipped = self._algorithm.clipped(step.evaluation, step.rows)
            self.by_lag.add(each_lag, step.evaluation.log_probs - step.rows.behavior_log_probs, clipped)

    def add_dataset(self, report: StepReport, selection: Selection, num_skipped: int, second_moments: Tensor) -> None:
        """Adds what is known when all steps on a dataset are taken.

        Args:
            report: of the last step.
            selection: the transitions that trained.
            num_skipped: steps that were not taken, since the start.
            second_moments: of Adam.
        """
        self.add({"adam_max_second_moment": second_moments.max()})
        self.add(metrics.running_statistics(self._policy))
        self.add_numbers(
            {
                "skipped_steps": num_skipped,
                "version_diff_min": report.lag_min,
                "version_diff_avg": report.lag_avg,
                "version_diff_max": report.lag_max,
                "valids_fraction": selection.num_trained / selection.num_total,
                "same_policy_fraction": selection.num_own / selection.num_total,
            }
        )

    def read(self, peers: Peers = ALONE) -> dict[str, float]:
        """See `Summary`; with the newest step."""
        self.add_newest()
        return super().read(peers)
