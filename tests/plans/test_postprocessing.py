"""What a postprocessing sees beside its own trajectory: the other agents, and the episode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sf.errors import UsageError
from sf.plans import Policy, SampleBatch, WorkerSet, build_torch_policy
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


@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
def test_agents_see_each_other_as_they_were_before_postprocessing(batch_mode: str) -> None:
    def scale(policy: Any, batch: SampleBatch, other_agents: Any = None, episode: Any = None) -> SampleBatch:
        batch["seen"], batch["others"] = batch["rewards"].copy(), np.zeros_like(batch["rewards"])
        for _, steps in (other_agents or {}).values():
            assert "seen" not in steps
            batch["others"] += steps["rewards"]
        batch["rewards"] *= 100
        return batch

    policy = build_torch_policy("Scaling", loss_fn=pull, postprocess_fn=scale)
    settings = {**TEAM, "batch_mode": batch_mode, "rollout_fragment_length": 25}
    with WorkerSet({"a": (policy,), "b": (policy,)}, settings, lambda agent: "ab"[agent]) as workers:
        both = workers.local_worker().sample().policy_batches
    assert (both["a"]["seen"] != 0).any()
    assert (both["a"]["rewards"] == both["a"]["seen"] * 100).all()
    for one, other in ("ab", "ba"):
        assert (both[one]["others"] == both[other]["seen"]).all()


@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
def test_returns_of_teams_are_those_of_the_environment(batch_mode: str) -> None:
    """In it the returns of both agents add up to 0, and each episode has ten moves."""

    def change(policy: Any, batch: SampleBatch, other_agents: Any = None, episode: Any = None) -> SampleBatch:
        batch["rewards"], batch["dones"] = batch["rewards"] + 100, np.zeros_like(batch["dones"])
        return batch

    policy = build_torch_policy("Changing", loss_fn=pull, postprocess_fn=change)
    settings = {**TEAM, "batch_mode": batch_mode, "rollout_fragment_length": 25}
    with WorkerSet({"a": (policy,), "b": (policy,)}, settings, lambda agent: "ab"[agent]) as workers:
        assert not workers.local_worker().sample().policy_batches["a"]["dones"].any()
        episodes: list[Any] = workers.local_worker().new_episodes()
    assert len(episodes) >= 4
    assert {(episode.reward, episode.length) for episode in episodes} == {(0.0, 10)}
    assert {episode.row for episode in episodes} == {0, 1}
    assert {tuple(name for name, _ in episode.by_policy) for episode in episodes} == {("a", "b")}


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


class Adding(Policy):
    """Adds one set of columns to a batch of zeros and another one to steps; one of them when it acts."""

    def compute_actions(self, obs_batch: Any, *rest: Any, **more: Any) -> Any:
        rows = len(obs_batch)
        return np.zeros(rows, np.int64), [], {"acted": np.ones(rows, np.int32)}

    def postprocess_trajectory(self, sample_batch: SampleBatch, *rest: Any) -> SampleBatch:
        added = self.config["later" if sample_batch["rewards"].any() else "before"]
        assert not added.keys() - {"acted"} & sample_batch.keys(), "what it adds is not there before"
        for name, value in added.items():
            if value is None:
                del sample_batch[name]
            else:
                sample_batch[name] = np.full(sample_batch.count, value)
        return sample_batch


class AddingAtOnce(Adding):
    def postprocess_fragment(self, columns: Any, after: Any, cuts: Any) -> Any:
        return {name: np.full(columns["rewards"].shape, value) for name, value in self.config["later"].items()}


@pytest.mark.parametrize("policy", [Adding, AddingAtOnce])
@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
def test_columns_that_postprocessing_adds_are_kept(batch_mode: str, policy: Any) -> None:
    before, later = {"a": 1, "b": np.int8(1), "c": True, "d": "x"}, {"a": 1.5, "b": 300, "c": 2.5, "d": "longer"}
    settings = {"before": before, "later": later, "batch_mode": batch_mode}
    with WorkerSet(policy, {"env": TEN_STEPS, "rollout_fragment_length": 20, **settings}) as workers:
        batch = workers.local_worker().sample()
    assert {name: set(batch[name]) for name in (*later, "acted")} == {
        "a": {1.5}, "b": {300}, "c": {2.5}, "d": {"longer"}, "acted": {1},
    }  # fmt: skip


class Relabelling(Adding):
    """Changes what a step was like, as hindsight experience replay does."""

    def postprocess_trajectory(self, sample_batch: SampleBatch, *rest: Any) -> SampleBatch:
        sample_batch["obs"] = sample_batch["obs"] + 100
        return sample_batch if self.config["keeps"] else sample_batch.slice(0, 1)


def test_postprocessing_may_change_observations_but_not_the_number_of_steps() -> None:
    settings = {"env": TEN_STEPS, "rollout_fragment_length": 20}
    with WorkerSet(Relabelling, {**settings, "keeps": True}) as workers:
        batch = workers.local_worker().sample()
    assert batch["obs"][:, 0].tolist() == (batch["t"] + 100).tolist()
    with WorkerSet(Relabelling, {**settings, "keeps": False}) as workers, pytest.raises(UsageError, match="1 rows of"):
        workers.local_worker().sample()


@pytest.mark.parametrize("policy", [Adding, AddingAtOnce])
@pytest.mark.parametrize(
    ("before", "later", "message"),
    [
        ({"a": 1}, {}, "Postprocessing of policy 'default_policy' gave no column 'a', unlike for a batch of zeros"),
        ({}, {"a": 1}, "Postprocessing of policy 'default_policy' gave a new column 'a'"),
    ],
)
def test_columns_that_postprocessing_changes_are_named(policy: Any, before: Any, later: Any, message: str) -> None:
    settings = {"env": TEN_STEPS, "before": before, "later": later}
    with WorkerSet(policy, settings) as workers, pytest.raises(UsageError, match=message):
        workers.local_worker().sample()
