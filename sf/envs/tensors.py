"""Simulators that step thousands of copies at once and hand out torch tensors.

`TensorEnv` is what such a simulator has. Here it becomes what the rest of the system steps: many copies as one
`gymnasium.vector.VectorEnv` that resets in the same step, or a single copy as a `gymnasium.Env`. Tensors on the CPU are
seen as NumPy arrays, without a copy until they are written into shared memory. Those of a device are copied to the
host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from torch import Tensor

from sf.console import Console
from sf.envs.blame import blamed_on
from sf.envs.statistics import METRICS
from sf.envs.step_metrics import REDUCTIONS
from sf.errors import EnvError
from sf.shared.arena import Array

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


class ManyTensors(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """All copies as one vector environment.

    Where a simulator gives no final observations, the value at a time limit is that of the observation before the last
    step, and a line says so once.
    """

    def __init__(self, env: TensorEnv, name: str = "") -> None:
        """Takes a simulator; `name` is for messages."""
        self.tensors = CheckedTensors(env, name)
        self.env = env
        self.num_envs = env.num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space, self.single_action_space = env.observation_space, env.action_space
        self.observation_space = batch_space(env.observation_space, self.num_envs)
        self.action_space = batch_space(env.action_space, self.num_envs)
        self._before: Any = None
        """What was seen before the present step, copied, until a step has brought final observations."""
        self._has_told = False

    @property
    def name(self) -> str:
        """For messages."""
        return self.tensors.name

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The first observations, as views of what the simulator returned."""
        with torch.no_grad(), _one_thread():
            observations = _on_host(self.tensors.reset(seed))
        self._before = _copied(observations)
        return observations, {}

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """One step of every copy, as views of what the simulator returned."""
        with torch.no_grad(), _one_thread():
            result = self.tensors.step(torch.as_tensor(np.asarray(actions), device=self.tensors.device))
        *arrays, extras = result
        observations, rewards, terminated, truncated = map(_on_host, arrays)
        infos: dict[str, Any] = {}
        if (truncated.astype(bool) & ~terminated.astype(bool)).any():
            infos["final_obs"] = self._final(extras)
        if METRICS in extras:
            self._add_metrics(infos, extras, terminated.astype(bool) | truncated.astype(bool))
        if self._before is not None:
            self._before = None if FINAL in extras else _copied(observations)
        return observations, rewards, terminated, truncated, infos

    def close_extras(self, **_: Any) -> None:
        """Closes the simulator, if it has something to close."""
        if (close := getattr(self.env, "close", None)) is not None:
            close()

    def _final(self, extras: Mapping[str, Any]) -> Any:
        """The observations at the end of the episodes that end in this step."""
        final = self.tensors.final(extras)
        if final is not None:
            return _on_host(final)
        if self._before is None:
            raise self.tensors.expect_finals()
        if not self._has_told:
            self._has_told = True
            self.tensors.tell_of_no_finals()
        return self._before

    def _add_metrics(self, infos: dict[str, Any], extras: Mapping[str, Any], over: Array) -> None:
        """Those of every step where a name asks for it, else those of episodes that end."""
        metrics = self.tensors.metrics(extras)
        if over.any() or any(name.rpartition("/")[2] in REDUCTIONS for name in metrics):
            infos[METRICS] = {name: _on_host(value) for name, value in metrics.items()}


class OneTensor(gymnasium.Env[Any, Any]):
    """A simulator of one copy as an ordinary environment, which begins each episode in `reset`."""

    is_repeatable = False
    """A reset without a seed is the one that the last step has made."""

    def __init__(self, env: TensorEnv, name: str = "") -> None:
        """Takes a simulator of one copy."""
        self._many = ManyTensors(env, name)
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.render_mode: str | None = None
        self._next: Any = None
        """First observation of an episode that has begun with the end of the last one."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The first observation."""
        begun, self._next = self._next, None
        return _row(self._many.reset(seed=seed)[0] if begun is None or seed is not None else begun), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step; the observation of a truncated episode is its final one."""
        seen, rewards, terminated, truncated, infos = self._many.step(np.asarray(action)[None])
        is_cut = bool(truncated[0]) and not terminated[0]
        if terminated[0] or truncated[0]:
            self._next = _copied(seen)
        info = {METRICS: {name: float(values[0]) for name, values in infos.get(METRICS, {}).items()}}
        final = infos["final_obs"] if is_cut else seen
        return _row(final), float(rewards[0]), bool(terminated[0]), bool(truncated[0]), info if METRICS in infos else {}

    def render(self) -> Any:
        """What the simulator draws.

        Raises:
            EnvError: it does not draw.
        """
        if not hasattr(self._many.env, "render"):
            raise EnvError(f"{self._many.name} cannot be drawn: it has no render().")
        return self._many.env.render()

    def close(self) -> None:
        """Closes the simulator."""
        self._many.close()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Torch computes on one core, because the others belong to other roles; threads that wait for one take 30 times."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _on_host(tensors: Any) -> Any:
    """A nest of tensors as NumPy arrays."""
    if isinstance(tensors, Mapping):
        return {key: _on_host(part) for key, part in tensors.items()}
    return tensors.cpu().numpy()


def _named(value: Any) -> str:
    """A value as type and shape."""
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, Tensor) else f"of type {type(value).__name__}"


def _copied(observations: Any) -> Any:
    if isinstance(observations, Mapping):
        return {key: _copied(part) for key, part in observations.items()}
    return observations.copy()


def _row(observations: Any) -> Any:
    """The observation of the only copy."""
    if isinstance(observations, Mapping):
        return {key: _row(part) for key, part in observations.items()}
    return observations[0]
