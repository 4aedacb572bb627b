"""ViZDoom scenarios, ``vizdoom/Basic``: a small picture and the game variables."""

from __future__ import annotations

import difflib
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

HEIGHT, WIDTH = 72, 96


class SmallScreen(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Picture [72, 96, 3] uint8 and game variables, float32."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        import cv2

        self._cv2 = cv2
        inner = env.observation_space.spaces
        self.observation_space = spaces.Dict(
            {
                "screen": spaces.Box(0, 255, (HEIGHT, WIDTH, 3), np.uint8),
                "gamevariables": inner["gamevariables"],
            }
        )

    def observation(self, observation: Any) -> Any:
        screen = self._cv2.resize(observation["screen"], (WIDTH, HEIGHT), interpolation=self._cv2.INTER_AREA)
        return {"screen": screen, "gamevariables": observation["gamevariables"]}


def make(scenario: str, frame_skip: int = 4, **kwargs: Any) -> Any:
    """A scenario as a `gymnasium.Env` with an observation of two entries, screen and gamevariables.

    Args:
        scenario: such as Basic or HealthGathering.
        frame_skip: frames that an action lasts.
        kwargs: further arguments of the environment.

    Raises:
        ValueError: there is no such scenario.
        ImportError: vizdoom or opencv is missing.
    """
    import cv2  # noqa: F401
    from vizdoom import gymnasium_wrapper  # noqa: F401  # registers its scenarios

    env_id = f"Vizdoom{scenario}-v1"
    if env_id not in gymnasium.registry:
        known = [other[len("Vizdoom") : -len("-v1")] for other in gymnasium.registry if other.startswith("Vizdoom")]
        near = difflib.get_close_matches(scenario, known, n=2) or ["Basic"]
        raise ValueError(
            f"There is no ViZDoom scenario {scenario!r}. Did you mean vizdoom/{' or vizdoom/'.join(near)}?"
        )
    return SmallScreen(gymnasium.make(env_id, disable_env_checker=True, frame_skip=frame_skip, **kwargs))
