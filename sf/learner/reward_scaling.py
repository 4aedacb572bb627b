"""Rewards divided by the running deviation of their discounted sums."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sf.learner.batch import Batch
from sf.learner.peers import ALONE, Peers
from sf.learner.statistics import RunningMoments
from sf.nets.normalizer import VARIANCE_EPSILON
from sf.shared.arena import Array

REWARD_LIMIT = 10.0


class RewardScaling:
    """Keeps one discounted sum per environment row, and the variance of all of them.

    For each step ret <- gamma·ret + r, and the variance takes in ret. The reward becomes r / sqrt(variance + 1e-8), no
    mean subtracted, limited to plus and minus 10. Where an episode ends ret <- 0 (rows C30 and C31 of the 37 details).
    Episodes of another policy, and fillers between two episodes, are not part of the variance, and ret <- 0 there. Each
    learner of a policy keeps the sums of its own rows, and the variance is that of the rows of all.
    """

    def __init__(self, num_streams: int, gamma: float, peers: Peers = ALONE, initial_count: float = 0.0) -> None:
        """Starts with sums of 0.

        Args:
            num_streams: environment rows that rewards come from.
            gamma: discount.
            peers: the other learners.
            initial_count: see `RunningMoments`.
        """
        self.gamma, self._peers = gamma, peers
        self.moments = RunningMoments((), torch.device("cpu"), initial_count)
        self._sums = np.zeros(num_streams)
        self._remembered: tuple[list[Tensor], Array] = [], self._sums

    def __call__(self, batch: Batch) -> Tensor:
        """Scaled rewards [T, B] of a dataset."""
        scaled = np.empty(batch.rewards.shape, np.float32)
        remaining = _Trajectories.of(batch)
        while self._peers.sum(len(remaining.rows))[0]:
            first, remaining = remaining.split()
            scaled[:, first.columns] = self._scale(first)
        return torch.from_numpy(scaled).to(batch.rewards.device)

    def pass_over(self, batch: Batch) -> None:
        """Goes on with the sums through a dataset that trains nothing, which the variance does not take in."""
        remaining = _Trajectories.of(batch)
        while len(remaining.rows):
            first, remaining = remaining.split()
            self._discounted_sums(first)

    def _scale(self, trajectories: _Trajectories) -> Array:
        """[T, b] of different rows, step after step."""
        rewards = trajectories.rewards
        deviations = np.empty((len(rewards), 1))
        mean, variance, count = (float(x) for x in (self.moments.mean, self.moments.variance, self.moments.count))
        own = _moments_of_steps(self._discounted_sums(trajectories), trajectories.counts)
        shares = [[moment.tolist() for moment in share] for share in self._peers.gather(*own)]
        for t in range(len(rewards)):
            for sizes, means, variances in shares:
                if not sizes[t]:
                    continue
                # The merge of `RunningMoments`, in plain numbers because it happens once per step.
                size, delta, total = sizes[t], means[t] - mean, count + sizes[t]
                variance = (variance * count + variances[t] * size + delta * delta * count * size / total) / total
                mean += delta * size / total
                count = total
            deviations[t] = np.sqrt(variance + VARIANCE_EPSILON)
        for moment, value in (
            (self.moments.mean, mean),
            (self.moments.variance, variance),
            (self.moments.count, count),
        ):
            moment.fill_(value)
        scaled: Array = np.clip(rewards / deviations, -REWARD_LIMIT, REWARD_LIMIT)
        return scaled

    def _discounted_sums(self, trajectories: _Trajectories) -> Array:
        """[T, b] the sum of each row after each step; goes on with it where the trajectory ends."""
        rows, rewards = trajectories.rows, trajectories.rewards
        sums, after = np.where(trajectories.is_new, 0.0, self._sums[rows]), np.empty(rewards.shape)
        for t in range(len(rewards)):
            sums = np.where(trajectories.counts[t], self.gamma * sums + rewards[t], 0.0)
            after[t] = sums
            sums = np.where(trajectories.ended[t], 0.0, sums)
        self._sums[rows] = sums
        return after

    def remember(self) -> None:
        """Keeps the present state for `forget`."""
        self._remembered = [tensor.clone() for tensor in self.state_dict().values()], self._sums.copy()

    def forget(self) -> None:
        """Takes back the samples of the variance since `remember`; sums of episodes stay unless they are no numbers."""
        moments, sums = self._remembered
        self._sums = np.where(np.isfinite(self._sums), self._sums, sums)
        for tensor, earlier in zip(self.state_dict().values(), moments, strict=True):
            tensor.copy_(earlier)

    @property
    def sums(self) -> list[float]:
        """Discounted sums of the running episodes, by row."""
        return [float(number) for number in self._sums]

    @sums.setter
    def sums(self, sums: list[float]) -> None:
        self._sums = np.array(sums)

    def state_dict(self) -> dict[str, Tensor]:
        """The moments. The sums belong to episodes, which a resumed run begins anew."""
        return {"mean": self.moments.mean, "variance": self.moments.variance, "count": self.moments.count}


@dataclass(frozen=True)
class _Trajectories:
    """The columns behind the sums, on the host; of two trajectories of one row the earlier one is first."""

    rewards: Array
    """[T, b] float64."""
    ended: Array
    """[T, b] bool, whether the step ended the episode."""
    counts: Array
    """[T, b] bool, whether the policy chose the action."""
    is_new: Array
    """[b] bool, whether nothing of an earlier trajectory goes on."""
    rows: Array
    """[b] of the environments."""
    columns: Array
    """[b] in the dataset."""

    @classmethod
    def of(cls, batch: Batch) -> _Trajectories:
        rewards, ended = batch.rewards.cpu().numpy(), (batch.terminated | batch.truncated).cpu().numpy()
        rows = batch.streams.numpy()
        is_new, valid = batch.is_new.numpy(), batch.valid.numpy()
        return cls(rewards.astype(np.float64), ended, valid, is_new, rows, np.arange(len(rows)))

    def split(self) -> tuple[_Trajectories, _Trajectories]:
        """The first trajectory of each row, and the others."""
        _, first = np.unique(self.rows, return_index=True)
        first.sort()
        return self._take(first), self._take(np.setdiff1d(np.arange(len(self.rows)), first))

    def _take(self, chosen: Array) -> _Trajectories:
        return _Trajectories(
            self.rewards[:, chosen],
            self.ended[:, chosen],
            self.counts[:, chosen],
            self.is_new[chosen],
            self.rows[chosen],
            self.columns[chosen],
        )


def _moments_of_steps(sums: Array, counts: Array) -> tuple[Tensor, Tensor, Tensor]:
    """[T] each, of the rows [T, b] that count in each step: how many, their mean and variance, 0 without any."""
    size = counts.sum(1)
    some = np.maximum(size, 1)
    mean = np.where(counts, sums, 0.0).sum(1) / some
    variance = np.square(np.where(counts, sums - mean[:, None], 0.0)).sum(1) / some
    return torch.from_numpy(size.astype(np.float64)), torch.from_numpy(mean), torch.from_numpy(variance)
