"""Rewards divided by the running deviation of their discounted sums."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sf.arena import Array
from sf.learner.peers import ALONE, Peers
from sf.learner.statistics import RunningMoments
from sf.policy.normalizer import VARIANCE_EPSILON

REWARD_LIMIT = 10.0


class RewardScaling:
    """Keeps one discounted sum per environment row, and the variance of all of them.

    For each step ret <- gamma·ret + r, the variance takes in ret, and the reward becomes r / sqrt(variance + 1e-8), no
    mean subtracted, limited to plus and minus 10; where an episode ends ret <- 0 (rows C30 and C31 of the 37 details).
    What the policy did not choose, such as a filler between two episodes, is not part of the variance. Each learner of
    a policy keeps the sums of its own rows, and the variance is that of the rows of all.
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

    def __call__(self, rewards: Tensor, ended: Tensor, valid: Tensor, streams: Tensor) -> Tensor:
        """Scaled rewards [T, B].

        Args:
            rewards: [T, B].
            ended: [T, B] bool, whether the step ended the episode.
            valid: [T, B] bool on the host, whether the policy chose the action.
            streams: [B] int64 on the host, the row of each trajectory; of two of one row the earlier one is first.
        """
        scaled = np.empty(rewards.shape, np.float32)
        raw, over = rewards.cpu().numpy().astype(np.float64), ended.cpu().numpy()
        counts, rows = valid.numpy(), streams.numpy()
        remaining = np.arange(len(rows))
        while self._peers.sum(remaining.size)[0]:
            _, first = np.unique(rows[remaining], return_index=True)
            columns = remaining[np.sort(first)]
            scaled[:, columns] = self._scale(raw[:, columns], over[:, columns], counts[:, columns], rows[columns])
            remaining = np.setdiff1d(remaining, columns)
        return torch.from_numpy(scaled).to(rewards.device)

    def _scale(self, rewards: Array, ended: Array, counts: Array, rows: Array) -> Array:
        """[T, b] trajectories of different rows, step after step."""
        deviations = np.empty((len(rewards), 1))
        mean, variance, count = (float(x) for x in (self.moments.mean, self.moments.variance, self.moments.count))
        own = _moments_of_steps(self._discounted_sums(rewards, ended, rows), counts)
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

    def _discounted_sums(self, rewards: Array, ended: Array, rows: Array) -> Array:
        """[T, b] the sum of each row after each step; goes on with it where the trajectory ends."""
        sums, after = self._sums[rows], np.empty(rewards.shape)
        for t in range(len(rewards)):
            sums = self.gamma * sums + rewards[t]
            after[t] = sums
            sums = np.where(ended[t], 0.0, sums)
        self._sums[rows] = sums
        return after

    def remember(self) -> None:
        """What there is now, for `forget`."""
        self._remembered = [tensor.clone() for tensor in self.state_dict().values()], self._sums.copy()

    def forget(self) -> None:
        """What the variance has taken in since `remember`; sums of episodes stay unless they are no numbers."""
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


def _moments_of_steps(sums: Array, counts: Array) -> tuple[Tensor, Tensor, Tensor]:
    """[T] each, of the rows [T, b] that count in each step: how many, their mean and variance, 0 without any."""
    size = counts.sum(1)
    some = np.maximum(size, 1)
    mean = np.where(counts, sums, 0.0).sum(1) / some
    variance = np.square(np.where(counts, sums - mean[:, None], 0.0)).sum(1) / some
    return torch.from_numpy(size.astype(np.float64)), torch.from_numpy(mean), torch.from_numpy(variance)
