"""ViZDoom scenarios, ``vizdoom/Basic``: a small picture and the game variables."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from sf_envs.members import unknown_member, with_version

HEIGHT, WIDTH = 72, 96


class SmallScreen(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Picture [72, 96, channels] uint8 and, where the scenario has some, game variables, float32."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        import cv2

        self._cv2 = cv2
        inner = env.observation_space.spaces
        self._shape = (HEIGHT, WIDTH, inner["screen"].shape[2])
        parts: dict[str, spaces.Space[Any]] = {"screen": spaces.Box(0, 255, self._shape, np.uint8)}
        if "gamevariables" in inner:
            parts["gamevariables"] = inner["gamevariables"]
        self.observation_space = spaces.Dict(parts)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        with _engine_directory():  # the first reset starts the engine
            return super().reset(seed=seed, options=options)

    def observation(self, observation: Any) -> Any:
        screen = self._cv2.resize(observation["screen"], (WIDTH, HEIGHT), interpolation=self._cv2.INTER_AREA)
        small = {"screen": screen.reshape(self._shape)}  # opencv drops the axis of a single channel
        return small | {name: observation[name] for name in ("gamevariables",) if name in observation}


def make(scenario: str, frame_skip: int = 4, **kwargs: Any) -> Any:
    """A scenario as a `gymnasium.Env` with the observations ``screen`` and ``gamevariables``.

    Args:
        scenario: such as Basic or HealthGathering, or with a version, Freedoom1E1M1-S3-v0.
        frame_skip: frames that an action lasts.
        kwargs: further arguments of the environment.

    Raises:
        EnvError: there is no such scenario.
        ImportError: vizdoom or opencv is missing.
    """
    import cv2  # noqa: F401  # say at once that it is missing
    from vizdoom import gymnasium_wrapper  # noqa: F401  # registers its scenarios

    env_id = with_version(f"Vizdoom{scenario}", 1)
    if env_id not in gymnasium.registry:
        ours = [known for known in gymnasium.registry if known.startswith("Vizdoom")]
        names = (known.removeprefix("Vizdoom").removesuffix("-v1") for known in ours)
        raise unknown_member("vizdoom", "ViZDoom scenario", scenario, names)
    for name, value in kwargs.items():
        if name.endswith("_path") and os.path.exists(value):
            kwargs[name] = os.path.abspath(value)  # the engine starts elsewhere
    # The engine would keep its settings in a file in the working directory, where several processes share it.
    kwargs.setdefault("doom_config_path", os.devnull)
    return SmallScreen(gymnasium.make(env_id, disable_env_checker=True, frame_skip=frame_skip, **kwargs))


@contextlib.contextmanager
def _engine_directory() -> Iterator[None]:
    """Starts engines in a directory of this user: one makes the folder _vizdoom where it starts, unless it is there."""
    directory = os.path.join(tempfile.gettempdir(), f"sf-vizdoom-{os.getuid()}")
    os.makedirs(os.path.join(directory, "_vizdoom"), exist_ok=True)
    before = os.getcwd()
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)
