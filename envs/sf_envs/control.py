"""MuJoCo robots, ``mujoco/HalfCheetah``, in the version that published scores are for."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sf_envs.members import unknown_member, with_version

NEEDS_OLD_MUJOCO = ("Pusher",)
"""Robots whose version 4 runs with MuJoCo before 3 only."""
MODULE = "gymnasium.envs.mujoco"


def make(robot: str, **kwargs: Any) -> Any:
    """A robot as a `gymnasium.Env`; actions, observations and rewards are those of Gymnasium.

    Args:
        robot: such as HalfCheetah, which is version 4 if that runs with the MuJoCo of today and else 5; or with a
            version, HalfCheetah-v5.
        kwargs: arguments of the environment.

    Raises:
        EnvError: there is no such robot.
        ImportError: mujoco is missing.
    """
    import gymnasium
    import mujoco

    env_id = with_version(robot, 5 if robot in NEEDS_OLD_MUJOCO else 4)
    spec = gymnasium.registry.get(env_id)
    if spec is None or not str(spec.entry_point).startswith(MODULE):
        robots = {known for known, other in gymnasium.registry.items() if str(other.entry_point).startswith(MODULE)}
        raise unknown_member("mujoco", "MuJoCo robot", robot, robots | {known.rpartition("-v")[0] for known in robots})
    with _quiet(mujoco):
        return gymnasium.make(env_id, disable_env_checker=True, **kwargs)


@contextmanager
def _quiet(mujoco: Any) -> Iterator[None]:
    """Old models use old words, of which MuJoCo would write to a file in the working directory for each environment."""
    handler = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda text: None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # version 4 is old on purpose
            yield
    finally:
        mujoco.set_mju_user_warning(handler)
