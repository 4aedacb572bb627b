"""Rewards divided by the running deviation of their discounted sums."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sf.arena import Array
from sf.learner.moments import Moments, moments_of, union
from sf.learner.peers import ALONE, Peers
from sf.learner.statistics import RunningMoments
from sf.policy.normalizer import VARIANCE_EPSILON

REWARD_LIMIT = 10.0


class RewardScaling:
    """Keeps one discounted sum per environment row, and the variance of all of them.

    For each step ret <- gamma·ret + r, the variance takes in ret, and the reward becomes r / sqrt(variance + 1e-8), no
    mean subtracted, limited to plus and minus 10; where an episode ends ret <- 0 (rows C30 and C31 of the 37 details).
    Each learner of a policy keeps the sums of its own rows, and the variance is that of the rows of all.
    """

    def __init__(self, num_streams: int, gamma: float, peers: Peers = ALONE) -> None:
        """Starts with sums of 0.

        Args:
            num_streams: environment rows that rewards come from.
            gamma: discount.
            peers: the other learners.
        """
        self.gamma, self._peers = gamma, peers
        self.moments = RunningMoments((), torch.device("cpu"))
        self._sums = np.zeros(num_streams)

    def __call__(self, rewards: Tensor, ended: Tensor, streams: Tensor) -> Tensor:
        """Scaled rewards [T, B].

        Args:
            rewards: [T, B].
            ended: [T, B] bool, whether the step ended the episode.
            streams: [B] int64 on the host, the row of each trajectory; of two of one row the earlier one is first.
        """
        scaled = np.empty(rewards.shape, np.float32)
        raw, over, rows = rewards.cpu().numpy().astype(np.float64), ended.cpu().numpy(), streams.numpy()
        remaining = np.arange(len(rows))
        while self._peers.sum(remaining.size)[0]:
            _, first = np.unique(rows[remaining], return_index=True)
            columns = remaining[np.sort(first)]
            scaled[:, columns] = self._scale(raw[:, columns], over[:, columns], rows[columns])
            remaining = np.setdiff1d(remaining, columns)
        return torch.from_numpy(scaled).to(rewards.device)

    def _scale(self, rewards: Array, ended: Array, rows: Array) -> Array:
        """[T, b] trajectories of different rows, step after step."""
        deviations = np.empty((len(rewards), 1))
        mean, variance, count = (float(x) for x in (self.moments.mean, self.moments.variance, self.moments.count))
        own = moments_of(torch.from_numpy(self._discounted_sums(rewards, ended, rows)))
        steps = union(Moments(*share) for share in self._peers.gather(*own))
        size, step_means, step_variances = steps.size.item(), steps.mean.tolist(), steps.variance.tolist()
        for t, (step_mean, step_variance) in enumerate(zip(step_means, step_variances, strict=True)):
            # The merge of `RunningMoments`, in plain numbers because it happens once per step.
            delta, total = step_mean - mean, count + size
            variance = (variance * count + step_variance * size + delta * delta * count * size / total) / total
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
        """[b, T] the sum of each row after each step; goes on with it where the trajectory ends."""
        sums, after = self._sums[rows], np.empty((len(rows), len(rewards)))
        for t in range(len(rewards)):
            sums = self.gamma * sums + rewards[t]
            after[:, t] = sums
            sums = np.where(ended[t], 0.0, sums)
        self._sums[rows] = sums
        return after

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
