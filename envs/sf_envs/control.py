"""MuJoCo robots, ``mujoco/HalfCheetah``, in the version that published scores are for."""

from __future__ import annotations

import difflib
import warnings
from typing import Any

NEEDS_OLD_MUJOCO = ("Pusher",)
"""Robots whose version 4 runs with MuJoCo before 3 only."""


def make(robot: str, version: int | None = None, **kwargs: Any) -> Any:
    """A robot as a `gymnasium.Env`; actions, observations and rewards are those of Gymnasium.

    Args:
        robot: such as HalfCheetah.
        version: of the environment; 4 if it runs with the MuJoCo of today, else 5.
        kwargs: further arguments of the environment.

    Raises:
        ValueError: there is no such robot.
        ImportError: mujoco is missing.
    """
    import gymnasium
    import mujoco  # noqa: F401  # say at once that it is missing

    env_id = f"{robot}-v{version or (5 if robot in NEEDS_OLD_MUJOCO else 4)}"
    spec = gymnasium.registry.get(env_id)
    if spec is None or not str(spec.entry_point).startswith("gymnasium.envs.mujoco"):
        robots = {
            known.rpartition("-")[0]
            for known, other in gymnasium.registry.items()
            if str(other.entry_point).startswith("gymnasium.envs.mujoco")
        }
        near = difflib.get_close_matches(robot, robots, n=1) or sorted(robots)[:3]
        raise ValueError(f"There is no MuJoCo environment {env_id}. Did you mean mujoco/{' or mujoco/'.join(near)}?")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # version 4 is old on purpose
        return gymnasium.make(env_id, disable_env_checker=True, **kwargs)
