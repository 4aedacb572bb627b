"""Pictures of an environment: whether it draws any, found out where it may break without harm."""

from __future__ import annotations

import os
import sys
from typing import Any, Literal

import numpy as np

from sf.envs.place import parameters_of
from sf.envs.source import EnvSource
from sf.errors import EnvError, text_of
from sf.shared.arena import Array


def make_rendering(source: EnvSource, mode: Literal["human", "rgb_array"]) -> Any:
    """The environment with a render mode.

    Raises:
        EnvError: it takes none, or cannot be made.
    """
    try:
        return source.make(render_mode=mode)
    except EnvError as error:
        if not _objects_to_mode(source, error):
            raise
        raise EnvError(
            f"{source.env_id} cannot be watched, because its constructor takes no render_mode. Give it an argument "
            f'render_mode: str | None = None, and a method render() for "{mode}".'
        ) from None


def _objects_to_mode(source: EnvSource, error: EnvError) -> bool:
    """Whether the constructor has raised because there is no such argument, at any depth of causes."""
    cause: BaseException = error
    while cause.__cause__ is not None:  # Gymnasium adds all arguments to the text, and so names this one in any case
        cause = cause.__cause__
    if not isinstance(cause, TypeError):
        return False
    told = str(cause)
    if "render_mode" in told:
        return any(text in told for text in ("unexpected keyword", "invalid keyword", "positional-only"))
    # Without any argument its name is not told; then it is the culprit if it is the only one, and not asked for.
    is_only_one = not source.kwargs and "render_mode" not in parameters_of(source.maker())
    return is_only_one and ("takes no arguments" in told or "takes no keyword arguments" in told)


def look_at_first_picture(source: EnvSource) -> None:
    """Makes the environment, resets it and looks at what it draws; to be called in a process of its own.

    Raises:
        EnvError: it draws nothing.
    """
    env = make_rendering(source, "rgb_array")
    env.reset(seed=0)
    picture_of(env, source.env_id)


def picture_of(env: Any, env_id: str) -> Array:
    """uint8[height, width, 3], the result of `render`.

    Raises:
        EnvError: it raises, or returns something else.
    """
    try:
        frame = env.render()
    except Exception as error:
        if isinstance(error, NotImplementedError) and not text_of(error).strip():
            raise EnvError(
                f"{env_id} draws no picture: it has no render(). Write one that returns uint8[height, width, 3], and "
                'metadata = {"render_modes": ["rgb_array"]}.'
            ) from error
        raise EnvError(
            f"{env_id} draws no picture: render() raised {type(error).__name__}: {text_of(error).strip()}.{_hint()}"
        ) from error
    if isinstance(frame, list) and frame:
        frame = frame[-1]
    array = np.asarray(frame)
    if array.ndim != 3 or array.shape[2] != 3 or array.dtype != np.uint8:
        found = f"{array.dtype}{list(array.shape)}" if isinstance(frame, np.ndarray) else type(frame).__name__
        raise EnvError(
            f"{env_id}: render() returned {found}, expected a picture, uint8[height, width, 3]. The environment must "
            'support render_mode="rgb_array".'
        )
    return array


def _hint() -> str:
    """Advice for MuJoCo without a display."""
    if "mujoco" not in sys.modules or os.environ.get("MUJOCO_GL") not in (None, "", "glfw"):
        return ""
    return " Where there is no display, MuJoCo draws with MUJOCO_GL=egl or, without a graphics card, MUJOCO_GL=osmesa."
