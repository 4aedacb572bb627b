"""What a policy gives back when it acts and when it is trained."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class PolicyInfo(NamedTuple):
    """Side information that training needs about an action."""

    log_probability: Tensor
    """[B] of the action that was chosen, before any clipping by the environment."""
    value_prediction: Tensor
    """[B] expected return of the observation, in units of the reward."""


class PolicyStep(NamedTuple):
    """An action to execute."""

    action: Tensor
    """[B] or [B, D]: int64 choices counted from 0, and numbers of a Box as they were drawn."""
    state: Tensor
    """[B, S] memory after the step; S is 0 for a policy without one."""
    info: PolicyInfo


class Sequences(NamedTuple):
    """How recorded steps hang together, for a policy with memory."""

    initial_state: Tensor
    """[B, S] memory before the first step."""
    resets: Tensor
    """[T, B] bool, whether an episode begins with the step."""


class Evaluation(NamedTuple):
    """Recorded actions under the present weights, with gradients."""

    log_probs: Tensor
    """[B] of the recorded actions."""
    entropy: Tensor
    """[B] of the action distributions."""
    normalized_values: Tensor
    """[B] output of the value head, in units of the return statistics."""
    action_params: Tensor
    """[B, parameters of the action distribution]."""
