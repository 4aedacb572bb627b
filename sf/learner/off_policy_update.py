"""The loop around an `OffPolicy`: keeps transitions, and draws minibatches at a fixed rate per transition."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from sf.config import LearnerConfig, ReplayConfig
from sf.errors import ConfigError
from sf.learner import metrics
from sf.learner.batch import Batch
from sf.learner.off_policy import Drawn, OffPolicy, expected_scalars
from sf.learner.peers import ALONE, Peers
from sf.learner.trained_network import NonFiniteLoss
from sf.learner.training import StepReport, Training
from sf.policy import ActorCritic
from sf.replay import NothingToDraw
from sf.shared.arena import Array

log = logging.getLogger(__name__)


class OffPolicyUpdate(Training):
    """Trains a policy on transitions drawn from all that were kept.

    Every transition that comes in brings `replay_ratio` optimizer steps with it, once `learning_starts` of them are
    there. The version counts these steps.
    """

    replays = learns_later = True

    def __init__(
        self,
        policy: ActorCritic,
        config: LearnerConfig,
        algorithm: OffPolicy,
        num_streams: int = 0,
        peers: Peers = ALONE,
        replay: ReplayConfig | None = None,
    ) -> None:
        """Starts at version 0 with nothing to draw from; see `Training`.

        Raises:
            ConfigError: the algorithm does not fit the policy, or does not do what one has to do.
        """
        replay = replay or ReplayConfig(replay="uniform")
        if replay.replay != "uniform":
            raise ConfigError(
                [
                    f"algorithm={config.algorithm} learns from transitions that are drawn again and again, but "
                    f"replay={replay.replay}. Use --replay=uniform."
                ]
            )
        algorithm.expect_order_for(policy)
        super().__init__(policy, config, algorithm, num_streams, peers)
        self._off_policy = algorithm
        self._terms: tuple[str, ...] = ()
        """The names of what an update returns."""
        self._replay, self._size = replay, config.batch_size or 256
        self._ring = algorithm.ring(replay.replay_size)
        self._owed = 0.0
        """Optimizer steps that the transitions so far have brought and that were not taken."""
        self._summary = metrics.Summary(self._terms)

    def steps(self, batch: Batch) -> Iterator[StepReport]:
        """See `Training`. There are none before `learning_starts` transitions are there."""
        self._summary = metrics.Summary(self._terms)
        if self.reward_scaling is not None:
            batch = batch.with_columns(rewards=self.reward_scaling(batch))
        self._ring.add(batch)
        self._off_policy.explore()
        self._fold_in(batch)
        if self._ring.num_added < self._replay.learning_starts:
            return
        self._owed += self._replay.replay_ratio * int(batch.valid.sum())
        lags: list[Array] = []
        try:
            for minibatch in self._ring.minibatches(int(self._owed), self._size, self.policy.flat.device):
                self._owed -= 1.0
                if report := self._step(minibatch, lags):
                    yield report
        except NothingToDraw as nothing:
            log.error("Passed over a batch: %s", nothing)
        self._count(lags)
        if self.want_summary and lags:
            self._summary.add(metrics.running_statistics(self.policy))
            self._summary.add_numbers({"lr": self.lr, "skipped_steps": self.num_skipped})

    def _step(self, minibatch: Drawn, lags: list[Array]) -> StepReport | None:
        """One update; None where it has no step of the acting network, or a gradient was not finite."""
        self._off_policy.version, steps_before = self.version, self.acting.num_steps
        self._off_policy.is_shown = self.want_summary
        scalars: Mapping[str, Tensor] = {}
        try:
            scalars = self._off_policy.update(minibatch)
            self._skipped_in_a_row = 0
        except NonFiniteLoss:
            columns = {"actions": minibatch.actions, "rewards": minibatch.rewards, **minibatch.observations}
            self._skip(columns, len(minibatch))
        if self.acting.num_steps == steps_before:
            return None
        each_lag: Array = (self.version - minibatch.versions).flatten().numpy()
        lags.append(each_lag)
        self.version += 1
        least, mean, most = float(each_lag.min()), float(each_lag.mean()), float(each_lag.max())
        if self.want_summary and expected_scalars(type(self._off_policy).__name__, scalars):
            self._note(scalars, least, mean, most, len(minibatch))
        return StepReport(self.version, least, mean, most, 0.0, 0.0)

    def _note(self, scalars: Mapping[str, Tensor], least: float, mean: float, most: float, size: int) -> None:
        """Keeps the numbers of the newest step; later ones take its place."""
        if self._terms != tuple(scalars):
            self._terms = tuple(scalars)
            self._summary = metrics.Summary(self._terms)
        self._summary.add_share({name: scalar.detach() for name, scalar in scalars.items()}, size)
        ages = {"version_diff_min": least, "version_diff_avg": mean, "version_diff_max": most}
        replayed = {
            f"staleness/batch_{name}": age for name, age in zip(("min", "mean", "max"), ages.values(), strict=True)
        }
        self._summary.add_numbers(ages | replayed)

    @torch.no_grad()
    def _fold_in(self, batch: Batch) -> None:
        """Takes the observations of a batch into the running statistics."""
        if not self.statistics.moments or not batch.valid.any():
            return
        own = batch.valid.to(batch.rewards.device)
        observations = {name: leaf[:-1][own] for name, leaf in batch.observations.items()}
        self.statistics.fold_in(observations, batch.rewards[own])

    def summary(self) -> dict[str, float]:
        """See `Training`."""
        return self._summary.read(self.peers)
