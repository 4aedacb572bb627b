"""Episodes of a plan: what a postprocessing sees of one, and those that a worker puts together from its fragments."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from sf.plans.minibatches import sequence_starts
from sf.plans.policy import PolicyColumns, expect_after
from sf.plans.sample_batch import Batch, MultiAgentBatch, SampleBatch


@dataclass
class PlanEpisode:
    """One episode of one environment, up to the end of the present fragment; the names are those of RLlib."""

    episode_id: int
    """As the column ``eps_id``."""
    length: int = 0
    """Steps of the agent that went on longest."""
    agent_rewards: dict[tuple[int, str], float] = field(default_factory=dict)
    """Sums so far, by agent and policy."""
    user_data: dict[str, Any] = field(default_factory=dict)
    """For a postprocessing: what it leaves here is there in the next fragment of the episode."""

    @property
    def total_reward(self) -> float:
        """Sum over all agents so far."""
        return sum(self.agent_rewards.values())

    def policy_for(self, agent_id: int) -> str:
        """The name of the policy of an agent that has acted."""
        return next(policy for agent, policy in self.agent_rewards if agent == agent_id)

    def add(self, agent_id: int, policy: str, steps: SampleBatch) -> None:
        """Takes in steps of an agent."""
        key = agent_id, policy
        self.agent_rewards[key] = self.agent_rewards.get(key, 0.0) + float(dict.__getitem__(steps, "rewards").sum())
        self.length = max(self.length, int(dict.__getitem__(steps, "t")[-1]) + 1)


class AgentSteps(NamedTuple):
    """Steps of an agent in an episode: all of them, or those of a fragment."""

    agent: int
    policy: str
    steps: SampleBatch


class Postprocessing(NamedTuple):
    """What is needed to postprocess."""

    policies: Mapping[str, Any]
    columns: Mapping[str, PolicyColumns]
    """That each policy has given for a batch of zeros."""

    def of(self, agent: AgentSteps, team: Sequence[AgentSteps], episode: PlanEpisode) -> AgentSteps:
        """The steps of an agent after its postprocessing, which may change them in place: the others see a copy.

        Raises:
            UsageError: it gave other columns than for a batch of zeros, or more or fewer steps.
        """
        others = {other.agent: (self.policies[other.policy], other.steps) for other in team if other is not agent}
        own = agent.steps.copy() if others else agent.steps
        own.after = agent.steps.after
        after = self.policies[agent.policy].postprocess_trajectory(own, others, episode)
        expect_after(agent.policy, after, agent.steps.count, self.columns[agent.policy])
        return agent._replace(steps=after)


class WholeEpisodes:
    """Puts the steps of the agents of each episode together, and makes batches of the episodes that have ended."""

    def __init__(self, num_agents: int, least_steps: int) -> None:
        """Nothing has been added; each environment has so many agents, and a batch so many steps at least."""
        self._num_agents, self._least = num_agents, least_steps
        self._parts: dict[tuple[int, int], list[SampleBatch]] = {}
        """Steps so far, by episode and agent."""
        self._ended: dict[int, list[AgentSteps]] = {}
        """Agents that have ended, by episode."""
        self._whole: list[list[AgentSteps]] = []
        """Episodes that all of their agents have ended, after postprocessing."""

    def add(self, fragment: Batch, postprocessing: Postprocessing) -> None:
        """Takes in a fragment."""
        for name, batch in fragment.policy_batches.items():
            for start, stop in itertools.pairwise([*sequence_starts(batch).tolist(), batch.count]):
                key = episode, agent = int(batch["eps_id"][start]), int(batch["agent_index"][start])
                parts = [*self._parts.pop(key, []), batch.slice(start, stop)]
                if not batch["dones"][stop - 1]:
                    self._parts[key] = parts
                    continue
                agents = self._ended.setdefault(episode, [])
                agents.append(AgentSteps(agent, name, SampleBatch.concat_samples(parts)))
                if len(agents) == self._num_agents:
                    self._postprocess(episode, self._ended.pop(episode), postprocessing)

    def _postprocess(self, number: int, agents: list[AgentSteps], postprocessing: Postprocessing) -> None:
        told = PlanEpisode(number)
        for each in agents:
            told.add(*each)
        self._whole.append([postprocessing.of(each, agents, told) for each in agents])

    def take(self, policies: Iterable[str]) -> list[Batch]:
        """A batch of the oldest episodes, as few as have enough steps together; none where there are too few."""
        lengths = [max(each.steps.count for each in agents) for agents in self._whole]
        enough = np.flatnonzero(np.cumsum(lengths) >= self._least)
        if not len(enough):
            return []
        taken, self._whole = self._whole[: enough[0] + 1], self._whole[enough[0] + 1 :]
        batches: dict[str, list[SampleBatch]] = {}
        for each in itertools.chain(*taken):
            batches.setdefault(each.policy, []).append(each.steps)
        together = {name: SampleBatch.concat_samples(own) for name, own in batches.items()}
        return [MultiAgentBatch.wrap_as_needed(together, sum(lengths[: enough[0] + 1]), policies)]


class TeamEpisode(NamedTuple):
    """An episode of all agents of an environment."""

    reward: float
    """The sum over all of them."""
    length: int
    """Steps of the one that went on longest."""
    by_policy: list[tuple[str, float]]
    """Policy and return of each agent."""
    row: int = 0
    """The environment among all of the plan."""
