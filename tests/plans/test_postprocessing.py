"""What a postprocessing sees beside its own trajectory: the other agents, and the episode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sf.plans import SampleBatch, WorkerSet, build_torch_policy
from tests.helpers.planned import TEN_STEPS, pull


def look(policy: Any, batch: SampleBatch, other_agents: Any = None, episode: Any = None) -> SampleBatch:
    """Adds what the other agent has got, the return of both so far, and the parts of the episode so far."""
    batch["others"], batch["total"] = np.zeros(batch.count, np.float32), np.zeros(batch.count, np.float32)
    batch["parts"] = np.zeros(batch.count, np.int32)
    if episode is not None:
        for agent, (other, steps) in other_agents.items():
            assert (steps["agent_index"] == agent).all()
            assert steps["t"].tolist() == batch["t"].tolist()
            assert other.config["name"] == episode.policy_for(agent)
            batch["others"] += steps["rewards"]
        parts = episode.user_data.setdefault(int(batch["agent_index"][0]), [])
        parts.append(batch.count)
        batch["total"] += episode.total_reward
        batch["parts"] += len(parts)
        assert set(batch["eps_id"]) == {episode.episode_id}
        assert episode.length == batch["t"][-1] + 1
        assert len(episode.agent_rewards) == len(other_agents) + 1
    return batch


Looking = build_torch_policy("Looking", loss_fn=pull, postprocess_fn=look)
Blind = build_torch_policy("Blind", loss_fn=pull)
TEAM: dict[str, Any] = {"env": "examples.plans.environments:RockPaperScissors", "num_envs_per_worker": 2, "seed": 1}


@pytest.mark.parametrize("second", [Looking, Blind])
@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
def test_postprocessing_sees_the_other_agents_and_the_episode(second: Any, batch_mode: str) -> None:
    policies = {"a": (Looking, None, None, {"name": "a"}), "b": (second, None, None, {"name": "b"})}
    settings = {**TEAM, "batch_mode": batch_mode, "rollout_fragment_length": 25}
    with WorkerSet(policies, settings, lambda agent: "ab"[agent]) as workers:
        both = workers.local_worker().sample().policy_batches
        assert (both["a"]["others"] == both["b"]["rewards"]).all()
        assert (both["a"]["rewards"] != 0).any()
        assert (both["a"]["total"] == 0).all()
        assert "others" in both["b"] or second is Blind
        assert set(both["a"]["parts"]) == {1}
        if batch_mode == "truncate_episodes":
            later = workers.local_worker().sample().policy_batches["a"]
            assert [int(part["parts"][0]) for part in later.split_by_episode()] == [2, 1, 1, 2, 1, 1]


def test_postprocessing_of_one_agent_sees_no_others() -> None:
    def look_alone(policy: Any, batch: SampleBatch, other_agents: Any = None, episode: Any = None) -> SampleBatch:
        assert not other_agents
        batch["total"] = np.full(batch.count, 0.0 if episode is None else episode.total_reward)
        return batch

    policy = build_torch_policy("Alone", loss_fn=pull, postprocess_fn=look_alone)
    with WorkerSet(policy, {"env": TEN_STEPS, "rollout_fragment_length": 15}) as workers:
        first, second = (workers.local_worker().sample() for _ in range(2))
        assert first["total"].tolist() == [10.0] * 10 + [5.0] * 5
        assert second["total"].tolist() == [10.0] * 15
