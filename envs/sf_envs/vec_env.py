"""Vector environments of the shape that Isaac Lab, legged_gym and rsl_rl share, as simulators in tensors.

import sf
from sf_envs.vec_env import FromVecEnv

sf.register_env("Anymal", make_tensors=lambda num_envs: FromVecEnv(make_my_vec_env(num_envs)))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from sf.errors import EnvError


class FromVecEnv:
    """A `sf.envs.tensors.TensorEnv` from an object with `num_envs`, `num_actions`, `get_observations()` and `step()`.

    Its `step(actions)` returns observations, rewards, dones and extras, and resets by itself. `extras["time_outs"]`
    tells which episodes were truncated. It gives no final observations, and takes its seed when it is made.
    Observations are tensors, or groups of them by name. Numbers of `extras["log"]` with one entry for each copy are
    metrics.
    """

    def __init__(self, env: Any, action_limit: float = 1.0) -> None:
        """Takes a vector environment whose actions are numbers between `-action_limit` and `action_limit`.

        Raises:
            EnvError: it lacks one of these members.
        """
        for name in ("num_envs", "num_actions", "get_observations", "step"):
            if not hasattr(env, name):
                raise EnvError(
                    f"{type(env).__name__} has no {name!r}, expected num_envs, num_actions, get_observations() and "
                    "step(actions), as vector environments of rsl_rl and Isaac Lab have."
                )
        self._env, self.num_envs = env, int(env.num_envs)
        self.observation_space = _space(_first(env.get_observations()))
        self.action_space: gymnasium.Space[Any] = spaces.Box(
            -action_limit, action_limit, (int(env.num_actions),), np.float32
        )
        self._none = torch.zeros(self.num_envs, dtype=torch.bool)

    def reset(self, seed: int | None) -> Any:
        """Begins every episode, where it can be asked for."""
        return _first(self._env.reset() if hasattr(self._env, "reset") else self._env.get_observations())

    def step(self, actions: Tensor) -> tuple[Any, Tensor, Tensor, Tensor, Mapping[str, Any]]:
        """One step of all copies."""
        seen, rewards, dones, extras = self._env.step(actions)
        over = dones.to(torch.bool)
        out_of_time = extras.get("time_outs", self._none.to(over.device)).to(torch.bool) & over
        log = extras.get("log", {})
        metrics = {
            name: value for name, value in log.items() if isinstance(value, Tensor) and value.shape == rewards.shape
        }
        return _first(seen), rewards, over & ~out_of_time, out_of_time, {"metrics": metrics}

    def close(self) -> None:
        """Closes the vector environment, if it can be closed."""
        if hasattr(self._env, "close"):
            self._env.close()


def _first(result: Any) -> Any:
    """The observations; older versions return them with a dict of extras."""
    seen = result[0] if isinstance(result, tuple) else result
    return {key: seen[key] for key in seen.keys()} if hasattr(seen, "keys") else seen  # noqa: SIM118, a TensorDict


def _space(seen: Any) -> gymnasium.Space[Any]:
    if isinstance(seen, Mapping):
        return spaces.Dict({key: _space(part) for key, part in seen.items()})
    return spaces.Box(-np.inf, np.inf, tuple(seen.shape[1:]), np.float32)
