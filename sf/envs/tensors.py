"""Simulators that step thousands of copies at once and hand out torch tensors.

`TensorEnv` is what such a simulator has. Here it becomes what the rest of the system steps: many copies as one
`gymnasium.vector.VectorEnv` that resets in the same step, or a single copy as a `gymnasium.Env`. Tensors on the CPU are
seen as NumPy arrays, without a copy until they are written into shared memory. Those of a device are copied to the
host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import gymnasium
import torch
from gymnasium.spaces import Box
from torch import Tensor

from sf.console import Console
from sf.envs.blame import blamed_on
from sf.envs.statistics import METRICS
from sf.errors import EnvError

FINAL = "final_observations"
Observations = Tensor | Mapping[str, Any]
"""[num_envs, ...], or a nest of them by the keys of a Dict space."""


class TensorEnv(Protocol):
    """Copies of an environment that advance together, as tensors on a device of their own.

    An episode that ends begins anew in the same step, whose observation is the first one of the next episode.
    """

    num_envs: int
    observation_space: gymnasium.Space[Any]
    """That of one copy."""
    action_space: gymnasium.Space[Any]
    """That of one copy."""

    def reset(self, seed: int | None) -> Observations:
        """Begins every episode and returns the first observations."""

    def step(self, actions: Tensor) -> tuple[Observations, Tensor, Tensor, Tensor, Mapping[str, Any]]:
        """Executes actions, [num_envs, ...] with the dtype of their space.

        Returns:
            Observations, rewards [num_envs], terminated [num_envs] bool, truncated [num_envs] bool, and extras:
            `final_observations`, those before the reset of the copies that were truncated, and `metrics`, name to
            [num_envs], as `info["metrics"]` of other environments. Both may be absent.
        """


@runtime_checkable
class SavesItsState(Protocol):
    """A simulator that can be brought back to where it was, so that a serial run goes on bit for bit."""

    def save_state(self) -> Mapping[str, Tensor]:
        """All that its next steps depend on, name to tensor, random numbers included."""

    def restore_state(self, state: Mapping[str, Tensor]) -> None:
        """Goes on where the state was saved, perhaps by another process; tensors may be on the host."""


class CheckedTensors:
    """A simulator, each of whose results has the number of rows, the types and the shapes that it has promised."""

    def __init__(self, env: TensorEnv, name: str = "") -> None:
        """Takes a simulator; `name` is for messages."""
        self.env, self.name = env, name or type(env).__name__
        for attribute in ("num_envs", "observation_space", "action_space", "reset", "step"):
            if not hasattr(env, attribute):
                raise EnvError(
                    f"{self.name} has no {attribute!r}, expected num_envs, observation_space, action_space, "
                    "reset(seed) and step(actions) of a simulator in tensors. Add what is missing."
                )
        self.device = torch.device("cpu")
        """Device of the observations that came last."""

    def reset(self, seed: int | None) -> Any:
        """The first observations, [num_envs, ...] or a nest of them."""
        return self._seen(self.env.reset(seed), "reset")

    def step(self, actions: Tensor) -> tuple[Any, Tensor, Tensor, Tensor, Mapping[str, Any]]:
        """The result of a step; nothing of it waits for the device."""
        result: Any = self.env.step(actions)
        if not isinstance(result, tuple) or len(result) != 5:
            raise EnvError(
                f"{self.name} returned {_named(result)} from step, expected a tuple of five: (observations, rewards, "
                "terminated, truncated, extras)."
            )
        seen, *columns, extras = result
        observations = self._seen(seen, "step")
        rewards, terminated, truncated = (
            self._column(value, what)
            for value, what in zip(columns, ("rewards", "terminated", "truncated"), strict=True)
        )
        for flags, what in ((terminated, "terminated"), (truncated, "truncated")):
            if flags.dtype is not torch.bool:
                raise EnvError(
                    f"{self.name} returned {what} {_named(flags)} from step, expected bool[{self.env.num_envs}]."
                )
        if not isinstance(extras, Mapping):
            raise EnvError(f"{self.name} returned extras of type {type(extras).__name__} from step, expected a dict.")
        return observations, rewards, terminated, truncated, extras

    def final(self, extras: Mapping[str, Any]) -> Any:
        """The final observations that came with a step; None if there are none."""
        if FINAL not in extras:
            return None
        return self._checked(
            extras[FINAL], "an observation from extras['final_observations'] of step", self.env.observation_space
        )

    def metrics(self, extras: Mapping[str, Any]) -> Mapping[str, Tensor]:
        """Numbers of the simulator's own, name to [num_envs]."""
        metrics = extras.get(METRICS, {})
        if not isinstance(metrics, Mapping):
            raise EnvError(
                f"{self.name} returned extras['metrics'] of type {type(metrics).__name__}, expected a dict of name to "
                f"[{self.env.num_envs}]."
            )
        return {name: self._column(value, f"metric {name!r}") for name, value in metrics.items()}

    def state(self) -> Mapping[str, Tensor] | None:
        """Where the simulator is, name to tensor; None if it cannot say."""
        if not isinstance(self.env, SavesItsState):
            return None
        with blamed_on(self.name, "save_state"):
            state: Any = self.env.save_state()
        if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
            raise EnvError(f"{self.name} returned something else from save_state than a dict of name to torch.Tensor.")
        return state

    def load_state(self, state: Mapping[str, Tensor], device: torch.device) -> None:
        """Brings the simulator back, whose observations were on a device.

        Raises:
            EnvError: it cannot be brought back, or raises.
        """
        if not isinstance(self.env, SavesItsState):
            raise EnvError(f"{self.name} has no save_state() and restore_state(state) any more.")
        with blamed_on(self.name, "restore_state"):
            self.env.restore_state(state)
        self.device = device

    def tell_of_no_finals(self) -> None:
        """Says what the value at a time limit is where no final observation comes."""
        Console().line(
            f"{self.name} gives no final_observations. The value at a time limit is that of the observation before "
            "the last step."
        )

    def expect_finals(self) -> EnvError:
        """The error of a simulator that has given final observations before."""
        return EnvError(
            f"{self.name} gave final_observations in an earlier step and none in this one, which truncates an "
            "episode. Give them in every step, or in none."
        )

    def _seen(self, observations: Any, call: str) -> Any:
        checked = self._checked(observations, f"an observation from {call}", self.env.observation_space)
        leaf = checked
        while isinstance(leaf, Mapping):
            leaf = next(iter(leaf.values()))
        self.device = leaf.device
        return checked

    def _checked(self, value: Any, what: str, space: Any = None) -> Any:
        parts = getattr(space, "spaces", None)
        if isinstance(value, Mapping) and parts is not None:
            return {key: self._checked(part, f"{what}, key {key!r},", parts.get(key)) for key, part in value.items()}
        num_envs = self.env.num_envs
        if parts is not None or not isinstance(value, Tensor):
            expected = "a torch.Tensor" if parts is None else f"a dict with {', '.join(map(repr, parts))}"
            raise EnvError(f"{self.name} returned {what} {_named(value)}, expected {expected}.")
        if value.ndim == 0 or len(value) != num_envs:
            raise EnvError(
                f"{self.name} returned {what} {_named(value)}, expected a first dimension of num_envs={num_envs}."
            )
        if isinstance(space, Box) and str(value.dtype) != f"torch.{space.dtype}":
            raise EnvError(
                f"{self.name} returned {what} {_named(value)}, expected {space.dtype}{[num_envs, *space.shape]} as its "
                "observation_space promises."
            )
        return value.detach()

    def _column(self, value: Any, what: str) -> Tensor:
        tensor: Tensor = self._checked(value, f"{what} from step")
        if tensor.shape != (self.env.num_envs,):
            raise EnvError(f"{self.name} returned {what} {_named(value)} from step, expected [{self.env.num_envs}].")
        return tensor


def _named(value: Any) -> str:
    """A value as type and shape."""
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, Tensor) else f"of type {type(value).__name__}"
