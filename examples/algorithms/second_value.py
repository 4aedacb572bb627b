r"""PPO with a second value, of rewards that come soon, which the acting network computes and trajectories store.

    sf-train --env=CartPole-v1 --encoder=examples.algorithms.second_value:TwoValues \
        --algorithm=examples.algorithms.second_value:PPOWithSecondValue

A field that the network computes takes two lines: its name and shape in `fields`, and its value in `heads`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

import sf
from sf.config import ModelConfig
from sf.learner.batch import Batch
from sf.learner.dataset import Transitions
from sf.learner.returns import gae
from sf.policy import ActorCritic, Evaluation
from sf.shared.fields import StoredField, head_field
from sf.spaces import EnvInfo

NEAR_GAMMA = 0.9


class TwoValues(nn.Module):
    """Two layers for one vector, and a second value beside the one that every policy has."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], config: ModelConfig) -> None:
        super().__init__()
        ((size,),) = shapes.values()
        self.body = nn.Sequential(nn.Linear(size, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.near_value = nn.Linear(64, 1)

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """From [N, size] to features [N, 64]."""
        features: Tensor = self.body(*inputs.values())
        return features

    def heads(self, features: Tensor) -> dict[str, Tensor]:
        """What acting stores as `batch["near_value"]`, and losses find in `evaluation.heads`."""
        return {"near_value": self.near_value(features).squeeze(-1)}


class PPOWithSecondValue(sf.PPO):
    """Adds the advantages of both horizons; for the near one every end of an episode is final."""

    def fields(self, info: EnvInfo) -> Mapping[str, StoredField]:
        """See `sf.Algorithm.fields`."""
        return {"near_value": head_field(of_last=True)}

    def prepare(self, batch: Batch, policy: ActorCritic) -> Transitions:
        """See `sf.Algorithm.prepare`."""
        values, ended = batch["near_value"], batch.terminated | batch.truncated
        never = torch.zeros_like(ended)
        near = gae(batch.rewards, values[:-1], values[1:], ended, never, NEAR_GAMMA, self.config.gae_lambda)
        transitions = super().prepare(batch, policy).with_columns(near_targets=(near + values[:-1]).flatten())
        return replace(transitions, advantages=transitions.advantages + near.flatten())

    def loss(self, evaluation: Evaluation, minibatch: Transitions) -> sf.Losses:
        """See `sf.Algorithm.loss`."""
        errors = evaluation.heads["near_value"] - minibatch["near_targets"]
        return super().loss(evaluation, minibatch).plus(near_value_loss=0.5 * errors.square().mean())
