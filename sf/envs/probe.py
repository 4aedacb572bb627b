"""A first look at an environment, before a run spends anything on it."""

from __future__ import annotations

import importlib
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from sf.envs.arguments import layer_with
from sf.envs.blame import blamed_on
from sf.envs.contract import (
    describe,
)
from sf.envs.random_player import SEED, RandomPlayer, checked_reset, timed
from sf.envs.source import EnvSource, is_gymnasium, with_mask
from sf.envs.step_time import StepTime
from sf.envs.wrappers import note_on_statistics
from sf.errors import EnvCrashed, EnvError, text_of
from sf.shared.progress import Phase, Progress, unwatched
from sf.spaces import ACTION_MASK, EnvInfo

NUM_STEPS = 8
"""That an environment has to play without raising anything; later on, a copy of it may do better."""


class FirstLook(NamedTuple):
    """The findings of the first look."""

    info: EnvInfo
    step_time: StepTime
    notes: list[str]
    """Sentences about what is no error and may be one."""
    coarse: Mapping[str, str]
    """Leaves with numbers for which float32 is too coarse, see `Digits`."""
    made_in_s: float
    """How long the constructor took, with the imports, but without the time in which others had the core."""
    is_timed: bool = False
    """Whether sizes follow from the time of a step."""
    refutes_vectorization: bool = False
    """Whether environments should not step as one, although they could: those that did have broken, or do not say which
    step begins the next episode."""
    autoreset_mode: str = ""
    """Mode of environments that step as one and do not name it, see `sf.envs.autoreset`."""
    in_tensors: bool = False
    """Whether it is a simulator in tensors, of which a run has one process."""
    refuses_second: str = ""
    """The exception of a second environment beside the first one; "" if it could be made and reset."""


def probe(source: EnvSource) -> EnvInfo:
    """Makes the environment, plays a few random steps, closes it, and says what it is like.

    Raises:
        EnvError: it cannot be made, raises, has unsupported spaces, or returns something that does not fit them.
    """
    return probe_and_time(source, 0.0).info


def probe_and_time(
    source: EnvSource,
    seconds: float | Callable[[EnvInfo], float],
    drop_nonfinite: bool = False,
    tries_second: bool = False,
    progress: Progress | None = None,
    arguments: Iterable[str] = (),
) -> FirstLook:
    """The same, and how long a step takes.

    Args:
        source: of the environment.
        seconds: to play on after the first steps, or a function that computes them from the spaces. An exception of the
            environment in this time ends the look, no more.
        drop_nonfinite: return values of a step may be non-finite; after such an observation a new episode begins.
        tries_second: make and reset a second one as well, if single ones are what the run would have.
        progress: says which call of the environment goes on; None where nothing watches it.
        arguments: attributes that it must have.
    """
    progress = progress or unwatched()
    importlib.import_module("gymnasium")  # which takes no time of an environment
    progress.enter(Phase.INIT)
    env, made_in_s = timed(source.make)
    for name in arguments:
        layer_with(env, name)
    progress.enter(Phase.RESET)
    info, result = _with_agents(env, source.env_id)
    if info.num_agents == 1 and (_has_mask(result[1]) or _tells_mask(env)):
        env, info = _with_mask_from_info(env, info)
    player, notes = RandomPlayer(env, info, drop_nonfinite, progress), []
    for _ in range(NUM_STEPS):
        player.step()
    end_s = time.monotonic() + (seconds(info) if callable(seconds) else seconds)
    try:
        while time.monotonic() < end_s:
            player.step()
    except EnvCrashed as crash:
        notes = [crash_note(f"in step {player.watch.num_steps + 1}", crash)]
    step_time = player.watch.result()  # while its processes live
    second = _Second()
    if not notes:
        if tries_second and not source.offers_vector:
            second = _try_second(source, progress)
        progress.enter(Phase.CLOSE)
        with blamed_on(info.env_id, "close"):
            env.close()
    step_time = step_time._replace(start_s=min(made_in_s, second.made_in_s) + player.reset_s)
    statistics = note_on_statistics(env, info.env_id)
    notes = player.bounds.notes(info.env_id) + notes + [statistics] * bool(statistics)
    return FirstLook(info, step_time, notes, player.digits.coarse(), made_in_s, refuses_second=second.refusal)


class _Second(NamedTuple):
    """The findings about a second environment beside the first one."""

    refusal: str = ""
    """The exception of its constructor or first reset; "" if it works, or was not tried."""
    made_in_s: float = math.inf
    """As in `FirstLook`; nothing is imported any more."""


def _try_second(source: EnvSource, progress: Progress) -> _Second:
    """Makes and resets another one in a process that has one, which emulators and licences refuse, and closes it."""
    progress.enter(Phase.INIT, 1)
    try:
        env, made_in_s = timed(lambda: source.make(index=1))
    except Exception as error:
        return _Second(_shown(error))
    refusal = ""
    progress.enter(Phase.RESET, 1)
    try:
        env.reset(seed=SEED)
    except Exception as error:
        refusal = _shown(error)
    finally:
        progress.enter(Phase.CLOSE, 1)
        try:
            env.close()
        except Exception as error:  # a run prints it as well, and goes on
            print(f"{source.env_id}, environment 1: close() raised {_shown(error)}", file=sys.stderr)
    return _Second(refusal, made_in_s)


def _shown(error: Exception) -> str:
    """The exception of an environment, as text."""
    found = error.__cause__ or error
    return f"{type(found).__name__}: {text_of(found)}"


def crash_note(when: str, crash: EnvCrashed) -> str:
    """For an environment that a run can do with although it has raised something."""
    return (
        f"Warning: {when} of the first look, {crash}\nRollout workers that this happens to are replaced, as often as "
        "--max_restarts allows."
    )


def _with_agents(env: Any, env_id: str) -> tuple[EnvInfo, Any]:
    """The spaces of the environment, and the result of its first reset.

    An ordinary Gymnasium environment may have a field `num_agents` of its own; it is known by its info, which is one.
    """
    own = getattr(env, "num_agents", 1) if is_gymnasium(env) else 1
    if own == 1:
        info = describe(env, env_id)
    else:
        with blamed_on(env_id, "reset"):
            result = env.reset(seed=SEED)
        is_ordinary = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)
        info = describe(env, env_id, num_agents=1 if is_ordinary else None)
    if info.num_agents < 1:
        raise EnvError(f"{info.env_id} has num_agents={info.num_agents}, expected at least 1.")
    return info, checked_reset(env, info, seed=SEED)


def _has_mask(info: Any) -> bool:
    return isinstance(info, Mapping) and ACTION_MASK in info


def _tells_mask(env: Any) -> bool:
    """Whether its method returns a mask."""
    from sf.envs.masks import method_of  # imports gymnasium

    return method_of(env) is not None


def _with_mask_from_info(env: Any, info: EnvInfo) -> tuple[Any, EnvInfo]:
    """The environment with its mask as part of the observation."""
    if ACTION_MASK in info.observations:
        return env, info
    masked = with_mask(env)
    return masked, describe(masked, info.env_id)
