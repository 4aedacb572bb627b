"""What a postprocessing sees of the episode that its trajectory belongs to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sf.plans.sample_batch import SampleBatch


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


Agents = dict[int, tuple[Any, SampleBatch]]
"""One episode: the policy of each agent, and its steps before they are postprocessed."""


def postprocessed(agents: Agents, agent_id: int, episode: PlanEpisode) -> SampleBatch:
    """The steps of an agent after its postprocessing, which may change them in place: the others see a copy."""
    policy, steps = agents[agent_id]
    others = {other: pair for other, pair in agents.items() if other != agent_id}
    own = steps.copy() if others else steps
    own.after = steps.after
    batch: SampleBatch = policy.postprocess_trajectory(own, others, episode)
    return batch
