"""A first look at an environment, before a run spends anything on it."""

from __future__ import annotations

import importlib
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, NamedTuple

import numpy as np

from sf.envs.actions import action_converter
from sf.envs.arguments import layer_with
from sf.envs.blame import blamed_on
from sf.envs.bounds import Bounds
from sf.envs.contract import (
    FINITE_OR_DROPPED,
    check_observation,
    check_reset,
    check_step,
    describe,
    nonfinite_observation,
    nonfinite_reward,
    unmasked,
    without_mask,
)
from sf.envs.digits import Digits
from sf.envs.presence import Presence
from sf.envs.source import EnvSource, is_gymnasium, with_mask
from sf.envs.step_time import StepTime, Stopwatch
from sf.envs.wrappers import note_on_statistics
from sf.errors import EnvCrashed, EnvError, text_of
from sf.machine.cores import queued_s
from sf.shared.arena import Array
from sf.shared.progress import Phase, Progress, unwatched
from sf.spaces import ACTION_MASK, EnvInfo

NUM_STEPS = 8
"""That an environment has to play without raising anything; later on, a copy of it may do better."""
SEED = 0


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
    env, made_in_s = _timed(source.make)
    for name in arguments:
        layer_with(env, name)
    progress.enter(Phase.RESET)
    info, result = _with_agents(env, source.env_id)
    if info.num_agents == 1 and (_has_mask(result[1]) or _tells_mask(env)):
        env, info = _with_mask_from_info(env, info)
    player, notes = _Player(env, info, drop_nonfinite, progress), []
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
        env, made_in_s = _timed(lambda: source.make(index=1))
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


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """The result of a call, and its seconds without those in which others had the core."""
    start_s, queued_before_s = time.monotonic(), queued_s()
    result = call()
    return result, time.monotonic() - start_s - (queued_s() - queued_before_s)


def crash_note(when: str, crash: EnvCrashed) -> str:
    """For an environment that a run can do with although it has raised something."""
    return (
        f"Warning: {when} of the first look, {crash}\nRollout workers that this happens to are replaced, as often as "
        "--max_restarts allows."
    )


class _Player:
    """Plays random legal actions, and looks at everything that the environment returns."""

    def __init__(self, env: Any, info: EnvInfo, drop_nonfinite: bool, progress: Progress) -> None:
        """Begins an episode; its time does not count.

        Args:
            env: the environment.
            info: the spaces that it promises.
            drop_nonfinite: return values of a step may be non-finite.
            progress: says which call goes on.
        """
        self.env, self.info, self.drop_nonfinite, self.progress = env, info, drop_nonfinite, progress
        self.random, self.bounds = np.random.default_rng(SEED), Bounds(env.observation_space)
        self.digits = Digits(info)
        self.observations: list[Any] = []
        self.presence = Presence(info.num_agents, info.env_id)
        self.progress.enter(Phase.RESET)
        _, self.reset_s = _timed(lambda: self._begin_episode(_reset(env, info, seed=SEED)))
        self.watch = Stopwatch()

    def step(self) -> None:
        """One step, and a reset where the episode is over."""
        env, info = self.env, self.info
        absent = self.presence.absent
        seen = [None if agent in absent else one for agent, one in enumerate(self.observations)]
        stored = np.stack([random_action(info, observation, self.random) for observation in seen])
        actions = action_converter(env.action_space, "scale")(stored)
        self.progress.enter(Phase.STEP)
        with blamed_on(info.env_id, "step"), self.watch.step():
            result = env.step(actions[0] if info.num_agents == 1 else list(actions))
        step = check_step(result, info, absent)
        _refuse_ignored_mask(step.infos, info, "step")
        arrivals = self.presence.arrivals(result[4])
        for agent in arrivals:
            self.presence.expect_begun(agent, result[2][agent], result[3][agent])
        self.observations = [
            result[0][agent] if agent in arrivals else one for agent, one in enumerate(step.observations)
        ]
        ended = {agent for agent in range(info.num_agents) if step.terminated[agent]}
        cut = {agent for agent in range(info.num_agents) if step.truncated[agent]} - ended
        for agent, one in enumerate(step.infos if info.num_agents > 1 else ()):
            self.presence.expect_end(agent, one, agent in ended | cut)
        problem = self._look(ignored=(absent | ended) - arrivals, final=cut)
        for found in (problem, *(nonfinite_reward(reward, info) for reward in step.rewards)):
            if found and not self.drop_nonfinite:
                raise EnvError(f"{found} {FINITE_OR_DROPPED}")
        is_over = self.presence.end(ended | cut)
        self.presence.come(arrivals)
        if is_over or problem:
            self.progress.enter(Phase.RESET)
            with self.watch.reset():
                result = _reset(env, info)
            self._begin_episode(result)

    def _begin_episode(self, result: tuple[Any, Any]) -> None:
        self.observations = check_reset(result, self.info)
        self.presence.begin(result[1])
        if problem := self._look(ignored=self.presence.absent):
            raise EnvError(f"{problem} It is the first one of an episode. Correct or clip it in the environment.")

    def _look(self, ignored: Set[int] = frozenset(), final: Set[int] = frozenset()) -> str:
        """At the present observations, and their non-finite leaves.

        Args:
            ignored: agents whose observations are thrown away.
            final: agents whose observations are only valued, which takes no mask.
        """
        for agent, observation in enumerate(self.observations):
            if agent in ignored:
                continue
            info = self.info
            if agent in final:
                info, observation = without_mask(info), unmasked(observation)
            check_observation(observation, info)
            if problem := nonfinite_observation(observation, info):
                return problem
            self.bounds.look(observation)
            self.digits.look(observation)
        return ""


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
    return info, _reset(env, info, seed=SEED)


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


def _reset(env: Any, info: EnvInfo, **kwargs: Any) -> tuple[Any, Any]:
    with blamed_on(info.env_id, "reset"):
        try:
            result: tuple[Any, Any] = env.reset(**kwargs)
        except TypeError as error:
            if "unexpected keyword argument 'seed'" not in text_of(error):
                raise
            raise EnvError(
                f"{info.env_id} takes no seed in reset ({text_of(error)}). Gymnasium has reset(seed=..., options=...), "
                "as gym since 0.22. Write def reset(self, *, seed=None, options=None), and pass the seed on with "
                "super().reset(seed=seed)."
            ) from error
    check_reset(result, info)
    if info.num_agents > 1:
        _refuse_ignored_mask(result[1], info, "reset")
    return result


def _refuse_ignored_mask(infos: Any, info: EnvInfo, call: str) -> None:
    """Refuse a mask where no code reads it, because illegal actions would reach the environment."""
    has_mask = isinstance(infos, (list, tuple)) and any(
        isinstance(one, Mapping) and ACTION_MASK in one for one in infos
    )
    if ACTION_MASK in info.observations or not has_mask:
        return
    if info.num_agents == 1:
        raise EnvError(
            f"{info.env_id} returned info[{ACTION_MASK!r}] from step but not from reset. Return it from both, because "
            "the first action needs a mask as well."
        )
    raise EnvError(
        f"{info.env_id} returned info[{ACTION_MASK!r}] from {call}, which is read where there is one agent; it has "
        f"{info.num_agents}. Put the mask of each agent into its observation, a Dict with the entry {ACTION_MASK!r}."
    )


def random_action(info: EnvInfo, observation: Any, random: np.random.Generator) -> Array:
    """A stored action that the mask, if there is one, allows; any action where there is no observation."""
    spec, numbers, first = info.action, [], 0
    has_mask = ACTION_MASK in info.observations and observation is not None
    mask = np.asarray(observation[ACTION_MASK]) if has_mask else None
    for column in spec.columns:
        if column.num_choices:
            legal = np.arange(column.num_choices)
            if mask is not None:
                legal = np.flatnonzero(mask[first : first + column.num_choices])
            first += column.num_choices
            numbers.append(random.choice(legal))
        else:
            numbers.append(random.standard_normal())
    return np.array(numbers, spec.dtype).reshape(spec.shape)
