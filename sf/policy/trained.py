"""The two policies around a network: one that collects experience for training, and one to use afterwards."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal
from torch.nn import functional

from sf.config.observation_groups import policy_leaves
from sf.nets.actor_critic import ActorCritic
from sf.nets.categorical import MASKED_LOGIT
from sf.nets.outputs import CollectInfo, PolicyStep
from sf.policy.leaf_distributions import Choices, Joint, SquashedNormal
from sf.policy.nests import Nest, find, map_leaves, nest_of
from sf.policy.policy import Policy
from sf.policy.seeding import Seed
from sf.policy.specs import (
    BoundedTensorSpec,
    TensorSpec,
    clip_to_spec,
    columns_of_parts,
    leaf_spec,
    spec_of_action,
    spec_of_observation,
)
from sf.policy.steps import TimeStep
from sf.spaces import ActionBounds, ActionColumn, ActionPart, EnvInfo, scale_of


class CollectPolicy(Policy):
    """The policy under training: it acts with what the trajectories store.

    Observations are a dict of leaves, actions are rows of columns as they are drawn (see `sf.spaces`). The
    recurrent state is one row of numbers. Nothing is clipped, because the log-probability belongs to the action as
    drawn. The code that steps the environment brings actions into its bounds. The info holds what training needs, see
    `CollectInfo`.
    """

    masks_in_network = True

    def __init__(self, network: ActorCritic, **options: Any) -> None:
        """Acts with a network.

        Args:
            network: shared, not copied.
            options: emit_log_probability, automatic_state_reset and so on, see `Policy`; clip is False.
        """
        info = network.info
        value = TensorSpec((), torch.float32, "value_prediction")
        params = TensorSpec((network.distribution.num_params,), torch.float32, "action_params")
        super().__init__(
            time_step_spec({name: leaf_spec(leaf) for name, leaf in info.observations.items()}),
            _stored_action_spec(info),
            TensorSpec((network.state_size,), torch.float32, "memory") if network.state_size else (),
            CollectInfo((), value, params),
            **{"clip": False, **options},
        )
        self.network, self.device = network, network.flat.device
        self._event_shape = info.action.shape

    def _action(self, time_step: TimeStep, policy_state: Nest, seed: Seed) -> PolicyStep:
        generator = _generator(seed, self.device)
        return self._ordinary(self._as_specified(self.network.act(time_step.observation, policy_state, generator)))

    def _mode_action(self, time_step: TimeStep, policy_state: Nest) -> PolicyStep:
        step = self.network.act(time_step.observation, policy_state, greedy=True)
        return self._ordinary(self._as_specified(step))

    def _distribution(self, time_step: TimeStep, policy_state: Nest) -> PolicyStep:
        network = self.network
        params, values, state = network.forward(time_step.observation, policy_state)
        joint = Joint(network.distribution, params, self._event_shape)
        return self._as_specified(PolicyStep(joint, state, CollectInfo((), network.denormalize(values), params)))

    def _as_specified(self, step: PolicyStep) -> PolicyStep:
        """Without what is not asked for; a network without a recurrent state hands on the () that it was given."""
        return step if self.emit_log_probability else step._replace(info=step.info._replace(log_probability=()))


class ActingPolicy(Policy):
    """The same without values, for a network whose critic reads leaves that an evaluation may not have.

    The recurrent state is that of the policy alone, and the critic is never computed.
    """

    masks_in_network = True

    def __init__(self, network: ActorCritic, **options: Any) -> None:
        """Acts with a network; arguments as for `CollectPolicy`."""
        memory = network.memory
        super().__init__(
            time_step_spec(
                {name: leaf_spec(leaf) for name, leaf in policy_leaves(network.config, network.info).items()}
            ),
            _stored_action_spec(network.info),
            () if memory is None else TensorSpec((memory.state_size,), torch.float32, "memory"),
            CollectInfo((), (), TensorSpec((network.distribution.num_params,), torch.float32, "action_params")),
            **{"clip": False, **options},
        )
        self.network, self.device = network, network.flat.device

    def _action(self, time_step: TimeStep, policy_state: Nest, seed: Seed) -> PolicyStep:
        noise = self.network.noise(time_step.observation, _generator(seed, self.device))
        return self._step(time_step, policy_state, noise)

    def _mode_action(self, time_step: TimeStep, policy_state: Nest) -> PolicyStep:
        return self._step(time_step, policy_state, None)

    @torch.inference_mode()
    def _step(self, time_step: TimeStep, policy_state: Nest, noise: Tensor | None) -> PolicyStep:
        distribution = self.network.distribution
        params, state = self.network.policy_forward(time_step.observation, policy_state)
        actions = distribution.best(params) if noise is None else distribution.draw(params, noise)
        return self._ordinary(PolicyStep(actions, state, CollectInfo((), (), params)))


def evaluated_policy(network: ActorCritic) -> Policy:
    """The policy for evaluations on stored observations, which computes values only if it needs no further leaves."""
    kind = ActingPolicy if network.groups.differ else CollectPolicy
    return kind(network, validate_args=False)


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
        return self._act(time_step, policy_state, _generator(seed, self.device))

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


def time_step_spec(observation: Nest) -> TimeStep:
    """The specs of a time step whose observation has these specs."""
    return TimeStep(
        BoundedTensorSpec((), torch.int32, "step_type", 0, 2),
        TensorSpec((), torch.float32, "reward"),
        BoundedTensorSpec((), torch.float32, "discount", 0.0, 1.0),
        observation,
    )


def _stored_action_spec(info: EnvInfo) -> TensorSpec:
    columns, action = info.action.columns, info.action
    low = np.array([0.0 if column.num_choices else column.low for column in columns])
    high = np.array([column.num_choices - 1.0 if column.num_choices else column.high for column in columns])
    dtype = getattr(torch, action.dtype)
    if np.isinf(low).all() and np.isinf(high).all():
        return TensorSpec(action.shape, dtype, "action")
    return BoundedTensorSpec(action.shape, dtype, "action", low.reshape(action.shape), high.reshape(action.shape))


def _generator(seed: Seed, device: torch.device) -> torch.Generator | None:
    return seed if seed is None or isinstance(seed, torch.Generator) else torch.Generator(device).manual_seed(int(seed))
