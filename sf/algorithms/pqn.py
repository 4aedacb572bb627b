"""Q-learning on fresh batches, without a replay buffer and target network (PQN, Gallici et al. 2024, arXiv:2407.04811).

Targets are Q(λ) returns: r + gamma ((1 - λ) max Q' + λ next return). With V(s) = max Q(s, a) these are the returns of
generalized advantage estimation, so batches are prepared as for PPO and `--gae_lambda` is λ. The heads of the policy
are V(s) and a score for each action, and Q(s, a) = V(s) + score - largest score. So values that were stored while
acting are those that the targets need, also behind a time limit.

Values and scores are in units of the returns so far, where `--normalize_returns` says so.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sf.algorithms.epsilon import EpsilonSchedule, epsilon_of
from sf.config import LearnerConfig
from sf.learner.acting_network import ActingNetwork
from sf.learner.algorithm import Algorithm, Losses
from sf.learner.batch import Batch
from sf.learner.dataset import Transitions
from sf.policy import ActorCritic, Evaluation


class PQN(Algorithm):
    """For one choice among several actions, in many environments at once."""

    def __init__(
        self,
        config: LearnerConfig,
        epsilon_start: float = 1.0,
        epsilon_end: float = 0.05,
        epsilon_fraction: float = 0.2,
    ) -> None:
        """See `Algorithm`.

        Args:
            config: of the learner.
            epsilon_start: share of random actions at the start of the run.
            epsilon_end: the same at its end.
            epsilon_fraction: part of the run in which it falls from one to the other.
        """
        super().__init__(config)
        self._schedule = EpsilonSchedule.checked("pqn", epsilon_start, epsilon_end, epsilon_fraction)
        self._progress = 0.0

    def begin(self, acting: ActingNetwork) -> None:
        """See `Algorithm`."""
        self._acting, self._epsilon = acting, epsilon_of(acting, "pqn")
        self._epsilon.fill_(self._schedule.start)

    def set_progress(self, fraction: float) -> None:
        """See `Algorithm`; the share of random actions changes with the next step, so that each version has one."""
        self._progress = fraction

    def after_step(self, size: int) -> None:
        """See `Algorithm`; sets the share of random actions."""
        self._epsilon.fill_(self._schedule.at(self._progress))

    def prepare(self, batch: Batch, policy: ActorCritic) -> Transitions:
        """See `Algorithm.prepare`."""
        self._unit = self._unit_of_values()
        return super().prepare(batch, policy)

    def after_statistics(self) -> None:
        """See `Algorithm`; scores follow the unit of values, as the value head does. The best action stays."""
        head = self._acting.policy.policy_head
        with torch.no_grad():
            for variable in (head.weight, head.bias):
                variable.mul_(self._unit / self._unit_of_values())

    def _unit_of_values(self) -> Tensor:
        """Scalar, what a value of 1 is in units of the reward."""
        normalizer = self._acting.policy.return_normalizer
        return torch.ones(()) if normalizer is None else normalizer.std.clone()

    def loss(self, evaluation: Evaluation, minibatch: Transitions) -> Losses:
        """See `Algorithm.loss`; half of the mean squared error of the actions that were chosen."""
        values = chosen_values(evaluation, minibatch.actions)
        loss = 0.5 * (values - minibatch.value_targets).square().mean()
        return Losses(loss, {"q_loss": loss, "q": values.mean(), "epsilon": self._epsilon.clone()})


def chosen_values(evaluation: Evaluation, actions: Tensor) -> Tensor:
    """[N] V + score of the action - largest score."""
    scores = evaluation.action_params
    chosen = scores.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    return evaluation.normalized_values + chosen - scores.amax(-1)
