"""Environments of several agents, stepped one after the other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

from sf.envs.contract import check_tuple, flag, is_nonzero, number
from sf.envs.presence import Presence
from sf.envs.statistics import EPISODE_CONTINUES, METRICS, kept
from sf.envs.stepping import NO_ROWS, Ended, SteppedSingly
from sf.errors import EnvError
from sf.processes.process import Stopped
from sf.shared.arena import Array
from sf.shared.progress import Phase

T = TypeVar("T")


class AgentsBatch(SteppedSingly):
    """Environments with several agents; agent a of environment i is row i * num_agents + a.

    The episode of an environment is over when none of its agents is left. Agents may come and go before, see
    `Presence`. The row of one that is not there shows a blank observation, and its steps are fillers.
    """

    def __init__(self, *args: Any):
        """As for `make_env_batch`."""
        super().__init__(*args)
        self.presence = [Presence(self.info.num_agents) for _ in self.envs]
        """By environment."""
        self.late_rewards = 0
        """Steps in which agents that were not there got other rewards than 0."""
        self.lost_arrivals = 0
        """Steps in which agents came when the last of the others ended."""
        self._is_changed = False
        """Whether agents have come or gone in the last step."""

    def step(self, actions: Array, observations: dict[str, Array], rewards: Array) -> list[Ended]:
        agents, index = self.info.num_agents, -1
        ended: list[Ended] = []
        received: list[float] = []
        env_actions = list(self.to_env_actions(actions))
        if self.history is not None:
            self.history.add(actions.reshape(len(self.envs), agents, *actions.shape[1:]))
        self.fillers, self._is_changed = self.next_fillers, False
        try:
            for index, env in enumerate(self.envs):
                if self.stop[0]:
                    raise Stopped
                first, presence = index * agents, self.presence[index]
                self.progress.enter(Phase.STEP, index)
                result = env.step(env_actions[first : first + agents])
                check_tuple(result, "step")
                seen, reward, terminated, truncated, infos = result
                received.extend(self._rewards(index, reward))
                terminated = self._flags("terminated", terminated, presence)
                truncated = self._flags("truncated", truncated, presence)
                self._look_at_infos(index, infos, terminated, truncated)
                arrivals = self._arrivals(index, result) if presence.absent else ()
                if True in terminated or True in truncated:
                    seen = self._end(index, seen, terminated, truncated, infos, arrivals, ended)
                elif arrivals:
                    presence.come(arrivals)
                self._is_changed |= bool(arrivals)
                self._write_present(observations, index, seen)
        except Exception as error:
            self.fail("step", index, error)
        if self._is_changed:
            self.next_fillers = self._absent_rows()
        if len(self.next_fillers):
            self.write.blank(observations, self.next_fillers)
        self.check_ranges("step", observations)
        self.last_rewards[:] = rewards[:] = received  # numpy warns of large numbers between arrays only
        return ended

    def start(self, index: int, seed: int | None, observations: dict[str, Array]) -> None:
        super().start(index, seed, observations)
        self.next_fillers = self._absent_rows()

    def reset_one(self, index: int, seed: int | None = None) -> tuple[Any, Any]:
        result = super().reset_one(index, seed)
        self.presence[index].begin(result[1])
        return result

    def _end(
        self,
        index: int,
        seen: Any,
        terminated: list[bool],
        truncated: list[bool],
        infos: Any,
        arrivals: Collection[int],
        ended: list[Ended],
    ) -> Any:
        """Records the ends of agents; returns the first observations of the next episode if none is left."""
        for name, values in (("observations", seen), ("infos", infos)):
            self._expect_one_per_agent(name, values)
        self._is_changed = True
        presence, num_agents = self.presence[index], self.info.num_agents
        over = [agent for agent in presence.present if terminated[agent] or truncated[agent]]
        is_last = presence.end(over)
        for agent in over:
            info, row = infos[agent], index * num_agents + agent
            if not isinstance(info, Mapping):
                raise self.of_agent(agent, EnvError(f"info is {info!r} ({type(info).__name__}), expected a dict."))
            info = kept(info)
            ended.append(Ended(row, terminated[agent], truncated[agent], info, is_last))
            if info.get(EPISODE_CONTINUES):
                self.history = None  # a reset with a seed of its own would begin another game
            else:
                self.metrics.finish(row, info)
            if not terminated[agent]:
                try:
                    self.keep_final(row, seen[agent])
                except EnvError as error:
                    raise self.of_agent(agent, error) from None
        if is_last:
            if arrivals:
                self._tell_of_lost(index, arrivals)
            return self.reset_one(index)[0]
        presence.come(arrivals)
        return seen

    def write_seen(self, observations: dict[str, Array], index: int, seen: Any) -> None:
        self._write_present(observations, index, seen)
        for agent in self.presence[index].absent:
            self.write.blank(observations, index * self.info.num_agents + agent)

    def _write_present(self, observations: dict[str, Array], index: int, seen: Any) -> None:
        """Writes the rows of the agents of an environment that are there."""
        self._expect_one_per_agent("observations", seen)
        first = index * self.info.num_agents
        for agent in self.presence[index].present:
            try:
                self.write(observations, first + agent, seen[agent])
            except EnvError as error:
                raise self.of_agent(agent, error) from None

    def replayed_reset(self, index: int, infos: Any) -> None:
        self.presence[index].begin(infos)
        self.next_fillers = self._absent_rows()

    def replayed(self, index: int, result: Any) -> None:
        presence, (_, _, *flags, infos) = self.presence[index], result
        terminated, truncated = (self._flags("flags", values, presence) for values in flags)
        self._look_at_infos(index, infos, terminated, truncated)
        arrivals = self._arrivals(index, result)
        over = [agent for agent in presence.present if terminated[agent] or truncated[agent]]
        self.metrics.forget([index * self.info.num_agents + agent for agent in over])
        presence.end(over)
        presence.come(arrivals)
        self.next_fillers = self._absent_rows()

    def _arrivals(self, index: int, result: Any) -> Collection[int]:
        """The agents of an environment that its step has brought."""
        *_, terminated, truncated, infos = result
        self._expect_one_per_agent("infos", infos)
        presence = self.presence[index]
        arrivals = presence.arrivals(infos)
        for agent in arrivals:
            presence.expect_begun(agent, terminated[agent], truncated[agent])
        return arrivals

    def _look_at_infos(self, index: int, infos: Any, terminated: list[bool], truncated: list[bool]) -> None:
        """Adds the metrics of agents that take steps; infos of another form are refused at the end of an episode."""
        first, presence = index * self.info.num_agents, self.presence[index]
        is_list = isinstance(infos, (list, tuple)) and len(infos) == self.info.num_agents
        for agent in presence.present if is_list else ():
            if not (info := infos[agent]) or not (info.__class__ is dict or isinstance(info, Mapping)):
                continue
            if METRICS in info:
                self.metrics.add(first + agent, info[METRICS])
            presence.expect_end(agent, info, terminated[agent] or truncated[agent])

    def env_action(self, action: Array) -> Any:
        return list(self.to_env_actions(action))

    def _absent_rows(self) -> Array:
        absent = [presence.absent for presence in self.presence]
        if not any(absent):
            return NO_ROWS
        agents = self.info.num_agents
        return np.array([index * agents + agent for index, own in enumerate(absent) for agent in sorted(own)])

    def _rewards(self, index: int, rewards: Any) -> list[float]:
        """One per agent, 0 for those that were not there; says so where that loses something."""
        self._expect_one_per_agent("rewards", rewards)
        presence = self.presence[index]
        if not presence.absent:
            with suppress(EnvError):  # which is told below with the name of its agent
                return [one if isinstance(one, float) else number(one) for one in rewards]
        kept = [0.0] * len(rewards)
        for agent in presence.present:
            kept[agent] = self._converted(number, agent, rewards[agent])
        if late := {agent: rewards[agent] for agent in presence.absent if is_nonzero(rewards[agent])}:
            self._tell_of_late(index, late)
        return kept

    def _tell_of_late(self, index: int, late: Any) -> None:
        self.late_rewards += 1
        if self.late_rewards.bit_count() == 1:  # ever more rarely
            self.console.line(
                f"Warning: {self.info.env_id}, environment {index}, gave rewards to agents that are not there, {late} "
                f"(step {self.late_rewards} of this kind in its group). They count for nothing. Let an agent that can "
                "still earn something end later."
            )

    def _tell_of_lost(self, index: int, arrivals: Collection[int]) -> None:
        self.lost_arrivals += 1
        if self.lost_arrivals.bit_count() == 1:  # ever more rarely
            self.console.line(
                f"Warning: {self.info.env_id}, environment {index}, has the agents {sorted(arrivals)} come in the step "
                f"in which the last of the others end (step {self.lost_arrivals} of this kind in its group). The "
                "episode is over there, without them. Let them come a step earlier."
            )

    def _flags(self, name: str, values: Any, presence: Presence) -> list[bool]:
        """One per agent; False for those that are not there."""
        self._expect_one_per_agent(name, values)
        flags = [False] * len(values)
        for agent in presence.present:
            if (one := values[agent]) is not False:
                flags[agent] = self._converted(flag, agent, one, name)
        return flags

    def _converted(self, convert: Callable[..., T], agent: int, *arguments: Any) -> T:
        """Calls a function with a value of an agent, whose name its error gets."""
        try:
            return convert(*arguments)
        except EnvError as error:
            raise self.of_agent(agent, error) from None

    def _expect_one_per_agent(self, name: str, values: Any) -> None:
        if not isinstance(values, (list, tuple, np.ndarray)):
            raise EnvError(f"expected a list of {name}, one per agent, and got one {type(values).__name__}.")
        if len(values) != self.info.num_agents:
            raise EnvError(f"expected {self.info.num_agents} {name}, one per agent, and got {len(values)}.")
