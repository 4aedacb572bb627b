"""Families of simulators in tensors, whose packages are imported when the first simulator is made."""

from __future__ import annotations

from typing import Any


def carts(num_envs: int, max_episode_steps: int = 500, device: str = "cpu") -> Any:
    """Carts with poles, see `sf_envs.carts`."""
    from sf_envs.carts import Carts

    return Carts(num_envs, max_episode_steps, device)


def gymnax(name: str, num_envs: int, max_episode_steps: int | None = None, **settings: Any) -> Any:
    """Copies of an environment of gymnax, see `sf_envs.gymnax`."""
    from sf_envs.gymnax import make

    return make(name, num_envs, max_episode_steps, **settings)


def brax(name: str, num_envs: int, max_episode_steps: int = 1000, **settings: Any) -> Any:
    """Copies of an environment of Brax, see `sf_envs.brax`."""
    from sf_envs.brax import make

    return make(name, num_envs, max_episode_steps, **settings)


def craftax(name: str, num_envs: int, max_episode_steps: int | None = None, **settings: Any) -> Any:
    """Copies of a game of Craftax, see `sf_envs.craftax`."""
    from sf_envs.craftax import make

    return make(name, num_envs, max_episode_steps, **settings)


def jumanji(name: str, num_envs: int, max_episode_steps: int | None = None, **settings: Any) -> Any:
    """Copies of an environment of Jumanji, see `sf_envs.jumanji`."""
    from sf_envs.jumanji import make

    return make(name, num_envs, max_episode_steps, **settings)


def playground(name: str, num_envs: int, max_episode_steps: int | None = None, **settings: Any) -> Any:
    """Copies of an environment of MuJoCo Playground, see `sf_envs.playground`."""
    from sf_envs.playground import make

    return make(name, num_envs, max_episode_steps, **settings)


def vmas(name: str, num_envs: int, max_episode_steps: int = 100, device: str = "cpu", **settings: Any) -> Any:
    """Copies of a scenario of VMAS, see `sf_envs.vmas`."""
    from sf_envs.vmas import Joint

    return Joint(name, num_envs, max_episode_steps, device=device, **settings)
