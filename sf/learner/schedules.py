"""How the learning rate changes during a run."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from sf.config import LearnerConfig

Period = Literal["minibatch", "epoch", "batch"]


class LearningRate:
    """A constant learning rate, and the interface of those that change."""

    needs_divergence: bool = False
    """Whether it depends on how far the policy has moved, and so is part of checkpoints."""

    def __init__(self, config: LearnerConfig) -> None:
        self.value = config.initial_rate

    def set_progress(self, fraction: float) -> None:
        """Hear which part of the run, from 0 to 1, lies before the next update."""

    def looks_at(self, may_be_last: bool) -> bool:
        """Whether `after_minibatch` wants to hear of an epoch, which may be the last one on its batch."""
        return self.needs_divergence

    def after_minibatch(self, divergence: Tensor) -> None:
        """Hear the mean KL divergence of a minibatch from the policy that acted."""

    def after_epoch(self) -> None:
        """Hear that all minibatches of an epoch are done."""

    def after_batch(self) -> None:
        """Hear that all epochs of a batch are done."""


class LinearDecay(LearningRate):
    """learning_rate · (1 - fraction): the full rate in the first update, never quite zero in the last."""

    def __init__(self, config: LearnerConfig) -> None:
        super().__init__(config)
        self._initial = config.initial_rate

    def set_progress(self, fraction: float) -> None:
        """See `LearningRate`; a run that goes on past its end keeps a rate of zero."""
        self.value = self._initial * (1.0 - min(max(fraction, 0.0), 1.0))


class KlAdaptive(LearningRate):
    """Raises or lowers the rate by half so that the policy moves by about the wanted divergence.

    As in Sample Factory: above twice the threshold the rate is divided by 1.5, below half of it multiplied by 1.5.
    The divergence is read from the device once per decision: after each minibatch, after each epoch for the mean over
    it, or after each batch for the mean over its last epoch.
    """

    needs_divergence = True

    def __init__(self, config: LearnerConfig, period: Period) -> None:
        super().__init__(config)
        self._threshold = config.kl_threshold
        self._min, self._max = config.lr_adaptive_min, config.largest_rate
        self._period = period
        self._divergences: list[Tensor] = []
        self._last_epoch: list[Tensor] = []

    def looks_at(self, may_be_last: bool) -> bool:
        """See `LearningRate`."""
        return may_be_last or self._period != "batch"

    def after_minibatch(self, divergence: Tensor) -> None:
        """See `LearningRate`."""
        self._divergences.append(divergence)
        if self._period == "minibatch":
            self._adapt()

    def after_epoch(self) -> None:
        """See `LearningRate`."""
        if self._period == "epoch":
            self._adapt()
        else:
            self._last_epoch, self._divergences = self._divergences, []

    def after_batch(self) -> None:
        """See `LearningRate`."""
        if self._period == "batch":
            self._divergences, self._last_epoch = self._last_epoch, []
            self._adapt()

    def _adapt(self) -> None:
        if not self._divergences:  # all steps were skipped
            return
        divergence = torch.stack(self._divergences).mean().item()
        self._divergences.clear()
        if divergence > 2.0 * self._threshold:
            self.value = max(self.value / 1.5, self._min)
        elif divergence < 0.5 * self._threshold:
            self.value = min(self.value * 1.5, self._max)


def learning_rate(config: LearnerConfig) -> LearningRate:
    """The schedule that the configuration names."""
    match config.schedule:
        case "constant":
            return LearningRate(config)
        case "linear":
            return LinearDecay(config)
        case "kl_adaptive_minibatch":
            return KlAdaptive(config, "minibatch")
        case "kl_adaptive_epoch":
            return KlAdaptive(config, "epoch")
        case "kl_adaptive_batch":
            return KlAdaptive(config, "batch")
