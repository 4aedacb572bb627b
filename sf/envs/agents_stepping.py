"""Environments of several agents, stepped one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sf.envs.contract import check_tuple, flag, is_nonzero, number
from sf.envs.statistics import EPISODE_CONTINUES, METRICS, kept
from sf.envs.stepping import NO_ROWS, Ended, SteppedSingly
from sf.errors import EnvError
from sf.processes.process import Stopped
from sf.shared.arena import Array
from sf.shared.progress import Phase


class AgentsBatch(SteppedSingly):
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
