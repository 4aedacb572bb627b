"""Random legal play that looks at everything an environment returns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Set
from typing import Any

import numpy as np

from sf.envs.actions import action_converter
from sf.envs.blame import blamed_on
from sf.envs.bounds import Bounds
from sf.envs.contract import check_reset, check_step, unmasked, without_mask
from sf.envs.digits import Digits
from sf.envs.finiteness import FINITE_OR_DROPPED, nonfinite_observation, nonfinite_reward
from sf.envs.leaves import check_observation
from sf.envs.presence import Presence
from sf.envs.step_time import Stopwatch
from sf.errors import EnvError, text_of
from sf.machine.cores import queued_s
from sf.shared.arena import Array
from sf.shared.progress import Phase, Progress
from sf.spaces import ACTION_MASK, EnvInfo

SEED = 0


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """The result of a call, and its seconds without those in which others had the core."""
    start_s, queued_before_s = time.monotonic(), queued_s()
    result = call()
    return result, time.monotonic() - start_s - (queued_s() - queued_before_s)


class RandomPlayer:
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
        _, self.reset_s = timed(lambda: self._begin_episode(checked_reset(env, info, seed=SEED)))
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
        if info.num_agents == 1 and not isinstance(extras := result[4], Mapping):
            found = f"info {extras!r} ({type(extras).__name__})"
            raise EnvError(f"{info.env_id} returned {found} from step, expected a dict, which may be empty: {{}}.")
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
                result = checked_reset(env, info)
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


def checked_reset(env: Any, info: EnvInfo, **kwargs: Any) -> tuple[Any, Any]:
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
