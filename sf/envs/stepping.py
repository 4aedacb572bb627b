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
from sf.envs.contract import check_tuple, flag, is_nonzero, number
from sf.envs.history import History
from sf.envs.observations import FinalObservations, ObservationWriter, RangeCheck
from sf.envs.statistics import EPISODE, EPISODE_CONTINUES, METRICS, kept
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
    """Rows whose last step was no transition: it only reset, see `VectorBatch`, or the agent had ended before."""
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


def make_env_batch(
    source: EnvSource,
    info: EnvInfo,
    seeds: Sequence[int],
    final_observations: dict[str, Array],
    has_final_observation: Array,
    action_bounds: ActionBounds,
    host: Host | None = None,
) -> EnvBatch:
    """One environment per seed.

    Args:
        source: makes the environments.
        info: the spaces that they must have.
        seeds: of the first reset of each environment.
        final_observations: [rows, ...] per leaf; receives the final observation of truncated rows.
        has_final_observation: [rows] bool; set for these rows, cleared by their reader.
        action_bounds: how Box actions are kept in their bounds.
        host: the process; None if no supervisor watches.

    Raises:
        EnvError: an environment cannot be made or has other spaces than `info`.
        Stopped: the run ends.
    """
    kind = SingleAgentBatch if info.num_agents == 1 else AgentsBatch
    return kind(source, info, seeds, final_observations, has_final_observation, action_bounds, host or Host())


class _Batch:
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
            self.fail(call, bad.row // self.info.num_agents, bad.error)

    def replay(self, history: History, observations: dict[str, Array]) -> None:
        """Brings every environment to where a history says that it is, and writes what is seen there."""
        self.history = history
        for index, env in enumerate(self.envs):
            try:
                seen = env.reset(seed=history.seed(index))[0]
                for action in history.actions(index):
                    result = env.step(self.env_action(action))
                    self.replayed(index, result)
                    seen = result[0]
                self.write_seen(observations, index, seen)
            except Exception as error:
                self.fail("replay", index, error)

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


class SingleAgentBatch(_Batch):
    """Gymnasium environments; environment i is row i."""

    def write_seen(self, observations: dict[str, Array], index: int, seen: Any) -> None:
        self.write(observations, index, seen)

    def env_action(self, action: Array) -> Any:
        (only,) = self.to_env_actions(action[np.newaxis])
        return only

    def step(self, actions: Array, observations: dict[str, Array], rewards: Array) -> list[Ended]:
        ended: list[Ended] = []
        received: list[float] = []
        write, row, is_vector = self.write, -1, bool(self.write.vector_size)
        # A slice of a memoryview takes one array of exactly its length and dtype, at half the price of checking both.
        vectors = observations["obs"].reshape(-1).data if is_vector else memoryview(b"")
        word, stepping, stop = self.progress.word, self.progress.begin(Phase.STEP), self.stop
        if self.history is not None:
            self.history.add(actions)
        try:
            for row, env, action, place in zip(
                self.rows, self.envs, self.to_env_actions(actions), self.places, strict=True
            ):
                if stop[0]:  # 25 ns, and slow environments are not stepped for a minute after the run has ended
                    raise Stopped
                word[0] = stepping + row
                result = env.step(action)
                if result.__class__ is not tuple or len(result) != 5:
                    check_tuple(result, "step")
                observation, reward, terminated, truncated, info = result
                received.append(reward if isinstance(reward, float) else number(reward))
                if info.__class__ is dict and METRICS in info:
                    self.metrics.add(row, info[METRICS])
                if (terminated is not False and terminated is not FALSE) or (
                    truncated is not False and truncated is not FALSE
                ):
                    terminated, truncated = flag(terminated, "terminated"), flag(truncated, "truncated")
                    if terminated or truncated:
                        observation = self._end(row, observation, terminated, truncated, info, ended)
                if is_vector:
                    try:
                        vectors[place] = observation
                        continue
                    except (TypeError, ValueError):
                        pass  # something else, which may still be stored without loss
                write(observations, row, observation)
        except Exception as error:
            self.fail("step", row, error)
        self.check_ranges("step", observations)
        self.last_rewards[:] = rewards[:] = received  # numpy warns of large numbers between arrays only
        return ended

    def _end(self, row: int, observation: Any, terminated: bool, truncated: bool, info: Any, ended: list[Ended]) -> Any:
        """Records the end of an episode and returns the first observation of the next one."""
        if not isinstance(info, Mapping):
            raise EnvError(f"info is {info!r} ({type(info).__name__}), expected a dict.")
        if not terminated:
            self.keep_final(row, observation)
        info = kept(info)  # before the reset may clear it
        continues = info.get(EPISODE_CONTINUES)
        if continues:
            self.history = None  # a reset with a seed of its own would begin another game
        try:
            observation, reset_info = self.reset_one(row)
        except EnvError:
            raise  # the step says whose it is
        except Exception as error:
            self.fail("reset", row, error)
        if continues:  # a game can end within the reset after a lost life
            info |= {key: reset_info[key] for key in (EPISODE, EPISODE_CONTINUES) if key in reset_info}
        if not info.get(EPISODE_CONTINUES):
            self.metrics.finish(row, info)
        ended.append(Ended(row, terminated, truncated, info))
        return observation

    def replayed(self, index: int, result: Any) -> None:
        if isinstance(info := result[4], Mapping):
            self.metrics.add(index, info.get(METRICS))


class AgentsBatch(_Batch):
    """Environments with several agents; agent a of environment i is row i * num_agents + a.

    The episode of an environment is over when all of its agents have ended. Values for an agent that has ended before
    the others are not looked at: its row shows a blank observation, and its steps are fillers.
    """

    def __init__(self, *args: Any):
        """As for `make_env_batch`."""
        super().__init__(*args)
        self.gone: list[set[int]] = [set() for _ in self.envs]
        """Agents of each environment that have ended while others go on."""
        self.late_rewards = 0
        """Steps in which such agents got other rewards than 0."""

    def step(self, actions: Array, observations: dict[str, Array], rewards: Array) -> list[Ended]:
        agents, index = self.info.num_agents, -1
        ended: list[Ended] = []
        received: list[float] = []
        env_actions = list(self.to_env_actions(actions))
        if self.history is not None:
            self.history.add(actions.reshape(len(self.envs), agents, *actions.shape[1:]))
        self.fillers = self.next_fillers
        try:
            for index, env in enumerate(self.envs):
                if self.stop[0]:
                    raise Stopped
                first, gone = index * agents, self.gone[index]
                self.progress.enter(Phase.STEP, index)
                result = env.step(env_actions[first : first + agents])
                check_tuple(result, "step")
                seen, reward, terminated, truncated, infos = result
                self._expect_one_per_agent("rewards", reward)
                if gone:
                    reward = self._without_late(index, reward)
                received.extend([one if isinstance(one, float) else number(one) for one in reward])
                self._add_metrics(index, infos)
                terminated = self._flags("terminated", terminated, gone)
                truncated = self._flags("truncated", truncated, gone)
                if True in terminated or True in truncated:
                    seen = self._end(index, seen, terminated, truncated, infos, ended)
                self.write_seen(observations, index, seen)
        except Exception as error:
            self.fail("step", index, error)
        self.next_fillers = self._rows_of_gone()
        self.check_ranges("step", observations)
        self.last_rewards[:] = rewards[:] = received  # numpy warns of large numbers between arrays only
        return ended

    def start(self, index: int, seed: int | None, observations: dict[str, Array]) -> None:
        self.gone[index].clear()
        self.next_fillers = self._rows_of_gone()
        super().start(index, seed, observations)

    def _end(
        self, index: int, seen: Any, terminated: list[bool], truncated: list[bool], infos: Any, ended: list[Ended]
    ) -> Any:
        """Records the ends of agents; returns the first observations of the next episode if none of them goes on."""
        for name, values in (("observations", seen), ("infos", infos)):
            self._expect_one_per_agent(name, values)
        gone, num_agents = self.gone[index], self.info.num_agents
        over = [agent for agent in range(num_agents) if terminated[agent] or truncated[agent]]
        is_last = len(over) + len(gone) == num_agents
        for agent in over:
            info, row = infos[agent], index * num_agents + agent
            if not isinstance(info, Mapping):
                raise EnvError(f"info is {info!r} ({type(info).__name__}), expected a dict.")
            info = kept(info)
            ended.append(Ended(row, terminated[agent], truncated[agent], info, is_last))
            if info.get(EPISODE_CONTINUES):
                self.history = None  # a reset with a seed of its own would begin another game
            else:
                self.metrics.finish(row, info)
            if not terminated[agent]:
                self.keep_final(row, seen[agent])
        if is_last:
            gone.clear()
            return self.reset_one(index)[0]
        gone.update(over)
        return seen

    def write_seen(self, observations: dict[str, Array], index: int, seen: Any) -> None:
        self._expect_one_per_agent("observations", seen)
        first, gone = index * self.info.num_agents, self.gone[index]
        for row, observation in enumerate(seen, first):
            if gone and row - first in gone:
                self.write.blank(observations, row)
            else:
                self.write(observations, row, observation)

    def replayed(self, index: int, result: Any) -> None:
        for flags in result[2:4]:
            self.gone[index].update(agent for agent, is_over in enumerate(flags) if is_over)
        self.next_fillers = self._rows_of_gone()
        self._add_metrics(index, result[4])

    def _add_metrics(self, index: int, infos: Any) -> None:
        """Adds the metrics of agents that take steps; infos that are no list are refused at the end of an episode."""
        first, gone = index * self.info.num_agents, self.gone[index]
        for agent, info in enumerate(infos) if isinstance(infos, (list, tuple)) else ():
            if info.__class__ is dict and METRICS in info and agent not in gone:
                self.metrics.add(first + agent, info[METRICS])

    def env_action(self, action: Array) -> Any:
        return list(self.to_env_actions(action))

    def _rows_of_gone(self) -> Array:
        if not any(self.gone):
            return NO_ROWS
        agents = self.info.num_agents
        return np.array([index * agents + agent for index, gone in enumerate(self.gone) for agent in sorted(gone)])

    def _without_late(self, index: int, rewards: Any) -> list[Any]:
        """The rewards with 0 for agents that have ended before; says so where that loses something."""
        late = {agent: rewards[agent] for agent in self.gone[index] if is_nonzero(rewards[agent])}
        self.late_rewards += bool(late)
        if late and self.late_rewards.bit_count() == 1:  # ever more rarely
            self.console.line(
                f"Warning: {self.info.env_id}, environment {index}, gave agents rewards after their end, {late} "
                f"(step {self.late_rewards} of this kind in its group). They count for nothing. Let an agent that can "
                "still earn something end with the others."
            )
        return [0.0 if agent in self.gone[index] else reward for agent, reward in enumerate(rewards)]

    def _flags(self, name: str, values: Any, gone: set[int]) -> list[bool]:
        """One per agent; False for those that have ended before."""
        self._expect_one_per_agent(name, values)
        if gone:
            values = [agent not in gone and one for agent, one in enumerate(values)]
        return [one if one is False else flag(one, name) for one in values]

    def _expect_one_per_agent(self, name: str, values: Any) -> None:
        if not isinstance(values, (list, tuple, np.ndarray)):
            raise EnvError(f"expected a list of {name}, one per agent, and got one {type(values).__name__}.")
        if len(values) != self.info.num_agents:
            raise EnvError(f"expected {self.info.num_agents} {name}, one per agent, and got {len(values)}.")
