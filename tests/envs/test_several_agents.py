"""Environments of several agents: each ends with its own flag, and several rewards are told their way."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sf.config.sizes import samples_per_iteration
from sf.envs import EnvSource, find_env, probe, register_env
from sf.envs.batches import make_env_batch
from sf.envs.stepping import Host
from sf.errors import EnvError
from sf.evaluator.cast import Cast
from sf.evaluator.playing import play
from sf.shared.episodes import EpisodeRing
from sf.shared.slot_fields import NO_POLICY
from tests.cli.test_evaluate import acting
from tests.environments import agents as envs
from tests.helpers.lab import InferenceWorker, make_lab, step_until
from tests.helpers.rollouts import Player

COPIED = "policy_id", "rewards", "terminated", "truncated", "final_values"


@pytest.mark.parametrize("ending", envs.ENDINGS)
def test_every_agent_ends_with_its_own_flag(ending: str, tmp_path: Path) -> None:
    """Its steps after that belong to no policy, until all agents have ended and the environment is reset."""
    arguments, expected = envs.ENDINGS[ending]
    register_env("Walkers", partial(envs.walkers, **arguments))
    lab = make_lab(tmp_path, "Walkers", num_envs_per_worker=2, rollout=5)
    worker, player, ring = lab.build("rollout-0"), Player(lab), EpisodeRing(lab.arena, 0)
    length = max(step for step, _ in expected.values())
    steps: list[dict[str, Any]] = []
    while len(steps) < 20:
        assert worker.step() | player.step()
        for slot in lab.slots.waiting_for(0):
            slots = lab.slots
            for t in range(5) if lab.shared.topology.group_of_slot(slot) == 0 else ():
                own = {name: getattr(slots, name)[slot, t].copy() for name in COPIED}
                steps.append(own | {"after": slots.observations["obs"][slot, t + 1].copy()})
            slots.take(slot, 0)
            slots.release(slot, 0)
    for index, (step, flag) in enumerate(expected.values()):
        for number, one in enumerate(steps):
            t = number % length + 1
            assert one["policy_id"][index] == (0 if t <= step else NO_POLICY)
            assert one["rewards"][index] == (t if t <= step else 0)
            assert bool(one["terminated"][index]) == (t > step or (t == step and flag == "terminated"))
            assert bool(one["truncated"][index]) == (t == step and flag == "truncated")
            if one["truncated"][index]:
                assert one["final_values"][index] == step, "the value of its own last observation"
            seen = [0, index, t] if t < step else [0, index, 0] if t == length else [0, 0, 0]
            assert one["after"][index].tolist() == seen
    scores = {(episode.reward, episode.length) for episode in ring.new_episodes()}
    assert scores == {(step * (step + 1) / 2, step) for step, _ in expected.values()}
    worker.close()


@pytest.mark.parametrize("ending", ["stays listed", "leaves", "leaves without a flag"])
def test_agents_that_end_apart_are_trained_and_evaluated(ending: str, tmp_path: Path) -> None:
    """With a policy each, which are dealt anew when all of them have ended."""
    arguments, expected = envs.ENDINGS[ending]
    register_env("Walkers", partial(envs.walkers, **arguments))
    lab = make_lab(tmp_path, "Walkers", num_envs_per_worker=4, rollout=8, num_policies=2, use_rnn=True)
    roles = lab.build_all()
    step_until(roles, lambda: all(role.update.version >= 3 for role in roles[:2]))
    for learner in roles[:2]:
        assert all(torch.isfinite(variable).all() for variable in learner.network.variables().values())
    for role in roles:
        role.close()
    source = EnvSource("Walkers", arguments, envs.walkers)
    info = probe(source)
    played = play(Cast([acting(info), acting(info)]), source, info, num_episodes=4, seed=0)
    assert [episodes.lengths for episodes in played] == [[step] * 4 for step, _ in expected.values()]


@pytest.mark.parametrize("num_policies", [1, 2])
@pytest.mark.parametrize("ending", ["leaves", "stays listed"])
def test_a20_steps_of_agents_that_have_ended_are_neither_frames_nor_samples(
    ending: str, num_policies: int, tmp_path: Path
) -> None:
    """Frame skip 4: four frames for each sample, at the end of every iteration, of each policy."""
    register_env("Walkers", partial(envs.walkers, **envs.ENDINGS[ending][0]))
    lab = make_lab(tmp_path, "Walkers", num_envs_per_worker=4, rollout=8, num_policies=num_policies, env_frameskip=4)
    roles = lab.build_all()
    learners = roles[:num_policies]
    actors = [role for role in roles if isinstance(role, InferenceWorker)]
    for iterations in range(1, 9):
        step_until(roles, lambda: all(one.record["iterations"] >= iterations for one in learners))  # noqa: B023
        assert [one.frames for one in learners] == [4 * one.record["samples"] for one in actors]
    steps = 8 * num_policies * samples_per_iteration(lab.config)
    assert 0.6 * steps < sum(one.record["samples"] for one in actors) < 0.9 * steps, "some are fillers"


def walking(source: EnvSource) -> tuple[Any, dict[str, Any]]:
    """A batch of one environment that keeps a history, and room for what it shows."""
    info, rows = probe(EnvSource("Walkers", {}, envs.walkers)), np.zeros((2, 3), np.float32)
    final = {"obs": rows.copy()}, np.zeros(2, bool)
    return make_env_batch(source, info, [0], *final, "clip", Host(repeatable=True)), {"obs": rows}


def test_replayed_environment_knows_which_agents_have_ended() -> None:
    source = EnvSource("Walkers", envs.ENDINGS["stays listed"][0], envs.walkers)
    (batch, rows), (resumed, again) = walking(source), walking(source)
    batch.reset(rows)
    for _ in range(3):
        batch.step(np.zeros(2, np.int64), rows, np.zeros(2, np.float32))
    resumed.replay(batch.history, again)
    assert again["obs"].tolist() == rows["obs"].tolist() == [[0, 0, 0], [0, 1, 3]]
    assert [one.row for one in resumed.step(np.zeros(2, np.int64), again, np.zeros(2, np.float32))] == [1]
    assert resumed.fillers.tolist() == [0]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            {"ends": {12: envs.BOTH_CUT}, "leaves": {12: "ab"}, "silent": "a"},
            "Walkers, environment 0, step(): step returned no last observation for a, whose value it needs because it "
            "was truncated. Return one for each agent that has acted.",
        ),
        ({"silent": "a"}, "reset returned no observation for a, expected one for each agent in agents."),
    ],
)
def test_missing_observations_of_agents_are_named(arguments: dict[str, Any], told: str) -> None:
    source = EnvSource("Walkers", arguments, envs.walkers)
    batch, rows = walking(source)
    if "ends" not in arguments:
        batch.envs[0].env.agents = ["a", "b"]
        batch.envs[0].env.reset = lambda **_: ({"b": np.zeros(3, np.float32)}, {})

    def play() -> None:
        batch.reset(rows)
        for _ in range(12):
            batch.step(np.zeros(2, np.int64), rows, np.zeros(2, np.float32))

    with pytest.raises(EnvError) as caught:
        play()
    assert told in str(caught.value)


def test_rewards_after_the_end_of_an_agent_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    source = EnvSource("Walkers", {"ends": {2: {"a": "terminated"}}, "late_reward": 0.5}, envs.walkers)
    batch, rows = walking(source)
    batch.reset(rows)
    rewards = np.zeros(2, np.float32)
    for _ in range(7):
        batch.step(np.zeros(2, np.int64), rows, rewards)
    assert rewards.tolist() == [0.0, 7.0]
    told = capsys.readouterr().out
    assert "Walkers, environment 0, gave rewards to agents that are not there, {0: 0.5} (step 1 of this kind" in told
    assert told.count("that are not there") == 3, "steps 1, 2 and 4"


@pytest.mark.parametrize("arguments", [{}, {"flags": True}, {"shared": True}], ids=str)
def test_several_agents_in_one_gymnasium_environment_become_rows(arguments: dict[str, Any], tmp_path: Path) -> None:
    env_id = "multiagent/tests.environments.first_contact:TupleOfBits-v0"
    lab = make_lab(tmp_path, env_id, env_kwargs=json.dumps(arguments), num_envs_per_worker=2, rollout=8)
    roles, ring = lab.build_all(), EpisodeRing(lab.arena, 0)
    step_until(roles, lambda: roles[0].record["iterations"] >= 3)
    seen = {(episode.reward, episode.length) for episode in ring.new_episodes()}
    assert seen == ({(4.0, 4)} if "shared" in arguments else {(0.0, 4), (4.0, 4)})
    for role in roles:
        role.close()


@pytest.mark.parametrize(
    ("env_id", "arguments", "told"),
    [
        (
            "multiagent/tests.environments.first_contact:TupleOfBits-v0",
            {"odd": True},
            "The agents 0 and 1 have different action spaces, Discrete(2) and Box(0.0, 1.0, (1,), float32). Vectors of",
        ),
        (
            "multiagent/CartPole-v1",
            {},
            "expected two Tuples or two Dicts with an entry for each of at least 2 agents. Use it",
        ),
        ("multiagent/simple_tag", {}, "There is no environment 'simple_tag' of Gymnasium for multiagent/: "),
        (
            "tests.environments.first_contact:TupleOfBits-v0",
            {},
            "TupleOfBits-v0 returned the reward [0.0, 1] from step, expected a finite number. Several agents: use "
            "--env=multiagent/ID if its spaces are Tuples or Dicts with an entry per agent, or follow the multi-agent "
            'protocol, see "Several agents" in docs/environments. Several objectives: weigh them, for example with '
            "gymnasium.wrappers.TransformReward(env, lambda reward: float(weights @ reward)).",
        ),
    ],
)
def test_several_rewards_are_told_their_way(env_id: str, arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(EnvError) as caught:
        probe(find_env(env_id, arguments))
    assert told in str(caught.value)


@pytest.mark.parametrize("num_agents", [3, 0, None, "three"])
def test_field_num_agents_of_an_ordinary_environment_means_nothing(num_agents: Any) -> None:
    source = EnvSource("Own", {"num_agents": num_agents}, envs.OwnNumAgents)
    info = probe(source)
    assert info.num_agents == 1
    assert source.make_checked(info).num_agents == num_agents
