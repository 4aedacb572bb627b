"""The policies that act in training and in evaluations, on observations and actions as they are stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sf.config.observation_groups import policy_leaves
from sf.nets.actor_critic import ActorCritic
from sf.nets.outputs import CollectInfo, PolicyStep
from sf.nets.seeding import Seed, generator_for
from sf.policy.leaf_distributions import Joint
from sf.policy.nests import Nest
from sf.policy.policy import Policy
from sf.policy.specs import BoundedTensorSpec, TensorSpec, leaf_spec, time_step_spec
from sf.policy.steps import TimeStep
from sf.spaces import EnvInfo


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
        generator = generator_for(seed, self.device)
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
        noise = self.network.noise(time_step.observation, generator_for(seed, self.device))
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


def _stored_action_spec(info: EnvInfo) -> TensorSpec:
    columns, action = info.action.columns, info.action
    low = np.array([0.0 if column.num_choices else column.low for column in columns])
    high = np.array([column.num_choices - 1.0 if column.num_choices else column.high for column in columns])
    dtype = getattr(torch, action.dtype)
    if np.isinf(low).all() and np.isinf(high).all():
        return TensorSpec(action.shape, dtype, "action")
    return BoundedTensorSpec(action.shape, dtype, "action", low.reshape(action.shape), high.reshape(action.shape))
