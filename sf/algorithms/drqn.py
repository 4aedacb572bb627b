"""Deep Q-learning for a recurrent policy (DRQN, Hausknecht and Stone 2015, arXiv:1507.06527).

Whole trajectories are drawn, with the recurrent state that they began with. Their first steps bring it up to date
before anything is learned (Kapturowski et al. 2019, "Recurrent experience replay in distributed reinforcement
learning", section 3). Double targets, duelling heads and ε-greedy acting are those of `DQN`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from sf.algorithms.dqn import action_values
from sf.algorithms.epsilon import EpsilonSchedule, epsilon_of
from sf.algorithms.settings import expect_in_range
from sf.config import LearnerConfig
from sf.config.ranges import AT_LEAST_1, UNIT
from sf.learner.acting_network import ActingNetwork
from sf.learner.off_policy import OffPolicy
from sf.learner.trajectory_ring import DrawnTrajectories, TrajectoryRing
from sf.shared.fields import StoredField
from sf.spaces import ACTION_MASK, EnvInfo


class DRQN(OffPolicy):
    """For one choice among several actions, where one observation does not tell everything."""

    draws_trajectories = True

    def __init__(
        self,
        config: LearnerConfig,
        burn_in_share: float = 0.25,
        num_steps: int = 3,
        double: bool = True,
        tau: float = 0.01,
        target_every: int = 1,
        epsilon_start: float = 1.0,
        epsilon_end: float = 0.05,
        epsilon_fraction: float = 0.2,
    ) -> None:
        """See `Algorithm`.

        Args:
            config: of the learner.
            burn_in_share: part of a trajectory whose steps, the first ones, only bring the recurrent state up to date;
                the last step is always learned from.
            num_steps: n, rewards that are summed before the value of an observation follows.
            double: let the present network choose the action that the target network values (van Hasselt et al. 2016,
                arXiv:1509.06461).
            tau: share of the way that the target network goes towards the present one.
            target_every: updates between two of these.
            epsilon_start: share of random actions at the start of the run.
            epsilon_end: the same at its end.
            epsilon_fraction: part of the run in which it falls from one to the other.
        """
        super().__init__(config)
        expect_in_range(
            "drqn", burn_in_share=(burn_in_share, UNIT), num_steps=(num_steps, AT_LEAST_1), tau=(tau, UNIT),
            target_every=(target_every, AT_LEAST_1),
        )  # fmt: skip
        self.num_steps, self._burn_in_share, self._double = num_steps, burn_in_share, double
        self._tau, self._target_every = tau, target_every
        self._schedule = EpsilonSchedule.checked("drqn", epsilon_start, epsilon_end, epsilon_fraction)

    def fields(self, info: EnvInfo) -> Mapping[str, StoredField]:
        """See `Algorithm`: none. A step that a time limit cut is not learned from."""
        return {}

    def ring(self, size: int) -> TrajectoryRing:
        """See `OffPolicy`."""
        return TrajectoryRing(size)

    def begin(self, acting: ActingNetwork) -> None:
        """See `OffPolicy`."""
        self._acting, self._epsilon = acting, epsilon_of(acting, "drqn")
        self._epsilon.fill_(self._schedule.start)
        self._masked = ACTION_MASK in acting.policy.info.observations
        self.target = copy.deepcopy(acting.policy)

    def explore(self) -> None:
        """See `OffPolicy`."""
        self._epsilon.fill_(self._schedule.at(self.progress))

    def update(self, minibatch: DrawnTrajectories) -> Mapping[str, Tensor]:
        """See `OffPolicy`. It takes no step where all steps of this learner lie in the burn-in or were cut."""
        length = len(minibatch.rewards)
        burn_in = min(int(self._burn_in_share * length), length - 1)
        rewards, terminated, truncated, actions, valid = (
            column[burn_in:]
            for column in (
                minibatch.rewards, minibatch.terminated, minibatch.truncated, minibatch.actions, minibatch.valid,
            )
        )  # fmt: skip
        is_learned = valid & ~truncated
        if not is_learned.any():
            return {}
        values = action_values(*minibatch.outputs(self._acting.policy, burn_in), self._masked)
        chosen = values[:-1].gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            following = action_values(*minibatch.outputs(self.target, burn_in), self._masked)
            best = (values if self._double else following).argmax(-1, keepdim=True)
            following = following.gather(-1, best).squeeze(-1)
            targets = n_step_targets(rewards, terminated, truncated, following, self.config.gamma, self.num_steps)
        losses = functional.smooth_l1_loss(chosen, targets, reduction="none")
        number = is_learned.sum()
        loss = torch.where(is_learned, losses, 0.0).sum() / number
        self._acting.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        grad_norm = self._acting.step(len(minibatch))
        if (self.version + 1) % self._target_every == 0:
            self._acting.lead(self.target, self._tau)
        if not self.is_shown:
            return {}
        return {
            "loss": loss, "grad_norm": grad_norm, "value": torch.where(is_learned, chosen, 0.0).sum() / number,
            "value_target": torch.where(is_learned, targets, 0.0).sum() / number, "epsilon": self._epsilon.clone(),
        }  # fmt: skip


def n_step_targets(
    rewards: Tensor, terminated: Tensor, truncated: Tensor, values: Tensor, gamma: float, num_steps: int
) -> Tensor:
    """[T, B] rewards of up to n steps and the value of the observation that follows them.

    There are fewer steps where the trajectory or the episode ends before. The last observation of an episode that a
    time limit cut is not there, so targets stop at the one before it, and the step that was cut has no target but that
    value.

    Args:
        rewards: [T, B].
        terminated: [T, B] bool, after which no value follows.
        truncated: [T, B] bool.
        values: [T+1, B] of the observations.
        gamma: discount of a step.
        num_steps: n.
    """
    length = len(rewards)
    ahead = (0, 0, 0, num_steps)
    rewards_of, ends, cuts = (
        functional.pad(rewards, ahead), functional.pad(terminated, ahead),
        functional.pad(truncated, ahead, value=True),
    )  # fmt: skip
    totals, discounts = torch.zeros_like(rewards), torch.ones_like(rewards)
    at = torch.arange(length, device=rewards.device).unsqueeze(-1).repeat(1, rewards.shape[1])
    goes_on, is_over = torch.ones_like(terminated), torch.zeros_like(terminated)
    for step in range(num_steps):
        taken = goes_on & ~cuts[step : step + length]
        totals = torch.where(taken, totals + discounts * rewards_of[step : step + length], totals)
        discounts = torch.where(taken, discounts * gamma, discounts)
        at += taken
        is_over |= taken & ends[step : step + length]
        goes_on = taken & ~is_over
    return totals + discounts * values.gather(0, at) * ~is_over
