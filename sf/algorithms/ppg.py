"""Phasic policy gradient (Cobbe et al. 2020, arXiv:2009.04416): PPO, and now and then a phase for the features.

Policy and value have separate networks, so the loss of one does not disturb the other. After some batches an auxiliary
phase trains the network of the policy to value observations as well, with a head that is for nothing else. A penalty
keeps what it chooses as it is. The value network trains on the same data.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from sf.algorithms.settings import expect_in_range
from sf.config import LearnerConfig
from sf.config.ranges import AT_LEAST_0, AT_LEAST_1
from sf.errors import ConfigError
from sf.learner.acting_network import ActingNetwork
from sf.learner.algorithm import FurtherStep
from sf.learner.dataset import Transitions
from sf.learner.ppo import PPO
from sf.learner.trained_network import TrainedNetwork
from sf.nets.actor_critic import Observations
from sf.nets.columns import Columns, kl_divergence
from sf.nets.networks import linear

Kept = tuple[dict[str, Tensor], Tensor, Tensor]
"""Observations [N, *shape] per leaf, returns [N] and versions [N] on the host."""


class PPG(PPO):
    """For policies and values with networks of their own."""

    def __init__(
        self, config: LearnerConfig, phase_batches: int = 16, phase_epochs: int = 6, clone_coeff: float = 1.0
    ) -> None:
        """See `Algorithm`.

        Args:
            config: of the learner.
            phase_batches: batches between two auxiliary phases, which learn from all of them.
            phase_epochs: of an auxiliary phase.
            clone_coeff: weight of the divergence from the policy before the phase.
        """
        super().__init__(config)
        expect_in_range(
            "ppg", phase_batches=(phase_batches, AT_LEAST_1), phase_epochs=(phase_epochs, AT_LEAST_1),
            clone_coeff=(clone_coeff, AT_LEAST_0),
        )  # fmt: skip
        self._batches, self._epochs, self._clone_coeff = phase_batches, phase_epochs, clone_coeff
        self._kept: list[Kept] = []

    def begin(self, acting: ActingNetwork) -> None:
        """See `Algorithm`."""
        policy = acting.policy
        if policy.value_encoder is None or policy.state_size:
            raise ConfigError(
                [
                    "algorithm=ppg needs a network for the policy and one for the value, without memory. Leave out "
                    "--actor_critic_share_weights and --use_rnn."
                ]
            )
        self._acting = acting
        with policy.flat.device:
            head = linear(policy.policy_head.in_features, 1, gain=1.0)
        self.head = TrainedNetwork(head, acting.learning_rate, policy.flat.device)

    def after_batch(self, transitions: Transitions, versions: Tensor) -> Iterator[FurtherStep]:
        """See `Algorithm`; the auxiliary phase, if it is time for one."""
        self._kept.append((transitions.observations, transitions.returns, versions))
        if len(self._kept) < self._batches:
            return
        observations, returns, versions = joined(self._kept)
        self._kept.clear()
        num_parts = self._batches * self.config.num_minibatches
        before = self._columns(observations, num_parts)
        for _ in range(self._epochs):
            for rows in torch.randperm(len(returns)).tensor_split(num_parts):
                there = rows.to(returns.device)
                part = {name: leaf[there] for name, leaf in observations.items()}
                acted = [tuple(numbers[there] for numbers in column) for column in before]
                yield FurtherStep(self._step(part, returns[there], acted), versions[rows])

    @torch.no_grad()
    def _columns(self, observations: Observations, num_parts: int) -> Columns:
        """The distributions of the actions now, also of what no observation changes; in parts, to use less memory."""
        rows = torch.arange(len(next(iter(observations.values()))))
        found = []
        for part in rows.tensor_split(num_parts):
            params, _ = self._acting.outputs({name: leaf[part] for name, leaf in observations.items()})
            found.append(self._acting.policy.distribution.columns(params))
        return [tuple(map(torch.cat, zip(*column, strict=True))) for column in zip(*found, strict=True)]

    def _step(self, observations: Observations, returns: Tensor, before: Columns) -> dict[str, Tensor]:
        """Equation 1 of the paper, and the loss of the value network; one step of each optimizer."""
        acting, policy = self._acting, self._acting.policy
        targets = policy.normalize(returns)
        params, values = acting.outputs(observations)
        head_values = self.head(policy.encoder(acting.policy_inputs(observations))).squeeze(-1)
        head_loss = 0.5 * (head_values - targets).square().mean()
        clone_loss = kl_divergence(before, policy.distribution.columns(params)).mean()
        value_loss = 0.5 * (values - targets).square().mean()
        acting.zero_grad()
        (head_loss + self._clone_coeff * clone_loss + value_loss).backward()
        self.head.learning_rate = acting.learning_rate
        self.head.step(len(returns), acting.peers)
        acting.step(len(returns))
        return {"phase_head_loss": head_loss, "phase_clone_loss": clone_loss, "phase_value_loss": value_loss}


def joined(kept: list[Kept]) -> Kept:
    """All of them as one."""
    observations, returns, versions = zip(*kept, strict=True)
    names = observations[0]
    return (
        {name: torch.cat([each[name] for each in observations]) for name in names},
        torch.cat(returns),
        torch.cat(versions),
    )
