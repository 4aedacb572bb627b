"""Environments of MuJoCo Playground, ``playground/CartpoleBalance``, many of them in one step of JAX.

Zakka et al. (2025), "MuJoCo Playground". As in its own training, an episode of a copy begins where the first one of
this copy began.
"""

from __future__ import annotations

import contextlib
import io
from typing import Any

from sf_envs.brax import Stateful
from sf_envs.jax_simulator import JaxSimulator
from sf_envs.members import unknown_member

with contextlib.redirect_stdout(io.StringIO()):  # it says what is not there
    from mujoco_playground import registry


def make(name: str, num_envs: int, max_episode_steps: int | None, **settings: Any) -> JaxSimulator:
    """Copies of an environment.

    Args:
        name: in MuJoCo Playground.
        num_envs: copies.
        max_episode_steps: longest episode; its own limit if None.
        settings: parts of its configuration, such as `action_repeat` and `impl`, the engine, jax where it is left out.

    Raises:
        EnvError: there is no such environment.
    """
    if name not in registry.ALL_ENVS:
        raise unknown_member("playground", "environment of MuJoCo Playground", name, registry.ALL_ENVS)
    config = registry.get_default_config(name)
    if "impl" in config:
        settings.setdefault("impl", "jax")  # Warp, which some take by themselves, is for accelerators
    env = registry.load(name, config=config, config_overrides=settings)
    own = int(config.episode_length)
    longest = own if max_episode_steps is None else min(own, max_episode_steps)
    return JaxSimulator(Stateful(env, longest), num_envs, f"playground/{name}")
