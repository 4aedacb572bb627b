"""Simulators in tensors as what the rest of the system steps: all copies as one vector environment, or one alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from sf.envs.statistics import METRICS
from sf.envs.step_metrics import REDUCTIONS
from sf.envs.tensors import FINAL, CheckedTensors, TensorEnv
from sf.errors import EnvError
from sf.shared.arena import Array


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


def _copied(observations: Any) -> Any:
    if isinstance(observations, Mapping):
        return {key: _copied(part) for key, part in observations.items()}
    return observations.copy()


def _row(observations: Any) -> Any:
    """The observation of the only copy."""
    if isinstance(observations, Mapping):
        return {key: _row(part) for key, part in observations.items()}
    return observations[0]
