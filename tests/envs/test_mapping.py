"""The policy that acts for each agent."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import sf
from sf.envs.mapping import Mapping
from sf.errors import ConfigError, UsageError
from sf.learner.worker import Learner
from sf.shared.slot_fields import NO_POLICY
from sf.spaces import EnvInfo, LeafSpec
from tests.helpers.lab import make_lab, step_until
from tests.helpers.networks import discrete


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Agents and episodes that the mapping `mappings:turns` was asked for; it swaps two policies every episode."""
    calls: list[tuple[int, int]] = []

    def turns(agent: int, episode: int, random: np.random.Generator) -> int:
        calls.append((agent, episode))
        return (agent + episode) % 2

    def raising(agent: int, episode: int, random: np.random.Generator) -> int:
        raise KeyError("red")

    module = ModuleType("mappings")
    wrong = {"turns": turns, "raising": raising, "number": 3, "high": lambda *_: 2, "text": lambda *_: "0"}
    vars(module).update(wrong)
    monkeypatch.setitem(sys.modules, "mappings", module)
    return calls


def agents(number: int, *names: str) -> EnvInfo:
    return EnvInfo("Any", number, {"obs": LeafSpec((1,), "float32")}, discrete(2), agent_names=names)


def test_by_team_deals_by_the_names_of_agents() -> None:
    random = np.random.default_rng(0)
    names = "adversary_0", "adversary_1", "agent_0", "agent_1", "leader0"
    deal = Mapping("by_team", 2, agents(5, *names)).deal
    assert [deal(episode, random).tolist() for episode in range(2)] == [[0, 0, 1, 1, 0]] * 2
    assert Mapping("by_team", 3, agents(5, *names)).deal(0, random).tolist() == [0, 0, 1, 1, 2]
    for wrong, said in ({(): "has no names for its agents", ("red", "blue"): "names its agents red, blue"}).items():
        with pytest.raises(ConfigError, match=f"policy_mapping=by_team: Any {said}, expected names like red_0, red_1"):
            Mapping("by_team", 2, agents(2, *wrong))


def test_random_deals_evenly_and_by_agent_always_in_the_same_way() -> None:
    random = np.random.default_rng(0)
    dealt = [tuple(Mapping("random", 2, agents(4)).deal(episode, random).tolist()) for episode in range(50)]
    assert {tuple(sorted(one)) for one in dealt} == {(0, 0, 1, 1)}
    assert len(set(dealt)) == 2, "the policies alternate, and either one may come first"
    by_agent = Mapping("by_agent", 2, agents(5))
    assert [by_agent.deal(episode, random).tolist() for episode in range(3)] == [[0, 1, 0, 1, 0]] * 3


def train(path: Path, mapping: str) -> list[dict[str, Any]]:
    """A small run of two policies on two environments of two agents; the points of its curves."""
    sf.train(
        "sf/TwoAgentEcho-v0", train_dir=str(path), experiment="pair", num_policies=2, policy_mapping=mapping, seed=1,
        serial_mode=True, async_rl=False, num_workers=1, num_envs_per_worker=2, rollout=16, train_for_env_steps=600,
    )  # fmt: skip
    return [json.loads(line) for line in (path / "pair" / "metrics.jsonl").read_text().splitlines()]


def test_a_function_is_asked_once_for_each_agent_and_episode(chosen: list[tuple[int, int]], tmp_path: Path) -> None:
    train(tmp_path, "mappings:turns")
    asked = Counter(chosen)
    last = max(episode for _, episode in asked)
    assert last >= 5
    assert {key: count for key, count in asked.items() if key[1] not in (0, last)} == {
        (agent, episode): 2 for agent in range(2) for episode in range(1, last)
    }, "two environments"


def test_by_agent_each_policy_learns_from_its_own_agent(tmp_path: Path) -> None:
    points = train(tmp_path, "by_agent")
    told: dict[int, set[str]] = {point["policy_id"]: set() for point in points}
    for point in points:
        told[point["policy_id"]] |= {tag.split("/")[1] for tag in point if tag.startswith("agents/")}
    assert told == {0: {"0"}, 1: {"1"}}


def turns(agent: int, episode: int, random: np.random.Generator) -> int:
    return (agent + episode) % 2


def test_a_function_itself_is_a_mapping_of_train(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"serial_mode": True, "async_rl": False, "num_policies": 2, "train_for_env_steps": 300}
    settings |= {"num_workers": 1, "num_envs_per_worker": 2, "rollout": 16, "seed": 1, "train_dir": str(tmp_path)}
    result = sf.train("sf/TwoAgentEcho-v0", policy_mapping=turns, **settings)
    config = json.loads((result.path / "config.json").read_text())
    assert config["run"]["policy_mapping"] == "tests.envs.test_mapping:turns"
    with pytest.raises(UsageError, match="cannot be imported by the processes of a run"):
        sf.train("sf/TwoAgentEcho-v0", policy_mapping=lambda *_: 0, **settings)


WRONG = {
    "alphabetical": "policy_mapping=alphabetical, expected random, by_agent, by_team, self_play, or module:function.",
    "mappings:none": "policy_mapping=mappings:none cannot be imported: module 'mappings' has no attribute 'none'",
    "no_such_module:f": "policy_mapping=no_such_module:f cannot be imported: No module named 'no_such_module'",
    "mappings:number": "policy_mapping=mappings:number is of type int, expected a function.",
    "mappings:raising": "called with agent=0 and episode=0, raised KeyError: 'red'",
    "mappings:high": "called with agent=0 and episode=0, returned 2, expected a policy from 0 to 1.",
    "mappings:text": "returned '0' of type str, expected the number of a policy.",
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_mapping_is_refused(name: str, chosen: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Mapping(name, 2, agents(2))
    assert WRONG[name] in str(caught.value)


def test_policies_are_dealt_to_environments_that_step_as_one(tmp_path: Path) -> None:
    """CartPole resets in a step of its own, which belongs to no policy."""
    lab = make_lab(tmp_path, "CartPole-v1", num_policies=2, num_envs_per_worker=16, rollout=64, vectorization="native")
    assert lab.config.rollout.vectorization == "native"
    roles = lab.build_all()
    full = np.zeros(0, np.int64)

    def has_some() -> bool:
        nonlocal full
        full = np.flatnonzero(lab.slots.filled > 0)
        return len(full) >= 2

    step_until([role for role in roles if not isinstance(role, Learner)], has_some)
    for slot in full:
        policies, ended = lab.slots.policy_id[slot], lab.slots.terminated[slot] | lab.slots.truncated[slot]
        assert set(policies.flatten().tolist()) == {0, 1, NO_POLICY}
        goes_on = ~ended[:-1] & (policies[:-1] != NO_POLICY) & (policies[1:] != NO_POLICY)
        assert (policies[:-1] == policies[1:])[goes_on].all(), "one policy plays an episode to its end"
        assert (policies[1:][ended[:-1] & (policies[:-1] != NO_POLICY)] == NO_POLICY).all()
    for role in roles:
        role.close()
