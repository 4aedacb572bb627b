"""The update: from one dataset of trajectories to a few optimizer steps. It is the loop around an `Algorithm`.

    batch [T, B] -> algorithm.prepare -> epochs x minibatches: algorithm.loss, gradient, Adam -> statistics

The version counts optimizer steps. It is raised with each of them, and the learner publishes the policy after each item
of `Update.steps`. Statistics that scale observations and returns change together with the last step of a dataset.

Where a policy has several learners, a batch is this learner's share of the dataset, and they take each step together.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from sf.config import LearnerConfig, ReplayConfig
from sf.errors import InternalError
from sf.learner import metrics
from sf.learner.algorithm import Algorithm
from sf.learner.batch import Batch
from sf.learner.dataset import Transitions
from sf.learner.dealing import Minibatch, taken
from sf.learner.distance import effective_share, mean_divergence
from sf.learner.graphed import as_written, graphed
from sf.learner.losses import normalize_advantages
from sf.learner.minibatches import Selection, ages_of_all, log_skipped
from sf.learner.peers import ALONE, Peers
from sf.learner.ppo import PPO
from sf.learner.propagation import propagation_through
from sf.learner.replayed import minibatches_of
from sf.learner.small_steps import is_small, small_steps
from sf.learner.trained_network import NonFiniteLoss, networks_beside
from sf.learner.training import StepReport, Training
from sf.learner.trial import loss_terms_of
from sf.learner.update_summary import UpdateSummary
from sf.policy import ActorCritic, Evaluation
from sf.shared.arena import Array

log = logging.getLogger(__name__)

RATIO_TOLERANCE = 1e-5
"""Tolerance of row C36; actions of very many columns may be off by the rounding of their log-probability."""
ROUNDING = 4 * torch.finfo(torch.float32).eps
NO_REPLAY = ReplayConfig()


class Update(Training):
    """Trains a policy on each batch, minibatch after minibatch, by the loss of an `Algorithm`."""

    def __init__(
        self,
        policy: ActorCritic,
        config: LearnerConfig,
        num_streams: int = 0,
        peers: Peers = ALONE,
        algorithm: Algorithm | None = None,
        replay: ReplayConfig = NO_REPLAY,
    ) -> None:
        """Starts at version 0.

        Args:
            policy: to train.
            config: how.
            num_streams: environment rows that trajectories come from, where their rewards are normalized.
            peers: the other learners of the policy; all run `steps` at the same time, from the same state.
            algorithm: prepares batches and computes the loss; PPO if it is left out.
            replay: whether transitions are kept and drawn again.

        Raises:
            ConfigError: the algorithm does not do what one has to do.
        """
        super().__init__(policy, config, PPO(config) if algorithm is None else algorithm, num_streams, peers)
        self._loss_terms = loss_terms_of(self.algorithm, policy)
        self._told = set[str]()
        """Terms of the loss that were not finite."""
        self._network = graphed(propagation_through(policy, self.algorithm), policy, self.algorithm)
        self._way_back, self._small = self._network, small_steps(config)
        self.replays = replay.replay != "none"
        self._minibatches = minibatches_of(self.algorithm, policy, config, replay, lambda: self.version, peers)
        self._summary = self._empty_summary()

    def reconfigure(self, config: LearnerConfig) -> None:
        """See `Training.reconfigure`; recordings hold the numbers of before, so new ones are made."""
        super().reconfigure(config)
        self._network = graphed(as_written(self._network), self.policy, self.algorithm)

    def steps(self, batch: Batch) -> Iterator[StepReport]:
        """Trains on a dataset; one item after each optimizer step.

        Transitions of other policies are left out. Those of the own policy that are `max_policy_lag` or more steps old
        when the dataset begins count for the lag but train nothing. Those that would be older than `bound_policy_lag`
        at its last step do not count for the lag either. The learning rate is multiplied by the share of the others. A
        dataset with nothing to train on is skipped. No statistics take in a dataset of which a step was skipped.
        """
        self._summary = self._empty_summary()
        first_version, skipped_before = self.version, self.num_skipped
        ages = first_version - batch.policy_version
        selection = Selection(
            batch.valid, ages, self.config.max_policy_lag, self.peers, batch.rewards.device, self._oldest
        )
        self.num_left_out += selection.num_left_out
        if selection.num_trained == 0:
            log_skipped(selection, batch.policy_version, self.config, self.version, self.void_before)
            if self.reward_scaling is not None:
                self.reward_scaling.pass_over(batch)
            return
        # A minibatch out of a buffer is as large as any other, however few transitions have come in.
        lr_factor = 1.0 if self.replays else selection.num_trained / selection.num_own
        if self.reward_scaling is not None:
            self.reward_scaling.remember()
            batch = batch.with_columns(rewards=self.reward_scaling(batch))
        is_last, lags = False, list[Array]()
        trained: Transitions | None = None
        for epoch in range(self.config.epochs):
            self.algorithm.version, self.algorithm.is_first_epoch = self.version, epoch == 0
            looks = self._schedule.looks_at(epoch == self.config.epochs - 1 or self.config.target_kl > 0)
            if epoch == 0 or self.algorithm.prepares_each_epoch:
                transitions = self.algorithm.prepare(batch, self.policy)
                if epoch == 0:
                    self._minibatches.add(batch, transitions, selection)
                else:
                    self._minibatches.renew(transitions)
            for index, minibatch in enumerate(self._minibatches.epoch()):
                evaluation, rows = self._evaluate(minibatch)
                if epoch == index == 0:
                    self._look_at_first_ratios(evaluation, rows, unchanged=not any(minibatch.lags))
                if not self._step(evaluation, rows, lr_factor, minibatch):
                    continue
                if looks:
                    self._schedule.after_minibatch(mean_divergence(evaluation, rows, self.peers))
                lags.append(minibatch.each_lag)
                has_moved_far = minibatch.ends_epoch and self._is_beyond_target_kl(evaluation, rows)
                ends = minibatch.ends_epoch and (has_moved_far or epoch == self.config.epochs - 1)
                is_last = ends or minibatch.exhausts
                if is_last:
                    self._summary.add_newest()  # before the statistics change
                if is_last and self.num_skipped == skipped_before:
                    trained = taken(transitions, selection.trained_rows)
                    self.statistics.fold_in(trained.observations, trained.returns)
                    self.algorithm.after_statistics()
                report = self._report(minibatch, selection, first_version)
                yield report
            self._schedule.after_epoch()
            if is_last:
                break
        self._schedule.after_batch()
        if lags:
            trained = trained or taken(transitions, selection.trained_rows)
            yield from self._further_steps(trained, selection.trained_rows, batch.policy_version.flatten(), lags)
        self._count(lags)
        if self.want_summary and lags:
            self._summary.add_dataset(report, selection, self.num_skipped, self.optimizer.exp_avg_sq)
        if self.reward_scaling is not None and self.num_skipped > skipped_before:
            self.reward_scaling.forget()
        if self.version == first_version:
            self._summary = self._empty_summary()  # without a step there is nothing to tell

    def _further_steps(
        self, trained: Transitions, rows: Tensor | None, versions: Tensor, lags: list[Array]
    ) -> Iterator[StepReport]:
        """The steps that the algorithm takes after the losses of a batch; adds their lags to `lags`.

        Args:
            trained: the transitions that were trained on.
            rows: where they are in the batch; None for all of it.
            versions: [T·B] of the whole batch, on the host.
            lags: of this learner's share, of the steps so far.
        """
        self.algorithm.version = self.version
        own = versions if rows is None else versions[rows.cpu()]
        try:
            for scalars, acted in self.algorithm.after_batch(trained, own):
                if self._numbers is not None:
                    self._numbers.limit_stddev()
                each_lag: Array = (self.version - acted).numpy()
                lags.append(each_lag)
                self.version += 1
                if self.want_summary:
                    self._summary.add(dict(scalars))
                yield StepReport(self.version, *ages_of_all(each_lag, self.peers), 0.0, 0.0)
        except NonFiniteLoss:
            self._skip(trained.tensors(), len(trained))

    def _report(self, minibatch: Minibatch, selection: Selection, first_version: int) -> StepReport:
        """Report of the step that has just been taken."""
        sources = (0.0, 0.0) if self.replays else (selection.lag_while_acting, self.version - 1.0 - first_version)
        return StepReport(self.version, *minibatch.lags, *sources)

    def _empty_summary(self) -> UpdateSummary:
        return UpdateSummary(self.policy, self.algorithm, self._loss_terms, self.replays)

    def summary(self) -> dict[str, float]:
        """Tags below ``train/`` of the last minibatch of a dataset that was trained with `want_summary`, by all."""
        numbers = self._summary.read(self.peers)
        self._tell_spoiled({name: numbers[name] for name in self._loss_terms if name in numbers})
        return numbers

    @property
    def _oldest(self) -> int | None:
        """The largest age with which a transition may enter a dataset, so that `bound_policy_lag` holds to its end.

        A transition from before a takeover is older than any that may.
        """
        config = self.config
        last_step = config.steps_per_batch - 1
        bounds = [] if config.lag_bound is None else [config.lag_bound - last_step]
        if self.void_before:
            bounds.append(self.version - self.void_before)
        return min(bounds, default=None)

    def _evaluate(self, minibatch: Minibatch) -> tuple[Evaluation, Transitions]:
        """The transitions that train, and their evaluation by the present policy."""
        rows = minibatch.transitions
        if not len(rows):  # only other learners have some; not every network takes none
            nothing = torch.empty(0, device=self.policy.flat.device)
            return Evaluation(nothing, nothing, nothing, nothing), rows
        sequences = () if minibatch.sequences is None else (minibatch.sequences,)
        self._way_back = self._network if minibatch.kept is None else as_written(self._network)
        evaluation = self._way_back.evaluate(rows.observations, rows.actions, *sequences)
        if minibatch.kept is None:
            return evaluation, rows
        return evaluation.take(minibatch.kept), rows.take(minibatch.kept)

    def _step(self, evaluation: Evaluation, rows: Transitions, lr_factor: float, minibatch: Minibatch) -> bool:
        """One optimizer step; False, and nothing has changed, where the gradient is no number.

        Raises:
            NonFiniteGradient: for the tenth time in a row.
        """
        size = len(rows)
        self.algorithm.version = self.version
        normalized = self._with_normalized_advantages(rows, minibatch.std_mean)
        self.policy.flat_gradient.zero_()
        losses = self._way_back.backward(evaluation, normalized) if size else None
        self.peers.mean_(self.policy.flat_gradient, size)
        grad_norm = self.optimizer.clip()
        if not math.isfinite(grad_norm):  # the same for all learners
            terms = {} if losses is None else {name: value.item() for name, value in losses.terms.items()}
            self._tell_spoiled(terms)
            self._leave_out(rows, [f"{name} = {value}" for name, value in terms.items() if not math.isfinite(value)])
            return False
        lr = self.lr
        if self.config.ess_lr:
            lr_factor *= effective_share(evaluation, rows, self.peers)
        self.optimizer.step(lr * lr_factor)
        if self._numbers is not None:
            self._numbers.limit_stddev()
        self.version += 1
        try:
            self.algorithm.after_step(size)
            self._skipped_in_a_row = 0
        except NonFiniteLoss:
            self._leave_out(rows)
        if self.want_summary:
            step = metrics.TakenStep(
                evaluation.detached(), rows, normalized, losses, minibatch.lags, grad_norm, lr, lr * lr_factor
            )
            self._summary.note(step, minibatch.each_lag)
        return True

    def _tell_spoiled(self, terms: Mapping[str, float]) -> None:
        """Says once of a term of the loss that it is no number; without a gradient it spoils nothing else."""
        spoiled = [name for name, value in terms.items() if not math.isfinite(value) and name not in self._told]
        if spoiled:
            self._told.update(spoiled)
            log.warning("Not finite in the loss: %s. See the curves of these terms below train/.", ", ".join(spoiled))

    def _leave_out(self, minibatch: Transitions, spoiled: Sequence[str] = ()) -> None:
        """Forgets the gradients of a step that is not taken, and counts it; see `_skip`.

        Raises:
            NonFiniteGradient: see `_skip`.
        """
        for network in networks_beside(self.algorithm):
            network.zero_grad()
        self._skip(minibatch.tensors(), len(minibatch), spoiled)

    def _with_normalized_advantages(
        self, minibatch: Transitions, std_mean: tuple[Tensor, Tensor] | None
    ) -> Transitions:
        if not self.config.normalize_advantages:
            return minibatch
        advantages, ddof = minibatch.advantages, self.config.advantage_ddof
        if std_mean is None and self._small is not None and len(advantages) > 1 and is_small(advantages):
            return minibatch.with_advantages(self._small.normalize(advantages.contiguous(), ddof))
        return minibatch.with_advantages(normalize_advantages(advantages, ddof, std_mean))

    @torch.no_grad()
    def _is_beyond_target_kl(self, evaluation: Evaluation, minibatch: Transitions) -> bool:
        """Whether the policy that the minibatch saw is too far from the one that acted (row C-X3 of the details)."""
        if self.config.target_kl == 0.0:
            return False
        return mean_divergence(evaluation, minibatch, self.peers).item() > self.config.target_kl

    @torch.no_grad()
    def _look_at_first_ratios(self, evaluation: Evaluation, minibatch: Transitions, unchanged: bool) -> None:
        """The ratios of the first minibatch are 1 if the policy has not changed since it acted (row C-R1)."""
        if not (self.want_summary or self.config.strict) or not len(minibatch):
            return
        ratios = (evaluation.log_probs - minibatch.behavior_log_probs).exp()
        extremes = {"first_ratio_min": ratios.min(), "first_ratio_max": ratios.max()}
        self._summary.add_share(extremes, len(minibatch))
        if not (self.config.strict and unchanged):
            return
        tolerance = max(RATIO_TOLERANCE, ROUNDING * evaluation.log_probs.abs().max().item())
        if (error := (ratios - 1.0).abs().max().item()) > tolerance:
            raise InternalError(
                f"strict=True: at version {self.version} the policy has not changed since it acted. So all probability "
                f"ratios should be 1, but one is off by {error:.3g}. The acting and the training network differ."
            )
