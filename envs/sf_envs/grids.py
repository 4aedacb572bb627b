"""MiniGrid worlds, ``minigrid/Empty-5x5``, without the text of the mission."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium import spaces

from sf_envs.members import unknown_member, with_version


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
        name: without MiniGrid-, such as DoorKey-5x5, which is version 0, or ObstructedMaze-Full-v1; BabyAI worlds keep
            their prefix: BabyAI-GoToObj.
        image_only: leave out the direction.
        kwargs: further arguments of the environment.

    Raises:
        EnvError: there is no such world.
        ImportError: minigrid is missing.
    """
    import minigrid  # noqa: F401  # registers its worlds

    env_id = with_version(name if name.startswith("BabyAI-") else f"MiniGrid-{name}", 0)
    if env_id not in gymnasium.registry:
        ours = [known for known in gymnasium.registry if known.startswith(("MiniGrid-", "BabyAI-"))]
        names = (known.removeprefix("MiniGrid-").removesuffix("-v0") for known in ours)
        raise unknown_member("minigrid", "MiniGrid world", name, names)
    return WithoutMission(gymnasium.make(env_id, disable_env_checker=True, **kwargs), image_only)
