r"""PPO with an auxiliary loss of a head of one's own: the features must also foretell the next observation.

    sf-train --env=CartPole-v1 --encoder=examples.algorithms.auxiliary_loss:Foresight \
        --algorithm=examples.algorithms.auxiliary_loss:PPOWithForesight

The encoder has the head, so that it is trained, published and saved with everything else. Acting does not compute it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import sf
from sf.config import ModelConfig
from sf.learner.batch import Batch
from sf.learner.dataset import Transitions
from sf.policy import ActorCritic, Evaluation


class Foresight(nn.Module):
    """Two layers for one vector, and a head that predicts how the vector changes."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], config: ModelConfig) -> None:
        super().__init__()
        ((size,),) = shapes.values()
        self.body = nn.Sequential(nn.Linear(size, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.change = nn.Linear(64, size)

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """From [N, size] to features [N, 64]."""
        features: Tensor = self.body(*inputs.values())
        return features

    def heads(self, features: Tensor) -> dict[str, Tensor]:
        """What losses find in `evaluation.heads`."""
        return {"change": self.change(features)}


class PPOWithForesight(sf.PPO):
    """PPO that also learns from how observations change; steps that end an episode say nothing about that."""

    def prepare(self, batch: Batch, policy: ActorCritic) -> Transitions:
        """See `sf.Algorithm.prepare`."""
        (leaf,) = batch.observations.values()
        goes_on = ~(batch.terminated | batch.truncated)
        columns = {"change": (leaf[1:] - leaf[:-1]).flatten(0, 1), "goes_on": goes_on.flatten()}
        return super().prepare(batch, policy).with_columns(**columns)

    def loss(self, evaluation: Evaluation, minibatch: Transitions) -> sf.Losses:
        """See `sf.Algorithm.loss`."""
        errors = (evaluation.heads["change"] - minibatch["change"]).square().mean(-1)
        goes_on = minibatch["goes_on"]
        foresight = torch.where(goes_on, errors, 0.0).sum() / goes_on.sum().clamp(min=1)
        return super().loss(evaluation, minibatch).plus(foresight_loss=foresight)
