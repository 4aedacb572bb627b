"""`sf.vector_env`: the worker processes of `sf` as a `gymnasium.vector.VectorEnv`.

Gymnasium's `AsyncVectorEnv` has a process and a pipe for each environment. Here each core has one process, which steps
its share of the environments one after another, and everything but infos goes through shared memory.
"""

from __future__ import annotations

import contextlib
import itertools
import numbers
import pickle
import select
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from sf.console import Console
from sf.envs import EnvSource, find_env
from sf.envs.contract import describe
from sf.envs.registry import travelling
from sf.errors import EnvCrashed, EnvError, UsageError
from sf.machine.cores import usable_cores
from sf.machine.kernel import ensure_linux
from sf.machine.limits import ensure_whole_words
from sf.processes.callers import NOT_GUARDED, expect_place_for_processes
from sf.processes.child import KILL_GRACE_S, Child
from sf.processes.disposable import NOT_GUARDED_TEXT, in_disposable_child
from sf.processes.failures import as_exception
from sf.processes.simulators import Simulators
from sf.shared.arena import Arena, Array
from sf.shared.doorbell import Doorbell
from sf.shared.order import observe, publish
from sf.shared.progress import phase_of
from sf.spaces import EnvInfo
from sf.tools.vector.layout import fields_of, nest_of
from sf.tools.vector.worker import (
    CLOSE,
    FINAL,
    OBSERVED,
    RESET,
    STEP,
    Infos,
    ResetArguments,
    WorkerPlace,
    leaves_of,
    serve,
)

ALL = slice(None)
BEGIN_S = 300.0
"""For all workers to start and to make their environments."""
END_S = 5.0
"""For a worker to close its environments."""
REAP_S = 2.0
"""Between two looks for processes that environments have left behind and that have ended; a look takes some ms."""
ACTIONS = spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary


class SharedVectorEnv(VectorEnv[Any, Any, Any]):
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
        self._children: list[Child] = []
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
        self._info, self._timeout_s = info, timeout_s
        self._arena = Arena(fields_of(info, self.action_space, num_envs, self.num_workers))
        self._bell, self._poll = Doorbell(), select.poll()
        self._observed, self._finals = (leaves_of(self._arena, info, kind) for kind in (OBSERVED, FINAL))
        self._begin(source)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts an episode in every environment.

        Args:
            seed: of the first environment, the others follow in steps of 1; or one for each.
            options: for `reset` of every environment.

        Raises:
            UsageError: there is not one seed for each environment.
            EnvError: an environment raises, or returns what does not fit its space; then all workers have ended.
        """
        self._expect_open()
        seeds = _one_for_each(seed, self.num_envs)
        if len(seeds) != self.num_envs:
            raise UsageError(f"reset was given {len(seeds)} seeds for {self.num_envs} environments.")
        if options is not None and not isinstance(options, Mapping):
            raise UsageError(f"reset was given options={options!r}, expected a dict.")
        starts = [pickle.dumps(ResetArguments(seeds[first:stop], options)) for first, stop in self._shares()]
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
        publish(self._arena["orders"], ALL, CLOSE)
        for bell in self._bells:
            bell.ring()
        self._end(END_S)

    def _begin(self, source: EnvSource) -> None:
        self._bells = [Doorbell() for _ in range(self.num_workers)]
        self._starts: list[Connection] = []
        self._simulators, self._next_reap_s = Simulators(), 0.0
        try:
            for index, (first, stop) in enumerate(self._shares()):
                theirs, ours = Pipe(duplex=False)
                self._starts.append(ours)
                place = WorkerPlace(
                    index, first, stop, replace(source, worker=index), self._info, self.single_action_space,
                    self._arena, self._bells[index], self._bell, theirs,
                )  # fmt: skip
                with theirs:
                    child = Child(f"envs-{index}", serve, place, simulators=self._simulators, leads_group=True)
                self._children.append(child)
            self.closed = False
            self._poll.register(self._bell, select.POLLIN)
            for child in self._children:
                for waitable in child.waitables():
                    self._poll.register(waitable, select.POLLIN)
            self._wait(lambda: all(child.is_ready for child in self._children), BEGIN_S, {})
        except BaseException:
            self._end(0.0)
            raise

    def _carry_out(self, order: int, starts: Sequence[bytes] = ()) -> dict[int, dict[str, Any]]:
        """Has all workers do it; returns infos by environment.

        Args:
            order: for all.
            starts: for each of them, if the order needs one. They are read while they are sent, however long they are.
        """
        orders, told, infos = self._arena["orders"], self._arena["told"], dict[int, dict[str, Any]]()
        publish(orders, ALL, order)
        for bell in self._bells:
            bell.ring()
        try:
            for pipe, start in zip(self._starts, starts, strict=False):
                with contextlib.suppress(BrokenPipeError):  # of a worker whose end is seen below
                    pipe.send_bytes(start)
        except BaseException:
            self._end(0.0)
            raise
        self._wait(lambda: not observe(orders, ALL).any(), self._timeout_s, infos)
        if (now_s := time.monotonic()) > self._next_reap_s:
            self._next_reap_s = now_s + REAP_S
            if warning := self._simulators.reap():
                Console().line(warning)
        for child, has_told in zip(self._children, told.tolist(), strict=True):
            if has_told:  # before it was done, but perhaps after the last look
                self._hear(child, infos)
        return infos

    def _wait(self, is_done: Callable[[], bool], timeout_s: float, infos: dict[int, dict[str, Any]]) -> None:
        """Until a condition holds; collects infos meanwhile.

        Raises:
            EnvError: a worker has ended, or the time is over.
        """
        deadline_s = time.monotonic() + timeout_s
        try:
            while not is_done():
                found = self._poll.poll(1000 * max(0.0, deadline_s - time.monotonic()))
                self._bell.clear()
                if any(number != self._bell.fd for number, _ in found):
                    for child in self._children:
                        self._hear(child, infos)
                        if child.has_ended():
                            raise self._lost(child)
                if not found:
                    raise EnvError(self._late(timeout_s))
        except BaseException:
            self._end(0.0)
            raise

    def _hear(self, child: Child, infos: dict[int, dict[str, Any]]) -> None:
        for message in child.hear():
            if isinstance(message, Infos):
                infos.update(message.of)

    def _lost(self, child: Child) -> Exception:
        if child.failure is not None:
            return as_exception(child.failure, child.name)
        child.reap(KILL_GRACE_S)
        self._children.remove(child)
        if child.exit_code == NOT_GUARDED:
            return UsageError(NOT_GUARDED_TEXT)
        return EnvCrashed(f"The environments of {self._info.env_id} are lost: {child.how_it_ended()}.")

    def _late(self, timeout_s: float) -> str:
        busy = []
        for worker in np.flatnonzero(self._arena["orders"]):
            phase, index = phase_of(int(self._arena["progress"][worker]))
            busy.append(f"{phase.name.lower()} of environment {self._shares()[worker][0] + index}")
        return (
            f"{self._info.env_id} has not answered for {timeout_s:g} s: {', '.join(busy) or 'it is being made'}. Check "
            "it on its own, or raise timeout_s."
        )

    def _end(self, within_s: float) -> None:
        """Ends all workers."""
        self.closed = True
        deadline_s = time.monotonic() + within_s
        for child in self._children:
            if not child.has_ended(max(0.0, deadline_s - time.monotonic())):
                child.kill()
            child.reap(KILL_GRACE_S)
        self._children.clear()
        for pipe in self._starts:
            pipe.close()
        self._simulators.close()

    def __del__(self) -> None:
        """Ends the workers of an environment that was not closed, as where a cell of a notebook runs again."""
        if not getattr(self, "closed", True):
            with contextlib.suppress(Exception):
                self._end(0.0)

    def _expect_open(self) -> None:
        if self.closed:
            raise UsageError("The vector environment is closed. Make a new one.")

    def _shares(self) -> list[tuple[int, int]]:
        """First environment of each worker, and one more than its last."""
        limits = [self.num_envs * index // self.num_workers for index in range(self.num_workers + 1)]
        return list(itertools.pairwise(limits))

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
