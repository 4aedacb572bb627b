"""PPO with a bonus for what is new: random network distillation (Burda et al. 2018, arXiv:1810.12894).

A predictor learns the outputs of a fixed random network. Its error is large where it has seen little, and is a second
reward. That reward goes on across the ends of episodes, has its own discount, and its own value network. The advantages
of both rewards are added.

Two things differ from the paper. The second value has a network of its own instead of a second head. The second rewards
are divided by the deviation of their discounted sums within trajectories, and not within endless episodes.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from sf.algorithms.critics import Critics
from sf.algorithms.settings import expect_in_range
from sf.config import LearnerConfig
from sf.config.ranges import AT_LEAST_0, UNIT, Range
from sf.errors import ConfigError
from sf.learner.acting_network import ActingNetwork
from sf.learner.algorithm import Losses
from sf.learner.batch import Batch
from sf.learner.dataset import Transitions
from sf.learner.ppo import PPO
from sf.learner.returns import gae
from sf.learner.statistics import RunningMoments
from sf.learner.trained_network import TargetNetwork, TrainedNetwork
from sf.policy import ActorCritic, Evaluation


class RND(PPO):
    """For environments whose rewards are too rare to be found by chance."""

    def __init__(
        self,
        config: LearnerConfig,
        extrinsic_coeff: float = 2.0,
        intrinsic_coeff: float = 1.0,
        intrinsic_gamma: float = 0.99,
        num_features: int = 64,
        predictor_share: float = 0.25,
        learning_rate: float = 1e-4,
    ) -> None:
        """See `Algorithm`.

        Args:
            config: of the learner.
            extrinsic_coeff: weight of the advantages for the rewards of the environment.
            intrinsic_coeff: weight of the advantages for the bonus.
            intrinsic_gamma: discount of the bonus.
            num_features: outputs of the random network.
            predictor_share: part of the transitions that train the predictor.
            learning_rate: of the predictor; the value network of the bonus has that of the policy.
        """
        super().__init__(config)
        expect_in_range(
            "rnd", num_features=(num_features, Range(2)), predictor_share=(predictor_share, UNIT),
            intrinsic_gamma=(intrinsic_gamma, UNIT), learning_rate=(learning_rate, AT_LEAST_0),
        )  # fmt: skip
        self._coeffs, self._gamma = (extrinsic_coeff, intrinsic_coeff), intrinsic_gamma
        self._num_features, self._share, self._rate = num_features, predictor_share, learning_rate

    def begin(self, acting: ActingNetwork) -> None:
        """See `Algorithm`."""
        policy, device = acting.policy, acting.policy.flat.device
        if policy.state_size:
            raise ConfigError(
                ["algorithm=rnd values single observations, but use_rnn=True remembers earlier ones. Leave it out."]
            )
        self._acting = acting
        self.random = TargetNetwork(Critics(acting, self._num_features, takes_action=False, number=1), device)
        predictor = Critics(acting, self._num_features, takes_action=False, number=1)
        self.predictor = TrainedNetwork(predictor, self._rate, device)
        self.value = TrainedNetwork(Critics(acting, 1, takes_action=False, number=1), acting.learning_rate, device)
        self.scale = RunningScale(device)

    def prepare(self, batch: Batch, policy: ActorCritic) -> Transitions:
        """See `Algorithm.prepare`; the advantages are those of both rewards."""
        bonuses, values = self._bonuses_and_values(batch)
        if self.is_first_epoch:  # later the predictor has learned from this batch
            self.scale.update(discounted_sums(bonuses, self._gamma), self._acting)
            self._bonuses = bonuses / self.scale.deviation
        bonuses = self._bonuses
        never = torch.zeros_like(batch.terminated)
        advantages = gae(bonuses, values[:-1], values[1:], never, never, self._gamma, self.config.gae_lambda)
        targets = (advantages + values[:-1]).flatten()
        transitions = super().prepare(batch, policy).with_columns(bonuses=bonuses.flatten(), bonus_targets=targets)
        of_reward, of_bonus = self._coeffs
        both = of_reward * transitions.advantages + of_bonus * advantages.flatten()
        return replace(transitions, advantages=both)

    @torch.no_grad()
    def _bonuses_and_values(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """[T, B] errors of the predictor after each step, and [T+1, B] values of the bonus."""
        shape = batch.rewards.shape[0] + 1, batch.rewards.shape[1]
        inputs = self._acting.inputs({name: leaf.flatten(0, 1) for name, leaf in batch.observations.items()})
        errors = squared_errors(self.predictor(inputs), self.random(inputs))
        return errors.view(shape)[1:], self.value(inputs).view(shape)

    def loss(self, evaluation: Evaluation, minibatch: Transitions) -> Losses:
        """See `Algorithm.loss`; that of PPO, and those of the networks beside the policy."""
        inputs = self._acting.inputs(minibatch.observations)
        chosen = torch.rand(len(minibatch), device=inputs[next(iter(inputs))].device) < self._share
        errors = squared_errors(self.predictor(inputs), self.random(inputs))
        prediction = torch.where(chosen, errors, 0.0).sum() / chosen.sum().clamp(min=1)
        value = 0.5 * (self.value(inputs)[0] - minibatch["bonus_targets"]).square().mean()
        losses = super().loss(evaluation, minibatch).plus(prediction_loss=prediction, bonus_value_loss=value)
        return Losses(losses.total, {**losses.terms, "bonus": minibatch["bonuses"].mean()})

    def after_step(self, size: int) -> None:
        """See `Algorithm`."""
        self.value.learning_rate = self._acting.learning_rate
        for network in (self.predictor, self.value):
            network.step(size, self._acting.peers)


class RunningScale(nn.Module):
    """The deviation of all numbers so far, saved with the networks."""

    def __init__(self, device: torch.device) -> None:
        """Begins with the deviation 1."""
        super().__init__()
        self._moments = RunningMoments((), device)
        for name in ("mean", "variance", "count"):
            self.register_buffer(name, getattr(self._moments, name))

    def update(self, samples: Tensor, acting: ActingNetwork) -> None:
        """Takes in samples, those of all learners."""
        self._moments.update(samples.flatten(), acting.peers)

    @property
    def deviation(self) -> Tensor:
        """Scalar, float32, never 0."""
        return self._moments.variance.sqrt().clamp(min=1e-8).to(torch.float32)


def squared_errors(predicted: Tensor, wanted: Tensor) -> Tensor:
    """[N] half of the mean squared difference of features [1, N, n]."""
    return 0.5 * (predicted - wanted).square().mean(-1).squeeze(0)


def discounted_sums(rewards: Tensor, gamma: float) -> Tensor:
    """[T, B] of the rewards [T, B] so far in their trajectory, where earlier ones count less."""
    sums = torch.empty_like(rewards)
    total = torch.zeros_like(rewards[0])
    for step, reward in enumerate(rewards):
        total = gamma * total + reward
        sums[step] = total
    return sums
