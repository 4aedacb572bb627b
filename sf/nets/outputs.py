"""The outputs of a network for observations, and its inputs for recorded ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

GradientOfParams = Callable[[Tensor, Tensor], Tensor]
"""From the derivatives [B] with respect to log-probabilities and entropies to those with respect to the parameters."""


class CollectInfo(NamedTuple):
    """Side information that training needs about an action."""

    log_probability: Tensor | Any
    """[B] of the action that was chosen, before any clipping by the environment; () if it is not asked for."""
    value_prediction: Tensor | Any
    """[B] expected return of the observation, in units of the reward."""
    action_params: Tensor | Any
    """[B, n] parameters of the action distribution."""
    heads: Mapping[str, Tensor] = {}
    """[B, ...] what further heads say that a field of an algorithm asks for, see `ActorCritic.answer_heads`."""


class PolicyStep(NamedTuple):
    """The answer of a policy: an action or its distribution, the recurrent state afterwards, and side information."""

    action: Any
    state: Any = ()
    info: Any = ()


class Sequences(NamedTuple):
    """How recorded steps hang together, for a recurrent policy."""

    initial_state: Tensor
    """[B, S] recurrent state before the first step."""
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
    heads: Mapping[str, Tensor] = {}
    """[B, ...] what further heads of the user's encoder say, by name, see `ActorCritic.evaluate`."""

    def detached(self) -> Evaluation:
        """The same numbers, without the way back."""
        columns = {name: column.detach() for name, column in self._asdict().items() if name != "heads"}
        return Evaluation(**columns, heads={name: head.detach() for name, head in self.heads.items()})

    def take(self, rows: Tensor) -> Evaluation:
        """The evaluation at rows [n], copied."""
        columns = {name: column.index_select(0, rows) for name, column in self._asdict().items() if name != "heads"}
        return Evaluation(**columns, heads={name: head.index_select(0, rows) for name, head in self.heads.items()})
