"""An algorithm that keeps state beside the policy: a target network, a predictor with an optimizer, a coefficient."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from sf.config import LearnerConfig
from sf.learner.algorithm import Losses
from sf.learner.batch import Batch
from sf.learner.dataset import Transitions
from sf.learner.ppo import PPO
from sf.policy import ActorCritic, Evaluation


class Keeping(PPO):
    """PPO that is held near a slow copy of itself, with rewards for observations that a predictor does not know."""

    def __init__(self, config: LearnerConfig) -> None:
        super().__init__(config)
        self.predictor: nn.Module | None = None
        self.heads = [nn.Linear(8, 8), nn.Linear(8, 8)]
        self.coefficient = 1.0

    def prepare(self, batch: Batch, policy: ActorCritic) -> Transitions:
        """Moves the target network and the predictor by one step each."""
        seen = batch.observations["obs"][:-1].flatten(0, 1)
        if self.predictor is None:
            self.target = copy.deepcopy(policy)
            self.predictor = nn.Linear(seen.shape[1], 8)
            self.optimizer = torch.optim.Adam([*self.predictor.parameters(), *self.heads[0].parameters()], lr=0.01)
        with torch.no_grad():
            self.target.flat.lerp_(policy.flat, 0.1)
        errors = self.heads[0](self.predictor(seen)).square().mean(1)
        self.optimizer.zero_grad()
        errors.mean().backward()
        self.optimizer.step()
        self.optimizer.param_groups[0]["lr"] *= 0.999
        self.coefficient *= 0.99
        bonus = self.coefficient * errors.detach().view(batch.rewards.shape)
        return super().prepare(batch.with_columns(rewards=batch.rewards + bonus), policy)

    def loss(self, evaluation: Evaluation, minibatch: Transitions) -> Losses:
        """That of PPO and a distance from the target network."""
        with torch.no_grad():
            target = self.target.evaluate(minibatch.observations, minibatch.actions)
        distance = (evaluation.log_probs - target.log_probs).square().mean()
        return super().loss(evaluation, minibatch).plus(distance=distance)

    def state_dict(self) -> dict[str, Tensor]:
        """The coefficient as well."""
        return {**super().state_dict(), "coefficient": torch.tensor(self.coefficient, dtype=torch.float64)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See `state_dict`."""
        self.coefficient = state["coefficient"].item()
        super().load_state_dict({name: tensor for name, tensor in state.items() if name != "coefficient"})
