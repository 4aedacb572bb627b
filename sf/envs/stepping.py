"""The environments of one group, stepped one after another and written row by row into shared memory.

Return values of the environment are checked here, at the boundary, on every step. So nothing is broadcast, cast or
taken for true silently. Numbers are copied at once, because an environment may use its arrays again. An environment
that ends is reset in the same step; its final observation is kept where a value may have to be computed from it.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np

from sf.console import Console
from sf.envs import EnvSource
from sf.envs.actions import action_converter
from sf.envs.contract import check_tuple
from sf.envs.history import History
from sf.envs.observations import FinalObservations, ObservationWriter, RangeCheck
from sf.envs.step_metrics import StepMetrics
from sf.errors import EnvCrashed, EnvError, SfError, text_of
from sf.processes.failures import shortened
from sf.processes.process import NEVER_STOPPED, Stopped
from sf.shared.arena import Array
from sf.shared.progress import Phase, Progress, unwatched
from sf.spaces import ActionBounds, EnvInfo

NO_ROWS: Array = np.zeros(0, np.int64)
FALSE = np.False_
"""The only one that numpy has."""


@dataclass(frozen=True)
class Host:
    """The process in which environments live, as far as they need to know it."""

    progress: Progress = field(default_factory=unwatched)
    """Says which call of which environment goes on."""
    first_index: int = 0
    """Number of the first environment in the process, see `sf.envs.place`."""
    repeatable: bool = False
    """Whether they keep a history, so that a resumed run can go on in the middle of episodes."""
    stop: memoryview = NEVER_STOPPED
    """A word that is looked at before each call of an environment; once it is not 0, `Stopped` is raised."""


class Ended(NamedTuple):
    """One row whose episode ended in this step."""

    row: int
    terminated: bool
    truncated: bool
    info: Mapping[str, Any]
    is_last: bool = True
    """Whether the environment begins a new episode; other agents go on without one that ends before them."""


class EnvBatch(Protocol):
    """Some environments that advance together; `observations` are [rows, ...] arrays to write into."""

    fillers: Array
    """Rows whose last step was no transition: it only reset, see `VectorBatch`, or the agent was not there."""
    last_rewards: Array
    """[rows] float64, those of the last step as the environments gave them."""

    @property
    def next_fillers(self) -> Array:
        """Rows whose next step will be no transition."""

    def reset(self, observations: dict[str, Array]) -> None:
        """Starts every episode."""

    def restart(self, index: int, observations: dict[str, Array]) -> None:
        """Starts a new episode in one environment, because the present one cannot go on."""

    def step(self, actions: Array, observations: dict[str, Array], rewards: Array) -> list[Ended]:
        """Executes `actions`, [rows, ...]; writes what follows; resets what ended."""

    def close(self) -> None:
        """Closes every environment."""


class SteppedSingly:
    """Common to both kinds: making, checking, seeding and closing."""

    def __init__(
        self,
        source: EnvSource,
        info: EnvInfo,
        seeds: Sequence[int],
        final_observations: dict[str, Array],
        has_final_observation: Array,
        action_bounds: ActionBounds,
        host: Host,
    ):
        self.info, self.stop, self.progress = info, host.stop, host.progress
        self.seeds = list(seeds)
        self.final_observations = final_observations
        self.has_final_observation = has_final_observation
        self.console = Console()
        self.failed_resets = 0
        """Resets that raised and were tried once more."""
        self.envs: list[Any] = []
        importlib.import_module("gymnasium")  # before the clock of the first environment begins to run
        try:
            for index in range(len(self.seeds)):
                if self.stop[0]:
                    raise Stopped
                self.progress.enter(Phase.INIT, index)
                self.envs.append(source.make_checked(info, host.first_index + index))
        except BaseException:
            self.close()  # those that were made may hold what the next attempt needs
            raise
        self.metrics = StepMetrics()
        self.write, self.ranges = ObservationWriter(info), RangeCheck(info)
        self.finals = FinalObservations(info)
        self.rows, size = range(len(self.envs)), self.write.vector_size
        self.places = [slice(row * size, row * size + size) for row in self.rows]
        """Place of each row's vector in the vector of all rows, where an observation is one."""
        self.to_env_actions = action_converter(self.envs[0].action_space, action_bounds)
        is_repeatable = host.repeatable and getattr(getattr(self.envs[0], "unwrapped", None), "is_repeatable", True)
        self.history = History(seeds) if is_repeatable else None
        self.fillers = self.next_fillers = NO_ROWS
        self.last_rewards = np.zeros(len(self.envs) * info.num_agents)

    def reset(self, observations: dict[str, Array]) -> None:
        """Starts the first episode of every environment."""
        for index, seed in enumerate(self.seeds):
            self.start(index, seed, observations)
        self.check_ranges("reset", observations)

    def restart(self, index: int, observations: dict[str, Array]) -> None:
        """Starts a new episode in one environment, because the present one cannot go on."""
        self.start(index, None, observations)
        self.check_ranges("reset", observations)

    def start(self, index: int, seed: int | None, observations: dict[str, Array]) -> None:
        """Resets one environment and writes what is seen."""
        self.metrics.forget(range(index * self.info.num_agents, (index + 1) * self.info.num_agents))
        try:
            self.write_seen(observations, index, self.reset_one(index, seed)[0])
        except Exception as error:
            self.fail("reset", index, error)

    def reset_one(self, index: int, seed: int | None = None) -> tuple[Any, Any]:
        """The result of `reset` of one environment; with a history its seed comes from there.

        A simulator that raises is asked once more: its predecessor may still hold a port or a file. A second exception
        is passed on.
        """
        if self.history is not None:
            seed = self.history.begin(index)
        try:
            return self.try_reset(index, seed)
        except SfError:
            raise  # it would break its contract again
        except Exception as error:
            self.tell_of_retry(index, error)
        return self.try_reset(index, seed)

    def try_reset(self, index: int, seed: int | None) -> tuple[Any, Any]:
        """One call of `reset`."""
        if self.stop[0]:
            raise Stopped
        self.progress.enter(Phase.RESET, index)
        result: tuple[Any, Any] = self.envs[index].reset(seed=seed) if seed is not None else self.envs[index].reset()
        check_tuple(result, "reset")
        return result

    def tell_of_retry(self, index: int, error: Exception) -> None:
        """With its stack, ever more rarely."""
        self.failed_resets += 1
        if self.failed_resets.bit_count() == 1:
            self.console.line(
                f"Warning: {self.info.env_id}, environment {index}, is reset once more (error {self.failed_resets} of "
                f"this kind in its group): {shortened(_told('reset', error))}"
            )

    def write_seen(self, observations: dict[str, Array], index: int, seen: Any) -> None:
        """Writes the rows of one environment."""
        raise NotImplementedError

    def keep_final(self, row: int, observation: Any) -> None:
        """Keeps the final observation of a truncated row, whose value is still to be computed."""
        self.finals.write(self.final_observations, row, observation)
        self.has_final_observation[row] = True

    def check_ranges(self, call: str, observations: dict[str, Array]) -> None:
        """Refuses what is wrong in a row although its shape and dtype are right."""
        if self.ranges.is_needed and (bad := self.ranges.bad_row(observations)):
            self.fail(call, bad.row // self.info.num_agents, self.of_agent(bad.row, bad.error))

    def replay(self, history: History, observations: dict[str, Array]) -> None:
        """Brings every environment to where a history says that it is, and writes what is seen there."""
        self.history = history
        for index, env in enumerate(self.envs):
            try:
                seen, infos = env.reset(seed=history.seed(index))
                self.replayed_reset(index, infos)
                for action in history.actions(index):
                    result = env.step(self.env_action(action))
                    self.replayed(index, result)
                    seen = result[0]
                self.write_seen(observations, index, seen)
            except Exception as error:
                self.fail("replay", index, error)

    def replayed_reset(self, index: int, infos: Any) -> None:
        """Takes note of a reset that an environment has repeated."""

    def replayed(self, index: int, result: Any) -> None:
        """Takes note of a step that an environment has repeated."""

    def env_action(self, action: Array) -> Any:
        """The action for one environment, from the stored actions of its agents."""
        raise NotImplementedError

    def close(self) -> None:
        for index, env in enumerate(self.envs):
            try:
                env.close()
            except Exception as error:  # the others are closed all the same, and the run is over
                what = f"close() raised {type(error).__name__}: {text_of(error)}"
                print(f"{self.info.env_id}, environment {index}: {what}", file=sys.stderr)

    def of_agent(self, row: int, error: EnvError) -> EnvError:
        """The error, with the name of the agent that it is about."""
        agent = self.info.agent(row)
        return EnvError(f"{agent}: {error}") if agent else error

    def fail(self, call: str, index: int, error: Exception) -> NoReturn:
        """Reports an exception of the environment, with its own traceback as text."""
        if isinstance(error, EnvError) and not isinstance(error, EnvCrashed):
            raise EnvError(f"{self.info.env_id}, environment {index}, {call}(): {error}") from None
        if isinstance(error, SfError):  # it says everything, such as that of a film which watches the environment
            raise error
        raise EnvCrashed(f"{self.info.env_id}, environment {index}: {_told(call, error)}") from None


def _told(call: str, error: Exception) -> str:
    """The exception, with the stack."""
    stack = "".join(traceback.format_exception(error)).rstrip()
    return f"{call}() raised {type(error).__name__}: {text_of(error)}\n{stack}"
