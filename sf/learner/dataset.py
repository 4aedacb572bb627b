"""A batch made ready for training: transitions without time order, with advantages and value targets."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from sf.config import LearnerConfig
from sf.learner.batch import Batch
from sf.learner.returns import gae, values_after, vtrace
from sf.policy import ActorCritic, Sequences


@dataclass(frozen=True)
class Transitions:
    """N transitions; values are in the units of the value head."""

    observations: dict[str, Tensor]
    """[N, *shape] per leaf."""
    actions: Tensor
    """[N] or [N, d]."""
    behavior_log_probs: Tensor
    """[N] of the actions, when acting."""
    old_values: Tensor
    """[N] value of the observation, when acting."""
    advantages: Tensor
    """[N], not normalized."""
    value_targets: Tensor
    """[N]."""
    returns: Tensor
    """[N] the value targets in units of the reward."""

    def __len__(self) -> int:
        return len(self.actions)

    def take(self, rows: Tensor) -> Transitions:
        """The transitions at rows [n], copied."""
        columns = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "observations"}
        return Transitions(
            observations={name: leaf.index_select(0, rows) for name, leaf in self.observations.items()},
            **{name: column.index_select(0, rows) for name, column in columns.items()},
        )


def with_gae(batch: Batch, policy: ActorCritic, config: LearnerConfig) -> Transitions:
    """All T·B transitions in the order of time, with advantages from the values of the acting side."""
    advantages = gae(
        batch.rewards,
        batch.values,
        values_after(batch.values, batch.bootstrap_values, batch.final_values, batch.truncated),
        _ends_without_value(batch, config),
        batch.truncated,
        config.gamma,
        config.gae_lambda,
    )
    returns = (advantages + batch.values).flatten()
    return Transitions(
        observations={name: leaf[:-1].flatten(0, 1) for name, leaf in batch.observations.items()},
        actions=batch.actions.flatten(0, 1),
        behavior_log_probs=batch.behavior_log_probs.flatten(),
        old_values=policy.normalize(batch.values.flatten()),
        advantages=advantages.flatten(),
        value_targets=policy.normalize(returns),
        returns=returns,
    )


def with_vtrace(transitions: Transitions, batch: Batch, policy: ActorCritic, config: LearnerConfig) -> Transitions:
    """The same transitions with advantages and targets by V-trace under the present weights."""
    log_probs, all_values = _evaluate(batch, policy, config.num_minibatches)
    values, bootstrap_values = all_values[:-1], all_values[-1]
    targets, advantages = vtrace(
        batch.behavior_log_probs,
        log_probs,
        batch.rewards,
        values,
        # Final observations are not kept, so their values remain those of the acting side.
        values_after(values, bootstrap_values, batch.final_values, batch.truncated),
        _ends_without_value(batch, config),
        batch.truncated,
        config.gamma,
        config.vtrace_rho,
        config.vtrace_c,
    )
    returns = targets.flatten()
    return replace(
        transitions, advantages=advantages.flatten(), value_targets=policy.normalize(returns), returns=returns
    )


def _ends_without_value(batch: Batch, config: LearnerConfig) -> Tensor:
    """[T, B] steps that bootstrap with zero."""
    return batch.terminated if config.value_bootstrap else batch.terminated | batch.truncated


@torch.no_grad()
def _evaluate(batch: Batch, policy: ActorCritic, num_parts: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities [T, B] and values [T+1, B] under the present weights, some trajectories at a time."""
    steps, num_trajectories = batch.rewards.shape
    actions = torch.cat([batch.actions, torch.zeros_like(batch.actions[:1])])  # of the last observation, for its value
    log_probs, values = [], []
    for columns in torch.arange(num_trajectories, device=actions.device).tensor_split(min(num_parts, num_trajectories)):
        evaluation = policy.evaluate(
            {name: leaf[:, columns].flatten(0, 1) for name, leaf in batch.observations.items()},
            actions[:, columns].flatten(0, 1),
            Sequences(batch.initial_memory[columns], batch.resets[:, columns]),
        )
        log_probs.append(evaluation.log_probs.view(steps + 1, -1)[:-1])
        values.append(policy.denormalize(evaluation.normalized_values).view(steps + 1, -1))
    return torch.cat(log_probs, 1), torch.cat(values, 1)
