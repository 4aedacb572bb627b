"""Episodes to look at: in the window of the environment, or as a film."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sf.envs import EnvSource
from sf.envs.picture import look_at_first_picture, make_rendering, picture_of
from sf.evaluator.action_names import action_names
from sf.evaluator.candidates import LoadedPolicies
from sf.evaluator.film import Film
from sf.evaluator.observed import info_for
from sf.evaluator.panel import BEGINNING, LEAST_HEIGHT, EpisodeSoFar, Panel
from sf.evaluator.playing import Play
from sf.evaluator.tally import Episodes
from sf.processes.disposable import in_disposable_child
from sf.shared.arena import Array

Screen = Callable[[Any, float, float, bool], None]
"""Shows an environment at a number of frames per second; takes the reward of the step, and whether it was a reset."""
DEFAULT_FPS = 30.0
FIRST_PICTURE_S = 300.0
"""Longest wait for a process that makes the environment and draws one picture."""


def watch(
    loaded: LoadedPolicies,
    source: EnvSource,
    num_episodes: int,
    seed: int,
    output: Path | None,
    with_panel: bool,
    speed: float,
) -> list[Episodes]:
    """Plays episodes one after the other and shows every step.

    Args:
        loaded: the policies.
        source: makes the environment, which must be able to render.
        num_episodes: how many.
        seed: of environment and actions.
        output: film to write, .mp4 or .gif; None opens the window of the environment.
        with_panel: draw the value and the action probabilities beside the picture; of films only.
        speed: how much faster than real time.

    Returns:
        The episodes of each policy.

    Raises:
        EnvError: the environment cannot be made, or does not render.
        ExportError: the film cannot be written.
    """
    if output is not None:
        what = f"A first picture of {source.env_id}"
        in_disposable_child(look_at_first_picture, source, timeout_s=FIRST_PICTURE_S, what=what)
    screen: Screen = _Window(speed) if output is None else Recorder(Film(output), speed)
    watched = seen_by(source, screen, "human" if output is None else "rgb_array")
    info = info_for(loaded.policies, loaded.info, source)
    # In one environment at a time: where there are more policies than agents, one policy after the other.
    cast, together = loaded.cast, loaded.cast.num_blocks(info) == 1
    casts = [cast] if together else [cast.alone(policy_id) for policy_id in range(len(cast.policies))]
    played: list[Episodes] = []
    try:
        for cast in casts:
            play = Play(cast, watched, info, num_episodes, seed, max_envs=1)
            if isinstance(screen, Recorder) and with_panel:
                screen.beside = functools.partial(_beside, Panel(info.action), play)
            played += _play(play)
    finally:
        if isinstance(screen, Recorder):
            screen.film.close()
    return played


def seen_by(source: EnvSource, screen: Screen, mode: Literal["human", "rgb_array"] = "rgb_array") -> EnvSource:
    """Makes the same environment, which shows a screen every reset and step."""
    return replace(source, factory=_Factory(source, mode, screen), kwargs={}, modules=())


def _play(play: Play) -> list[Episodes]:
    try:
        play.start()
        while not play.tally.is_complete:
            play.step()
    finally:
        play.close()
    return play.tally.episodes


def _beside(panel: Panel, play: Play, env: Any, height: int, episode: EpisodeSoFar) -> Array:
    panel.names = panel.names or action_names(env, panel.action)
    return panel.draw(play.last_step, height, episode)


class _Factory:
    """Makes the environment so that it is seen after every reset and step."""

    def __init__(self, source: EnvSource, mode: Literal["human", "rgb_array"], screen: Screen) -> None:
        self.source, self.mode, self.screen = source, mode, screen

    def __call__(self, max_episode_steps: int | None = None) -> Any:
        """The environment; the caller sets the limit, so that it lies below the screen and only once."""
        env = make_rendering(replace(self.source, max_episode_steps=max_episode_steps), self.mode)
        fps = float(getattr(env, "metadata", {}).get("render_fps") or DEFAULT_FPS)
        for name in ("reset", "step"):
            setattr(env, name, self._seen(getattr(env, name), env, fps, name == "reset"))
        return env

    def _seen(self, method: Callable[..., Any], env: Any, fps: float, begins: bool) -> Callable[..., Any]:
        def call(*arguments: Any, **kwargs: Any) -> Any:
            result = method(*arguments, **kwargs)
            self.screen(env, fps, 0.0 if begins else _first_reward(result), begins)
            return result

        return call


def _first_reward(result: Any) -> float:
    """The reward of the first agent; 0 if it is no number, which is refused elsewhere."""
    try:
        return float(np.ravel(result[1])[0])
    except (TypeError, ValueError, IndexError):
        return 0.0


class _Window:
    """The environment shows itself; here only time passes."""

    def __init__(self, speed: float) -> None:
        self.speed, self._due = speed, time.monotonic()

    def __call__(self, env: Any, fps: float, reward: float, begins: bool) -> None:
        self._due = max(self._due + 1 / (fps * self.speed), time.monotonic())
        time.sleep(max(0.0, self._due - time.monotonic()))


class Recorder:
    """Adds every frame to a film."""

    def __init__(self, film: Film, speed: float) -> None:
        self.film, self.speed = film, speed
        self.beside: Callable[[Any, int, EpisodeSoFar], Array] | None = None
        self._episode = BEGINNING
        self._first: Array | None = None
        """First picture of an episode, added with the second one: the reset after the last episode begins none."""

    def __call__(self, env: Any, fps: float, reward: float, begins: bool) -> None:
        frame = picture_of(env, "The environment")
        step, total = self._episode
        self._episode = BEGINNING if begins else EpisodeSoFar(step + 1, total + reward)
        if self.beside is not None:
            frame = _enlarged(frame)
            frame = np.concatenate([frame, self.beside(env, len(frame), self._episode)], axis=1)
        if not begins and self._first is not None:
            self.film.add(self._first, fps * self.speed)
        self._first = frame if begins else None
        if not begins:
            self.film.add(frame, fps * self.speed)


def _enlarged(frame: Array) -> Array:
    """Each pixel as a square, where the picture is too small for a panel beside it."""
    times = -(-LEAST_HEIGHT // len(frame))
    return frame if times == 1 else frame.repeat(times, axis=0).repeat(times, axis=1)
