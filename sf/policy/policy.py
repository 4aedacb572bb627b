"""The contract of everything that turns observations into actions.

    time step, state ──► action ──► action, next state, info
                    └──► distribution ──► distribution of the action, next state, info

It follows `TFPolicy` of TF-Agents (Guadarrama et al. 2018), for torch and Gymnasium.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from sf.nets.flat import named_variables
from sf.nets.outputs import PolicyStep
from sf.nets.seeding import Seed, seeded
from sf.policy.blending import blend
from sf.policy.leaf_distributions import mode_of
from sf.policy.log_probability import (
    log_probability_of,
    no_log_probability,
    with_log_probability,
    with_log_probability_spec,
)
from sf.policy.masks import Splitter, choose_splitter, masked
from sf.policy.nests import Nest, leaves, map_leaves
from sf.policy.recurrent import Recurrent
from sf.policy.specs import BoundedTensorSpec, clip_to_spec
from sf.policy.steps import TimeStep

FINAL_METHODS = ("action", "distribution", "get_initial_state", "update")


class Policy(Recurrent):
    """Turns time steps into actions; subclasses say how in `_distribution` or `_action`.

    The public methods check what goes in and comes out, start each episode with a new recurrent state, and clip. They
    are the same for all policies, so a subclass that overrides one cannot be built.

    A subclass implements `_distribution`, and where needed `_action` and `_get_initial_state`, and calls this
    constructor. Tensors may have a batch dimension before the shape of their spec. Where observations carry a mask of
    legal actions, `_distribution` is given the rest of them and returns a distribution that is not masked.
    """

    masks_in_network = False
    """Whether the network reads the mask itself, for every kind of action, so that no splitter is used."""
    masks_itself = False
    """Whether `_distribution` and `_action` are given whole observations, and mask what they return; a subclass that
    does so sets it and calls `_split`."""

    def __init__(
        self,
        time_step_spec: TimeStep,
        action_spec: Nest,
        policy_state_spec: Nest = (),
        info_spec: Nest = (),
        clip: bool = True,
        emit_log_probability: bool = False,
        automatic_state_reset: bool = True,
        observation_and_action_constraint_splitter: Splitter | None = None,
        validate_args: bool = True,
        name: str | None = None,
    ) -> None:
        """Everything that the public methods need to know.

        Args:
            time_step_spec: a `TimeStep` whose fields are nests of specs.
            action_spec: nest of specs of one action; the leaves with limits can be clipped.
            policy_state_spec: nest of specs of the recurrent state; () for a policy without one.
            info_spec: nest of specs of the side information.
            clip: clamp the leaves of an action to the limits of their specs in `action`.
            emit_log_probability: add the log-probability of the sampled action, before clipping, to the info.
            automatic_state_reset: take the initial state where a time step is the first of an episode.
            observation_and_action_constraint_splitter: from an observation to the part for the network and the mask of
                legal actions. An observation that is a dict with the key ``action_mask`` needs none.
            validate_args: check structure, type and shape of everything that goes in and comes out.
            name: for messages; the name of the class if it is left out.

        Raises:
            ValueError: a public method is overridden, or `time_step_spec` is no TimeStep of specs.
            NotImplementedError: a mask for actions that are not one leaf of choices. A mask for a subclass that
                implements `_action` and does not say that it masks by itself. A splitter where the network reads the
                mask.
        """
        kind = type(self)
        _expect_not_overridden(kind)
        if emit_log_probability:
            info_spec = with_log_probability_spec(info_spec, action_spec)
        super().__init__(time_step_spec, action_spec, policy_state_spec, info_spec, name or kind.__name__)
        self.clip, self.emit_log_probability, self.validate_args = clip, emit_log_probability, validate_args
        self.automatic_state_reset = automatic_state_reset
        self.observation_and_action_constraint_splitter = choose_splitter(
            observation_and_action_constraint_splitter, time_step_spec.observation, action_spec, self.masks_in_network
        )
        has_splitter = self.observation_and_action_constraint_splitter is not None
        self._is_masked_here = has_splitter and not (self.masks_in_network or self.masks_itself)
        if self._is_masked_here and kind._action is not Policy._action:
            raise NotImplementedError(
                f"{kind.__name__} implements _action, and its observations carry a mask, which would be ignored. "
                "Implement _distribution only, or mask in _action as well and set masks_itself = True."
            )
        self._has_bounds = any(isinstance(spec, BoundedTensorSpec) for spec in leaves(action_spec))
        self.train_step = -1
        """Optimizer steps after which the policy was saved; -1 if it is unknown."""
        self.metadata: dict[str, Any] = {}
        """Metadata that was saved beside the policy."""
        self._is_built = True

    # ------------------------------------------------------------------------------------------------------- public

    def action(self, time_step: TimeStep, policy_state: Nest = (), seed: Seed = None) -> PolicyStep:
        """Choose an action to execute.

        Args:
            time_step: from the environment.
            policy_state: recurrent state before the step; () for a policy without one.
            seed: of the random numbers, or their generator; the same seed gives the same action. None takes the global
                generator of torch.

        Raises:
            RuntimeError: the subclass did not call the constructor of `Policy`.
            ValueError: wrong structure or shape, or an empty batch.
            TypeError: wrong dtype, or a log-probability is asked for and there is no density.
        """
        self._expect_built()
        if self.validate_args:
            time_step, policy_state = self._drop_extra_keys(time_step, policy_state)
            outer = self._check_input(time_step, policy_state)
        if self.automatic_state_reset and self._has_state:
            policy_state = self._reset_state(time_step, policy_state)
        step = self._action(time_step, policy_state, seed)
        if self.validate_args:
            self._check_action_structure(step)
        if self.clip and self._has_bounds:
            step = self._clip(step)
        if self.validate_args:
            self._check_step_structure(step)
            self._check_action_tensors(step, outer)
        return step

    def predict(
        self,
        observation: Nest,
        state: Nest | None = None,
        episode_start: Any = None,
        deterministic: bool = False,
        action_masks: Any = None,
    ) -> tuple[Nest, Nest | None]:
        """Choose actions as the `predict` of Stable-Baselines3 does, whose evaluation code therefore takes a policy.

        Args:
            observation: arrays of one observation, or of a batch [B, ...].
            state: the second result of the call before; None at the beginning.
            episode_start: bool, or [B]; where it is True the recurrent state begins anew. None where none begins.
            deterministic: the most likely action, see `GreedyPolicy`, instead of a random one.
            action_masks: of the legal choices, [choices] or [B, choices], where they are no part of the observation.

        Returns:
            Arrays of actions, [B, ...] for a batch, and of the new recurrent state; None for a policy without one.

        Raises:
            ValueError, TypeError: an argument does not fit its spec.
        """
        from sf.policy.predicting import predict, with_masks  # which need policies

        return predict(self, with_masks(self, observation, action_masks), state, episode_start, deterministic)

    @functools.cached_property
    def _greedy(self) -> Policy:
        from sf.policy.greedy import GreedyPolicy  # one of this kind itself

        return GreedyPolicy(self)

    def distribution(self, time_step: TimeStep, policy_state: Nest = ()) -> PolicyStep:
        """The distribution that `action` would draw from, in place of the action; nothing is drawn or clipped.

        Where log-probabilities are emitted they are 0 here, because there is no action that they could belong to.

        Raises:
            RuntimeError, ValueError: as for `action`.
            TypeError: as for `action`, or a leaf is no `torch.distributions.Distribution`.
        """
        self._expect_built()
        if self.validate_args:
            time_step, policy_state = self._drop_extra_keys(time_step, policy_state)
            outer = self._check_input(time_step, policy_state)
        if self.automatic_state_reset and self._has_state:
            policy_state = self._reset_state(time_step, policy_state)
        step = self._masked_distribution(time_step, policy_state)
        if self.emit_log_probability:
            zeros = map_leaves(lambda _: no_log_probability(time_step.step_type, self.device), self._action_spec)
            step = step._replace(info=with_log_probability(step.info, zeros))
        if self.validate_args:
            self._check_action_structure(step)
            self._check_step_structure(step)
            self._check_distributions(step, outer)
        return step

    def update(
        self,
        policy: Policy,
        tau: float = 1.0,
        tau_non_trainable: float | None = None,
        sort_variables_by_name: bool = False,
    ) -> None:
        """Move the variables towards those of another policy: v = (1 - tau) v + tau source.

        Integer buffers cannot be blended; they are copied where their tau is above 0.

        Args:
            policy: the source.
            tau: of trainable variables, from 0 to 1; 1 copies bit by bit.
            tau_non_trainable: of all others, such as running statistics; None takes `tau`.
            sort_variables_by_name: pair the variables by sorted name instead of by the order of creation.

        Raises:
            ValueError: a tau outside of 0 to 1, or variables that differ in number or shape; nothing is changed then.
        """
        self._expect_built()
        blend(self, policy, tau, tau if tau_non_trainable is None else tau_non_trainable, sort_variables_by_name)

    def variables(self) -> dict[str, Tensor]:
        """Parameters, then buffers, by name and in the order of registration; `requires_grad` marks trainable ones."""
        return dict(named_variables(self))

    def get_train_step(self) -> int:
        """Optimizer steps after which the policy was saved; -1 if it is unknown."""
        return self.train_step

    # --------------------------------------------------------------------------------------------------- subclasses

    def _distribution(self, time_step: TimeStep, policy_state: Nest) -> PolicyStep:
        """A step with a `torch.distributions.Distribution` for each leaf of the action."""
        raise NotImplementedError(f"{type(self).__name__} does not implement _distribution.")

    def _action(self, time_step: TimeStep, policy_state: Nest, seed: Seed) -> PolicyStep:
        """A step with an action, not clipped; here one that is drawn from the distribution."""
        with seeded(seed, self.device):
            step = self._masked_distribution(time_step, policy_state)
            action = map_leaves(lambda distribution: distribution.sample(), step.action)
        return self._with_action(step, action, time_step)

    def _mode_action(self, time_step: TimeStep, policy_state: Nest) -> PolicyStep:
        """A step with the most likely action, not clipped."""
        step = self._masked_distribution(time_step, policy_state)
        return self._with_action(step, map_leaves(mode_of, step.action), time_step)

    def _masked_distribution(self, time_step: TimeStep, policy_state: Nest) -> PolicyStep:
        """The distribution that `_distribution` gives for its part of the observation, without forbidden choices.

        Raises:
            ValueError: the mask has another number of choices than the action.
            TypeError: the distribution has no logits that could be masked.
        """
        if not self._is_masked_here:
            return self._distribution(time_step, policy_state)
        part, mask = self._split(time_step.observation)
        step = self._distribution(time_step._replace(observation=part), policy_state)
        if mask is None:
            return step
        (spec,) = leaves(self._action_spec)
        return step._replace(action=map_leaves(lambda leaf: masked(leaf, mask, spec, self.name), step.action))

    def _split(self, observation: Nest) -> tuple[Nest, Tensor | None]:
        """The part of an observation that a network should see, and the mask of legal actions if there is one."""
        splitter = self.observation_and_action_constraint_splitter
        return (observation, None) if splitter is None else splitter(observation)

    def _with_action(self, step: PolicyStep, action: Nest, time_step: TimeStep) -> PolicyStep:
        """The step with an action in place of its distribution, and the log-probability where it is emitted."""
        if not self.emit_log_probability:
            return step._replace(action=action)
        num_outer = time_step.step_type.dim()
        log_probs = map_leaves(lambda d, a: log_probability_of(d, a, num_outer), step.action, action)
        return step._replace(action=action, info=with_log_probability(step.info, log_probs))

    def _ordinary(self, step: PolicyStep) -> PolicyStep:
        """The step in tensors that may take part in gradients, unlike those of the inference mode."""
        if not self.validate_args or torch.is_inference_mode_enabled():
            return step
        copied: PolicyStep = map_leaves(torch.clone, step)
        return copied

    def _clip(self, step: PolicyStep) -> PolicyStep:
        return step._replace(
            action=map_leaves(lambda spec, leaf: clip_to_spec(leaf, spec), self._action_spec, step.action)
        )


def _expect_not_overridden(kind: type[Policy]) -> None:
    """Raises ValueError: see the constructor of `Policy`."""
    if overridden := [method for method in FINAL_METHODS if getattr(kind, method) is not getattr(Policy, method)]:
        raise ValueError(
            f"{kind.__name__} overrides {', '.join(overridden)}, which checks and clips for all policies. "
            "Implement _distribution, _action or _get_initial_state instead."
        )
