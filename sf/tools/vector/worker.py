"""The process that steps some of the environments of a `SharedVectorEnv`.

In: an order in a word of shared memory, actions in place, or seeds and options over a pipe. Out: observations, rewards
and ends of episodes in place; over a pipe only the infos of episodes that ended.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, NoReturn

import numpy as np

from sf.envs import EnvSource
from sf.envs.generators import seed_globals
from sf.envs.single_stepping import SingleAgentBatch
from sf.envs.stepping import Ended, Host
from sf.errors import EnvError
from sf.processes.process import LOOK_AGAIN_S, Ready
from sf.shared.arena import Arena, Array
from sf.shared.doorbell import Doorbell
from sf.shared.order import observe, publish
from sf.shared.progress import Phase, Progress
from sf.spaces import EnvInfo

IDLE, RESET, STEP, CLOSE = range(4)
"""Orders; a worker that has carried out one writes IDLE."""
OBSERVED, FINAL = "observed/", "final/"
"""How the names of the arrays of observations begin; the name of a leaf follows."""


class Infos(NamedTuple):
    """What a worker has to say of some environments: number of the environment to its info."""

    of: dict[int, dict[str, Any]]


class ResetArguments(NamedTuple):
    """Arguments of `reset` for the environments of one worker."""

    seeds: Sequence[int | None]
    options: Mapping[str, Any] | None


@dataclass(frozen=True)
class WorkerPlace:
    """One worker among all, and what it needs."""

    index: int
    first: int
    """Its first environment."""
    stop: int
    """One more than its last."""
    source: EnvSource
    info: EnvInfo
    action_space: Any
    """Action space of one environment."""
    arena: Arena
    own_bell: Doorbell
    """Rung for an order."""
    bell: Doorbell
    """That of the program, rung when an order is carried out."""
    starts: Connection
    """From which arguments of `reset` are read."""


class HostedEnvs(SingleAgentBatch):
    """Environments that are given actions as the program has them, and keep all final observations."""

    first: int = 0
    """Number of the first environment among those of all workers."""
    options: Mapping[str, Any] | None = None
    """Options of the reset that goes on."""
    start_infos: dict[int, dict[str, Any]]
    """Those of the last reset of all, by environment."""

    def use_actions_as_given(self, action_space: Any) -> None:
        """Instead of those that a policy draws."""
        from gymnasium.vector.utils import batch_space, iterate

        space = batch_space(action_space, len(self.envs))
        # A copy, because an environment may keep its action, and the next one comes into the same memory.
        self.to_env_actions = lambda actions: list(iterate(space, actions.copy()))

    def reset_all(self, start: ResetArguments, observations: dict[str, Array]) -> dict[int, dict[str, Any]]:
        """Resets every environment; returns infos that are not empty."""
        self.seeds, self.options, self.start_infos = list(start.seeds), start.options, {}  # type: ignore[arg-type]
        self.reset(observations)
        self.options = None
        return {index: info for index, info in self.start_infos.items() if info}

    def try_reset(self, index: int, seed: int | None) -> tuple[Any, Any]:
        if self.options is None:
            result = super().try_reset(index, seed)
        else:
            self.progress.enter(Phase.RESET, index)
            result = self.envs[index].reset(seed=seed, options=dict(self.options))
        self.start_infos[index] = result[1]
        return result

    def fail(self, call: str, index: int, error: Exception) -> NoReturn:
        super().fail(call, self.first + index, error)

    def tell_of_retry(self, index: int, error: Exception) -> None:
        super().tell_of_retry(self.first + index, error)

    def _end(self, row: int, observation: Any, terminated: bool, truncated: bool, info: Any, ended: list[Ended]) -> Any:
        if terminated:
            self.keep_final(row, observation)
        with contextlib.suppress(Exception):  # what cannot be sent is told when it is
            info = pickle.loads(pickle.dumps(info))  # before the reset: an environment may use all of it again
        return super()._end(row, observation, terminated, truncated, info, ended)


def serve(tell: Callable[[Any], None], place: WorkerPlace) -> None:
    """Carries out orders until the last one."""
    arena, rows = place.arena, slice(place.first, place.stop)
    observations, finals = (leaves_of(arena, place.info, kind, rows) for kind in (OBSERVED, FINAL))
    actions, rewards = arena["actions"][rows], arena["rewards"][rows]
    terminated, truncated = arena["terminated"][rows], arena["truncated"][rows]
    progress, orders = Progress(arena["progress"], place.index), arena["orders"]
    host = Host(progress, first_index=0)
    size = place.stop - place.first
    batch = HostedEnvs(place.source, place.info, [0] * size, finals, np.zeros(size, bool), "clip", host)
    batch.first = place.first
    batch.use_actions_as_given(place.action_space)
    tell(Ready())
    while True:
        while (order := observe(orders, place.index)) == IDLE:
            progress.enter(Phase.WAIT)
            place.own_bell.wait(LOOK_AGAIN_S)
        if order == CLOSE:
            break
        if order == RESET:
            start: ResetArguments = pickle.loads(place.starts.recv_bytes())
            if start.seeds[0] is not None:
                seed_globals([start.seeds[0], place.first])
            infos = batch.reset_all(start, observations)
        else:
            ended = batch.step(actions, observations, rewards)
            terminated[:] = truncated[:] = False
            for one in ended:
                terminated[one.row], truncated[one.row] = one.terminated, one.truncated
            infos = {one.row: dict(one.info) for one in ended}
        if infos:
            _tell_infos(tell, place, infos)
        arena["told"][place.index] = bool(infos)
        publish(orders, place.index, IDLE)
        place.bell.ring()
    batch.close()


def _tell_infos(tell: Callable[[Any], None], place: WorkerPlace, infos: Mapping[int, dict[str, Any]]) -> None:
    """Raises EnvError if one cannot be sent."""
    try:
        tell(Infos({place.first + row: info for row, info in infos.items()}))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        rows = ", ".join(str(place.first + row) for row in infos)
        raise EnvError(
            f"{place.info.env_id}, environment {rows}: its info cannot be sent to another process ({error}). Put "
            "numbers, texts and arrays there."
        ) from None


def leaves_of(arena: Arena, info: EnvInfo, kind: str, rows: slice = slice(None)) -> dict[str, Array]:
    """The arrays of one kind, by leaf, [rows, ...]."""
    return {name: arena[f"{kind}{name}"][rows] for name in info.observations}
