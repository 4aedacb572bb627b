"""MiniGrid worlds, ``minigrid/Empty-5x5``, without the text of the mission."""

from __future__ import annotations

import difflib
from typing import Any

import gymnasium
from gymnasium import spaces


class WithoutMission(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Image [7, 7, 3] uint8 of object, colour and state, and the direction; or only the image."""

    def __init__(self, env: Any, image_only: bool) -> None:
        super().__init__(env)
        self.image_only = image_only
        parts = {name: part for name, part in env.observation_space.spaces.items() if name != "mission"}
        self.observation_space = parts["image"] if image_only else spaces.Dict(parts)

    def observation(self, observation: Any) -> Any:
        if self.image_only:
            return observation["image"]
        return {name: part for name, part in observation.items() if name != "mission"}


def make(name: str, image_only: bool = False, **kwargs: Any) -> Any:
    """A world as a `gymnasium.Env`.

    Args:
        name: without MiniGrid- and -v0, such as DoorKey-5x5; BabyAI worlds keep their prefix: BabyAI-GoToObj.
        image_only: leave out the direction.
        kwargs: further arguments of the environment.

    Raises:
        ValueError: there is no such world.
        ImportError: minigrid is missing.
    """
    import minigrid  # noqa: F401  # registers its worlds

    env_id = f"{name}-v0" if name.startswith("BabyAI") else f"MiniGrid-{name}-v0"
    if env_id not in gymnasium.registry:
        known = [
            other.removeprefix("MiniGrid-").removesuffix("-v0") for other in gymnasium.registry if "MiniGrid" in other
        ]
        near = difflib.get_close_matches(name, known, n=2) or sorted(known)[:2]
        raise ValueError(f"There is no MiniGrid world {name!r}. Did you mean minigrid/{' or minigrid/'.join(near)}?")
    return WithoutMission(gymnasium.make(env_id, disable_env_checker=True, **kwargs), image_only)
