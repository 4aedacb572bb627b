"""The policy to use after training: a network with actions as the environment takes them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal
from torch.nn import functional

from sf.config.observation_groups import policy_leaves
from sf.nets.actor_critic import ActorCritic
from sf.nets.categorical import MASKED_LOGIT
from sf.nets.outputs import PolicyStep
from sf.nets.seeding import Seed, generator_for
from sf.policy.leaf_distributions import Choices, SquashedNormal
from sf.policy.nests import Nest, find, map_leaves, nest_of
from sf.policy.policy import Policy
from sf.policy.specs import (
    TensorSpec,
    clip_to_spec,
    columns_of_parts,
    spec_of_action,
    spec_of_observation,
    time_step_spec,
)
from sf.policy.steps import TimeStep
from sf.spaces import ActionBounds, ActionColumn, ActionPart
from sf.spaces.scaling import scale_of


class TrainedPolicy(Policy):
    """The policy for use: observations as the environment gives them, actions as it takes them.

    Numbers of a Box are scaled to its bounds, clipped to them or squashed into them, as in training. The recurrent
    state is a dict of ``hidden``, and for an LSTM ``cell``, each [layers, size]. There is no side information unless
    `emit_log_probability` asks for it. Takes one time step, or a batch of them.
    """

    masks_in_network = True

    def __init__(self, network: ActorCritic, action_bounds: ActionBounds = "scale", **options: Any) -> None:
        """Acts with a network.

        Args:
            network: shared, not copied.
            action_bounds: how Box actions are brought into their bounds.
            options: emit_log_probability, automatic_state_reset and so on, see `Policy`.
        """
        info, model = network.info, network.config
        leaves = policy_leaves(model, info)
        names = ("hidden", "cell") if model.rnn_type == "lstm" else ("hidden",)
        memory = (model.rnn_num_layers, model.rnn_size)
        super().__init__(
            time_step_spec(spec_of_observation(leaves)),
            spec_of_action(info.action),
            {name: TensorSpec(memory, torch.float32, name) for name in names} if model.use_rnn else (),
            **options,
        )
        self.network, self.model, self.action_bounds = network, model, action_bounds
        self.device = network.flat.device
        self._paths = tuple((name, leaf.path) for name, leaf in leaves.items())
        self.parts = columns_of_parts(info.action)
        self._limits = {
            part.path: self._limits_of(part, columns) for part, columns in self.parts if not columns[0].num_choices
        }
        """Scale of each numeric part, for a batch of columns: middle and half the width; lower and upper for tanh."""
        starts = [column.start for column in info.action.columns]
        start = torch.tensor(starts[0] if info.action.is_scalar else starts, device=self.device)
        self._start = start if any(starts) else None
        self._is_scalar = info.action.is_scalar
        self._choose, self._memory_names = network.choose, names
        # Drawn choices and modes are within their limits; numbers may not be, not even those of tanh after rounding.
        self._has_bounds &= len(info.action.choices) < len(info.action.columns)

    def _action(self, time_step: TimeStep, policy_state: Nest, seed: Seed) -> PolicyStep:
        if self.emit_log_probability:
            return super()._action(time_step, policy_state, seed)
        return self._act(time_step, policy_state, generator_for(seed, self.device))

    def _mode_action(self, time_step: TimeStep, policy_state: Nest) -> PolicyStep:
        if self.emit_log_probability:
            return super()._mode_action(time_step, policy_state)
        return self._act(time_step, policy_state, None, True)

    def _act(
        self, time_step: TimeStep, policy_state: Nest, generator: torch.Generator | None, greedy: bool = False
    ) -> PolicyStep:
        observations, state = self._read(time_step, policy_state)
        columns, state = self._choose(observations, state, generator, greedy)
        step = PolicyStep(self._to_action(columns), self._write_memory(state))
        return self._ordinary(self._unbatched(time_step, step))

    def act_greedily(self, observation: Nest, policy_state: Nest) -> tuple[Nest, Nest, Tensor]:
        """Most likely actions, next state and parameters of the distribution [B, n] of a batch, without any check."""
        observations = {name: find(observation, path) for name, path in self._paths}
        params, state = self.network.policy_forward(observations, self._join_memory(policy_state))
        action = self._to_action(self.network.distribution.best(params))
        clipped = map_leaves(lambda spec, leaf: clip_to_spec(leaf, spec), self.action_spec, action)
        return clipped, self._write_memory(state), params

    def _distribution(self, time_step: TimeStep, policy_state: Nest) -> PolicyStep:
        observations, state = self._read(time_step, policy_state)
        params, state = self.network.policy_forward(observations, state)
        if not time_step.step_type.dim():
            params = params[0]
        columns = self.network.distribution.columns(params)
        parts, first = {}, 0
        for part, specs in self.parts:
            own = columns[first : first + len(specs)]
            parts[part.path] = self._choices(part, specs, own) if specs[0].num_choices else self._numbers(part, own)
            first += len(specs)
        memory = self._write_memory(state)
        return PolicyStep(nest_of(parts), memory if time_step.step_type.dim() else map_leaves(lambda x: x[0], memory))

    def _choices(
        self, part: ActionPart, columns: tuple[ActionColumn, ...], logits: list[tuple[Tensor, ...]]
    ) -> Distribution:
        """Distribution of one choice, or of an array of choices; missing choices have probability 0."""
        start = torch.tensor([column.start for column in columns], device=self.device).reshape(part.shape)
        most = max(column.num_choices for column in columns)
        rows = [functional.pad(own, (0, most - own.shape[-1]), value=MASKED_LOGIT) for (own,) in logits]
        stacked = torch.stack(rows, -2)
        choices = Choices(stacked.reshape((*stacked.shape[:-2], *part.shape, most)), start)
        return Independent(choices, len(part.shape), validate_args=False) if part.shape else choices

    def _numbers(self, part: ActionPart, params: list[tuple[Tensor, ...]]) -> Distribution:
        dtype, rank = getattr(torch, part.dtype), len(part.shape)
        mean, std = (torch.stack(rows, -1) for rows in zip(*params, strict=True))
        mean, std = (x.reshape((*x.shape[:-1], *part.shape)).to(dtype) for x in (mean, std))
        if self.action_bounds == "tanh":
            low, high = (bound.reshape(part.shape) for bound in self._limits[part.path])
            return SquashedNormal(mean, std, low, high, rank)
        if self.action_bounds == "scale":
            middle, half = (x.reshape(part.shape) for x in self._limits[part.path])
            mean, std = middle + half * mean, half * std
        normal = Normal(mean, std, validate_args=False)
        return Independent(normal, rank, validate_args=False) if rank else normal

    def _read(self, time_step: TimeStep, policy_state: Nest) -> tuple[dict[str, Tensor], Tensor]:
        """Leaves [B, *shape] and memory [B, S] as the network takes them."""
        is_batch = time_step.step_type.dim()
        if is_batch > 1:
            raise ValueError(
                f"{self.name} takes one time step or a batch [B] of them, found {list(time_step.step_type.shape)}."
            )
        observations = {name: find(time_step.observation, path) for name, path in self._paths}
        if not is_batch:
            observations = {name: leaf.unsqueeze(0) for name, leaf in observations.items()}
            policy_state = map_leaves(lambda part: part.unsqueeze(0), policy_state)
        return observations, self._join_memory(policy_state)

    def _join_memory(self, policy_state: Nest) -> Nest:
        """[B, S], layer after layer, each with its hidden state and cell; the input if there is no such state."""
        if not self._has_state:
            return policy_state
        return torch.stack([policy_state[name] for name in self._memory_names], 2).flatten(1)

    def _write_memory(self, state: Tensor) -> Nest:
        if not self._has_state:
            return ()
        layers = state.view(-1, self.model.rnn_num_layers, len(self._memory_names), self.model.rnn_size)
        return {name: layers[:, :, index] for index, name in enumerate(self._memory_names)}

    def _to_action(self, columns: Tensor) -> Nest:
        """From stored columns [B] or [B, D] to the action of the environment; the bounds of `clip` come later."""
        if self._start is not None:
            columns = columns + self._start
        if self._is_scalar:
            return columns
        parts, first = {}, 0
        for part, specs in self.parts:
            own = columns[:, first : first + len(specs)].to(getattr(torch, part.dtype))
            if specs[0].num_choices:
                pass
            elif self.action_bounds == "scale":
                middle, half = self._limits[part.path]
                own = middle + half * own
            elif self.action_bounds == "tanh":
                low, high = self._limits[part.path]
                own = (high + low) / 2 + (high - low) / 2 * own.tanh()
            parts[part.path] = own.reshape(-1, *part.shape)
            first += len(specs)
        return nest_of(parts)

    def _limits_of(self, part: ActionPart, columns: tuple[ActionColumn, ...]) -> tuple[Tensor, Tensor]:
        """Two vectors, one number per column; see `scale_of`."""
        low, high = [column.low for column in columns], [column.high for column in columns]
        first, second = (low, high) if self.action_bounds == "tanh" else scale_of(low, high)
        to_tensor = partial(torch.tensor, dtype=getattr(torch, part.dtype), device=self.device)
        return to_tensor(first), to_tensor(second)

    def _unbatched(self, time_step: TimeStep, step: PolicyStep) -> PolicyStep:
        return step if time_step.step_type.dim() else map_leaves(lambda leaf: leaf[0], step)
