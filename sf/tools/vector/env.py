"""`sf.vector_env`: the worker processes of `sf` as a `gymnasium.vector.VectorEnv`.

Gymnasium's `AsyncVectorEnv` has a process and a pipe for each environment. Here each core has one process, which steps
its share of the environments one after another, and everything but infos goes through shared memory.
"""

from __future__ import annotations

import contextlib
import itertools
import numbers
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from sf.envs import EnvSource, find_env
from sf.envs.contract import describe
from sf.envs.registry import travelling
from sf.errors import EnvError, UsageError
from sf.machine.cores import usable_cores
from sf.machine.kernel import ensure_linux
from sf.machine.limits import ensure_whole_words
from sf.processes.callers import expect_place_for_processes
from sf.processes.disposable import in_disposable_child
from sf.shared.arena import Arena, Array
from sf.spaces import EnvInfo
from sf.tools.vector.layout import fields_of, nest_of
from sf.tools.vector.worker import (
    FINAL,
    OBSERVED,
    RESET,
    STEP,
    ResetArguments,
    leaves_of,
)
from sf.tools.vector.workers import BEGIN_S, VectorWorkers

ACTIONS = spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary


class SharedVectorEnv(VectorWorkers, VectorEnv[Any, Any, Any]):
    """Copies of one environment, stepped by as many processes as there are cores.

    An episode that ends is followed by the first observation of the next one in the same step. Then ``infos`` has
    ``final_obs`` and ``final_info``, which is Gymnasium's `AutoresetMode.SAME_STEP`. Infos of other steps stay in the
    workers. All arrays that are returned belong to the caller.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012  # as in the base class

    def __init__(
        self,
        env: str | Callable[..., Any],
        num_envs: int = 64,
        num_workers: int | None = None,
        max_episode_steps: int | None = None,
        timeout_s: float = 600.0,
        **env_kwargs: Any,
    ) -> None:
        """Starts the workers. They import the main script, so a script calls this below its main guard.

        Args:
            env: id as for ``--env``, or a class or function at the top level of a module that makes one environment.
            num_envs: copies.
            num_workers: processes; by default one for each core that this process may use.
            max_episode_steps: longest episode; a longer one is truncated.
            timeout_s: longest time for a step or a reset of all environments.
            env_kwargs: arguments of the environment.

        Raises:
            UsageError: a number is not positive.
            EnvError: the environment cannot be made, has several agents, or has actions that are no single array.
            ResourceError: the system or the processor is not for several processes.
        """
        self.closed = True  # until there is something to close
        for name, number, kind in (
            ("num_envs", num_envs, int), ("num_workers", num_workers, int), ("timeout_s", timeout_s, (int, float)),
        ):  # fmt: skip
            if number is not None and (not isinstance(number, kind) or isinstance(number, bool) or number <= 0):
                what = "a whole number" if kind is int else "a number"
                raise UsageError(f"{name}={number!r}, expected {what} above 0.")
        expect_place_for_processes("sf.vector_env")
        ensure_linux("gymnasium.vector.SyncVectorEnv")
        ensure_whole_words("gymnasium.vector.SyncVectorEnv")
        source = _source(env, env_kwargs, max_episode_steps)
        look = in_disposable_child(
            _look, source, timeout_s=min(BEGIN_S, timeout_s), what=f"A first look at {source.env_id}"
        )
        info, self.single_observation_space, self.single_action_space, metadata = look
        self.spec, self.metadata = gymnasium.registry.get(source.env_id), {**metadata, **self.metadata}
        self._has_begun = False
        if info.num_agents != 1:
            raise EnvError(f"{source.env_id} has {info.num_agents} agents, and a VectorEnv knows one. Use sf-train.")
        if not isinstance(self.single_action_space, ACTIONS):
            raise EnvError(
                f"{source.env_id} has actions {self.single_action_space}, expected Box, Discrete, MultiDiscrete or "
                "MultiBinary. Flatten them with a wrapper."
            )
        self.num_envs, self.num_workers = num_envs, min(num_workers or usable_cores(), num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        arena = Arena(fields_of(info, self.action_space, num_envs, self.num_workers))
        self._observed, self._finals = (leaves_of(arena, info, kind) for kind in (OBSERVED, FINAL))
        limits = [num_envs * index // self.num_workers for index in range(self.num_workers + 1)]
        shares = list(itertools.pairwise(limits))
        self._begin(source, info, self.single_action_space, arena, shares, timeout_s)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts an episode in every environment.

        Args:
            seed: of the first environment, the others follow in steps of 1; or one for each.
            options: for `reset` of every environment.

        Raises:
            UsageError: there is not one seed for each environment, or a `reset_mask` names some of them.
            EnvError: an environment raises, or returns what does not fit its space; then all workers have ended.
        """
        self._expect_open()
        seeds = _one_for_each(seed, self.num_envs)
        if len(seeds) != self.num_envs:
            raise UsageError(f"reset was given {len(seeds)} seeds for {self.num_envs} environments.")
        if options is not None and not isinstance(options, Mapping):
            raise UsageError(f"reset was given options={options!r}, expected a dict.")
        if options is not None and "reset_mask" in options:
            raise UsageError(
                "reset was given a reset_mask, but all environments begin together here. One whose episode ends begins "
                "the next one by itself; to begin some of them at will, use gymnasium.vector.SyncVectorEnv."
            )
        starts = [pickle.dumps(ResetArguments(seeds[first:stop], options)) for first, stop in self._shares]
        infos = self._carry_out(RESET, starts)
        self._has_begun = True
        return self._packed(self._observed), self._as_vector(infos)

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """One step of every environment; ends of episodes as the class says.

        Args:
            actions: [num_envs, ...], as `action_space` has them.

        Raises:
            UsageError: they have another shape, or a dtype that would lose something.
            EnvError: as for `reset`; also where a step takes longer than `timeout_s`.
        """
        self._expect_open()
        if not self._has_begun:
            raise UsageError("step was called before the first reset. Call reset first.")
        given, place = np.asarray(actions), self._arena["actions"]
        if given.shape != place.shape or not np.can_cast(given.dtype, place.dtype, "same_kind"):
            raise UsageError(
                f"step was given actions {given.dtype}{list(given.shape)}, expected {place.dtype}{list(place.shape)}."
            )
        place[...] = given
        arena, infos = self._arena, self._carry_out(STEP)
        ends = {row: {"final_obs": self._packed_row(row), "final_info": info} for row, info in infos.items()}
        flags = arena["terminated"].copy(), arena["truncated"].copy()
        return self._packed(self._observed), arena["rewards"].copy(), *flags, self._as_vector(ends)

    def close_extras(self, **kwargs: Any) -> None:
        """Ends the workers; one that does not close its environments in time is killed."""
        self._close()

    def __del__(self) -> None:
        """Ends the workers of an environment that was not closed, as where a cell of a notebook runs again."""
        if not getattr(self, "closed", True):
            with contextlib.suppress(Exception):
                self._end(0.0)

    def _expect_open(self) -> None:
        if self.closed:
            raise UsageError("The vector environment is closed. Make a new one.")

    def _as_vector(self, infos: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
        vector: dict[str, Any] = {}
        for row, info in sorted(infos.items()):
            vector = self._add_info(vector, info, row)
        return vector

    def _packed(self, leaves: Mapping[str, Array]) -> Any:
        """All rows, as the space has them."""
        return nest_of(self.single_observation_space, self._info, leaves.__getitem__)

    def _packed_row(self, row: int) -> Any:
        return nest_of(self.single_observation_space, self._info, lambda name: self._finals[name][row])


vector_env = SharedVectorEnv
"""As programs call it, ``sf.vector_env``."""


def _look(source: EnvSource) -> tuple[EnvInfo, gymnasium.Space[Any], gymnasium.Space[Any], dict[str, Any]]:
    """Facts about one environment, in a process that it may hang or crash."""
    env = source.make()
    try:
        metadata = dict(getattr(env, "metadata", {}))
        return describe(env, source.env_id), env.observation_space, env.action_space, metadata
    finally:
        env.close()


def _source(env: str | Callable[..., Any], kwargs: Mapping[str, Any], max_episode_steps: int | None) -> EnvSource:
    if isinstance(env, str):
        return find_env(env, kwargs, max_episode_steps)
    if not callable(env):
        raise UsageError(f"sf.vector_env was given {env!r}, expected an id, a class or a function that makes one.")
    name = getattr(env, "__name__", "the environment")
    return EnvSource(name, kwargs, travelling(name, env), max_episode_steps=max_episode_steps)


def _one_for_each(seed: int | Sequence[int | None] | None, num_envs: int) -> Sequence[int | None]:
    is_many = isinstance(seed, (Sequence, np.ndarray)) and not isinstance(seed, str)
    seeds: Sequence[Any] = seed if is_many else [seed]  # type: ignore[assignment]
    for one in seeds:
        if not (one is None or (isinstance(one, numbers.Integral) and one >= 0)):  # type: ignore[operator]
            raise UsageError(f"reset was given the seed {one!r}, expected a whole number from 0 on, or None.")
    if is_many:
        return [None if one is None else int(one) for one in seeds]
    return [None if seeds[0] is None else int(seeds[0]) + row for row in range(num_envs)]
