"""A batch made ready for training: transitions without time order, with advantages and value targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import repeat

import torch
from torch import Tensor

from sf.config import LearnerConfig
from sf.learner.batch import Batch
from sf.learner.column_names import unknown
from sf.learner.returns import gae, values_after, vtrace
from sf.policy import ActorCritic, Sequences

OF_SEVERAL_TENSORS = ("observations", "extra")


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
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    """[N, ...] columns that only an algorithm knows; `transitions["name"]` is one of them."""

    def __len__(self) -> int:
        return len(self.actions)

    def __getitem__(self, name: str) -> Tensor:
        """A column that the algorithm has added."""
        if name not in self.extra:
            raise KeyError(unknown(name, "column that prepare has added with with_columns", list(self.extra)))
        return self.extra[name]

    def with_columns(self, **columns: Tensor) -> Transitions:
        """The same transitions with further columns [N, ...], which minibatches then have as well."""
        for name, column in columns.items():
            assert len(column) == len(self), f"{name} has {len(column)} rows, but there are {len(self)} transitions"
        return replace(self, extra={**self.extra, **columns})

    def with_advantages(self, advantages: Tensor) -> Transitions:
        """The same transitions with other advantages [N]."""
        return Transitions(self.observations, **{**self.columns(), "advantages": advantages}, extra=self.extra)

    def take(self, rows: Tensor) -> Transitions:
        """The transitions at rows [n], copied."""

        def taken(columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: column.index_select(0, rows) for name, column in columns.items()}

        return Transitions(observations=taken(self.observations), extra=taken(self.extra), **taken(self.columns()))

    def take_parts(self, parts: Sequence[Tensor]) -> Iterator[Transitions]:
        """The transitions at the rows [n] of each part; one copy of each column for all of them."""
        rows, sizes = torch.cat(list(parts)), [len(part) for part in parts]

        def taken(columns: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
            each = [torch.split(column.index_select(0, rows), sizes) for column in columns.values()]
            return (dict(zip(columns, part, strict=True)) for part in zip(*each, strict=True)) if each else repeat({})

        for columns, observations, extra in zip(
            taken(self.columns()), taken(self.observations), taken(self.extra), strict=False
        ):
            yield Transitions(observations=observations, extra=extra, **columns)

    @property
    def num_bytes(self) -> int:
        """The memory of all columns."""
        return sum(column.nbytes for column in self.tensors().values())

    def tensors(self) -> dict[str, Tensor]:
        """All columns by name."""
        return {**self.columns(), **self.extra, **{f"observations.{name}": x for name, x in self.observations.items()}}

    def columns(self) -> dict[str, Tensor]:
        """The columns that every algorithm has, without the observations."""
        return {name: getattr(self, name) for name in COLUMNS}


COLUMNS = tuple(each.name for each in fields(Transitions) if each.name not in OF_SEVERAL_TENSORS)


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
    return _transitions(batch, policy, advantages, returns=advantages + batch.values)


def with_present_values(batch: Batch, policy: ActorCritic, config: LearnerConfig) -> Batch:
    """The batch with values under the present weights, if `recompute_advantages` says so.

    Final observations are not kept, so their values remain those of the acting side.
    """
    if not config.recompute_advantages:
        return batch
    _, values = evaluate_batch(batch, policy, config.num_minibatches)
    return batch.with_columns(values=values)


def with_vtrace(batch: Batch, policy: ActorCritic, config: LearnerConfig) -> Transitions:
    """The same with advantages and value targets by V-trace under the present weights."""
    log_probs, values = evaluate_batch(batch, policy, config.num_minibatches)
    return vtrace_transitions(batch, policy, config, log_probs, values)


def vtrace_transitions(
    batch: Batch, policy: ActorCritic, config: LearnerConfig, log_probs: Tensor, all_values: Tensor
) -> Transitions:
    """The same from log-probabilities [T, B] and values [T+1, B] of any policy."""
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
    return _transitions(batch, policy, advantages, returns=targets)


def _transitions(batch: Batch, policy: ActorCritic, advantages: Tensor, returns: Tensor) -> Transitions:
    """From advantages and value targets [T, B], both in units of the reward."""
    return Transitions(
        observations={name: leaf[:-1].flatten(0, 1) for name, leaf in batch.observations.items()},
        actions=batch.actions.flatten(0, 1),
        behavior_log_probs=batch.behavior_log_probs.flatten(),
        old_values=policy.normalize(batch.values.flatten()),
        advantages=advantages.flatten(),
        value_targets=policy.normalize(returns.flatten()),
        returns=returns.flatten(),
    )


def _ends_without_value(batch: Batch, config: LearnerConfig) -> Tensor:
    """[T, B] steps that bootstrap with zero."""
    return batch.terminated if config.value_bootstrap else batch.terminated | batch.truncated


@torch.no_grad()
def evaluate_batch(batch: Batch, policy: ActorCritic, num_parts: int = 1) -> tuple[Tensor, Tensor]:
    """Evaluates a batch under the present weights, without gradients.

    Args:
        batch: [T, B].
        policy: that evaluates it.
        num_parts: groups of trajectories that are evaluated one after the other, to use less memory.

    Returns:
        Log-probabilities [T, B] of the actions, and values [T+1, B] in units of the reward.
    """
    steps, num_trajectories = batch.rewards.shape
    if num_trajectories == 0:  # not every network takes none
        return batch.behavior_log_probs, batch.by_step["values"]
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
