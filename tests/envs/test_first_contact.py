"""What real environments do in the first hour of a user: taken as it is meant, or refused in a sentence."""

from __future__ import annotations

import json
import pickle
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from sf_envs.counter import Counter

from sf.config import ModelConfig
from sf.config.sizes import samples_per_iteration
from sf.envs import EnvSource, find_env, probe, register_env
from sf.envs.batches import make_env_batch
from sf.envs.stepping import Host
from sf.envs.vector_stepping import VectorBatch
from sf.errors import ConfigError, EnvCrashed, EnvError
from sf.evaluator.playing import Play, play
from sf.evaluator.worker import Evaluator
from sf.policy import ActorCritic
from sf.run import sizes
from sf.run.first_look import first_look
from sf.run.preparation import prepare
from sf.run.sizes import resolve
from sf.shared.episodes import EpisodeRing
from sf.shared.slot_fields import NO_POLICY
from sf.spaces import ActionSpec, EnvInfo
from sf.spaces.from_gymnasium import observation_leaves
from tests.cli.test_evaluate import acting
from tests.environments import first_contact as envs
from tests.environments.late import GOOD_STEPS, Played
from tests.environments.toys import Toy
from tests.helpers.lab import InferenceWorker, make_config, make_lab, step_until
from tests.helpers.rollouts import Player


class Broken(Counter):
    """Cannot be reset."""

    num_closed = 0

    def reset(self, **arguments: Any) -> Any:
        raise RuntimeError("no level")

    def close(self) -> None:
        self.num_closed += 1


BITS: Any = spaces.Box(0, 1, (40, 48), np.dtype(bool))
COPIED = "policy_id", "rewards", "terminated", "truncated", "final_values"


@pytest.mark.parametrize("vectorization", ["none", "native"])
@pytest.mark.parametrize("make", envs.COUNTED, ids=lambda make: make.__name__)
def test_every_episode_counts_once_wherever_its_statistics_are(make: Any, vectorization: str, tmp_path: Path) -> None:
    """And an end counts for none where info says that the episode goes on."""
    register_env("Counted", make, make_vec=partial(envs.as_one, make, "NEXT_STEP"))
    lab = make_lab(tmp_path, "Counted", num_envs_per_worker=2, worker_num_splits=1, vectorization=vectorization)
    ring, roles, seen = EpisodeRing(lab.arena, 0), lab.build_all(), []

    def enough() -> bool:
        seen.extend(ring.new_episodes())
        return len(seen) >= 12

    step_until(roles, enough)
    assert {(episode.reward, episode.length) for episode in seen} == {envs.COUNTED[make]}
    steps = roles[-1].record["env_steps"]
    assert len(seen) == pytest.approx(steps / envs.COUNTED[make][1], abs=2), "each of them"
    for role in roles:
        role.close()


@pytest.mark.parametrize("make", envs.COUNTED, ids=lambda make: make.__name__)
def test_evaluation_counts_the_same_episodes(make: Any) -> None:
    source = EnvSource("Counted", {}, make)
    info = probe(source)
    (episodes,) = play([acting(info)], source, info, num_episodes=5, seed=0)
    assert set(zip(episodes.rewards, episodes.lengths, strict=True)) == {envs.COUNTED[make]}
    assert len(episodes.rewards) == 5


@pytest.mark.parametrize("vectorization", ["none", "native"])
def test_no_reward_counts_twice_at_lost_lives_that_info_does_not_tell(
    vectorization: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make = envs.lives_unsaid_above_statistics
    register_env("Unsaid", make, make_vec=partial(envs.as_one, make, "NEXT_STEP"))
    lab = make_lab(tmp_path, "Unsaid", num_envs_per_worker=2, worker_num_splits=1, vectorization=vectorization)
    ring, roles, seen = EpisodeRing(lab.arena, 0), lab.build_all(), []

    def enough() -> bool:
        seen.extend(ring.new_episodes())
        return len(seen) >= 12

    step_until(roles, enough)
    lives = {(1.5, 2), (3.5, 2), (2.5, 1)}
    assert {(episode.reward, episode.length) for episode in seen} == lives, "halves of 1 + 2, 3 + 4 and 5"
    assert "info['episode'] of length 5 spans several ends" in capsys.readouterr().out
    for role in roles:
        role.close()
    source = EnvSource("Unsaid", {}, make)
    info = probe(source)
    (episodes,) = play([acting(info)], source, info, num_episodes=6, seed=0)
    assert set(zip(episodes.rewards, episodes.lengths, strict=True)) <= lives


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
    played = play([acting(info), acting(info)], source, info, num_episodes=4, seed=0)
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


@pytest.mark.parametrize(
    ("space", "divisor"),
    [
        (BITS, 1),
        (spaces.Box(0, 1, (40, 48, 2), np.uint8), 1),
        (spaces.Box(0, 15, (1, 40, 48), np.uint8), 15),
        (spaces.Box(0, 255, (40, 48), np.uint8), 255),
        (spaces.Box(0, np.array([1, 200, 9], np.uint8) * np.ones((40, 48, 1), np.uint8), dtype=np.uint8), 200),
    ],
    ids=str,
)
def test_picture_is_divided_by_the_upper_bound_of_its_space(space: Any, divisor: int) -> None:
    info = EnvInfo("test", 1, observation_leaves(space), ActionSpec.discrete(2))
    policy = ActorCritic(info, ModelConfig())
    picture = torch.from_numpy(np.stack([space.high])).to(torch.uint8)
    assert policy.inputs({"obs": picture})["obs"].max() == pytest.approx(float(space.high.max()) / divisor)
    assert not policy.observation_normalizers, "as its bounds are known"
    again = EnvInfo.from_json(json.loads(json.dumps(info.to_json())))
    assert again.observations["obs"].brightest == divisor, "a saved policy reads as it was trained"


def test_description_of_pictures_of_255_is_that_of_older_checkpoints() -> None:
    pictures = spaces.Dict({"a": spaces.Box(0, 255, (40, 48), np.uint8), "b": spaces.Box(0, 9, (3,), np.uint8)})
    assert "brightest" not in str(EnvInfo("x", 1, observation_leaves(pictures), ActionSpec.discrete(2)).to_json())


@pytest.mark.parametrize("truncated", [False, True], ids=["terminated", "truncated"])
@pytest.mark.parametrize("odd", envs.NO_MASKS)
@pytest.mark.parametrize("kind", ["single", "info", "agents", *AutoresetMode.__members__])
def test_end_of_a_game_has_no_next_move(kind: str, odd: str, truncated: bool) -> None:
    """So its mask is not looked at; a truncated observation is valued, and nothing at all of a terminated one is."""
    arguments = {"odd": odd, "truncated": truncated, "late": 3.0 if truncated else np.nan, "in_info": kind == "info"}
    made: Any = envs.PairWithoutNextMove if kind == "agents" else envs.NoNextMove
    info = probe(EnvSource("Game", arguments, made))
    final, observations = (
        {name: np.zeros((4, *leaf.shape), leaf.dtype) for name, leaf in info.observations.items()} for _ in range(2)
    )
    has_final, rewards, place = np.zeros(4, bool), np.zeros(4, np.float32), "seen" if kind != "info" else "obs"
    batch: Any
    if kind in AutoresetMode.__members__:
        mode = {"mode": AutoresetMode[kind]}
        source = EnvSource("Game", arguments | mode, made, vector_factory=envs.many_without_next_move)
        batch = VectorBatch(source, info, range(4), final, has_final, "clip")
    else:
        batch = make_env_batch(
            EnvSource("Game", arguments, made), info, range(4 // info.num_agents), final, has_final, "clip"
        )
    batch.reset(observations)
    for _ in range(12):
        for one in batch.step(np.zeros(4, np.int64), observations, rewards):
            assert has_final[one.row] == truncated
            assert (one.terminated, one.truncated) == (not truncated, truncated)
            if truncated:
                assert final[place][one.row] == 3
                assert (final["action_mask"][one.row] == 1).all()
        assert np.isfinite(observations[place]).all(), "nothing of what is thrown away reaches a policy"
        assert (observations["action_mask"] == 1).all()
        has_final[:] = False


ROWS = spaces.Tuple([spaces.Discrete(2), spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Discrete(3)])])
PAIR = spaces.Tuple([spaces.Box(-1, 1, (2,))] * 2)
HALF = np.full(2, 0.5, np.float32)


@pytest.mark.parametrize("kind", ["single", "agents"])
@pytest.mark.parametrize(
    ("space", "seen"),
    [(ROWS, [1, [HALF, 2]]), (ROWS, (1, [HALF, 2])), (ROWS, [1, (HALF, 2)]), (PAIR, np.array([HALF] * 2))],
    ids=["list", "inner list", "outer list", "array"],
)
def test_list_is_taken_where_the_space_is_a_tuple(kind: str, space: Any, seen: Any) -> None:
    assert space.contains(seen), "as Gymnasium takes it"
    as_tuple = (1, (HALF, 2)) if space is ROWS else (HALF, HALF)
    played = Played(kind, observation_space=space, good=as_tuple, observation=seen)
    played.step(GOOD_STEPS)
    expected = {name: array.copy() for name, array in played.observations.items()}
    played.step()
    for name, array in played.observations.items():
        assert array.any()
        assert (array == expected[name]).all()
    assert probe(EnvSource("Rows", {"observation_space": space, "observation": seen}, Toy)).observations.keys()


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


@pytest.mark.parametrize(
    ("env_id", "vectorization", "knows_worker"),
    [
        ("tests.environments.first_contact:Placed-v0", "none", True),
        ("tests.environments.first_contact:Placed-v0", "native", True),
        ("PlacedClass", "none", True),
        ("PlacedClass", "native", True),
        ("PlacedFunction", "none", False),
        ("multiagent/tests.environments.first_contact:PlacedPair-v0", "none", True),
    ],
)
def test_environments_that_ask_know_their_place(
    env_id: str, vectorization: str, knows_worker: bool, tmp_path: Path
) -> None:
    """Every pair is there once: of the groups of two workers, and of the evaluator, which plays beside them."""
    register_env("PlacedClass", envs.Placed, make_vec=envs.many_placed)
    register_env("PlacedFunction", envs.placed)
    lab = make_lab(
        tmp_path,
        env_id,
        num_workers=2,
        num_envs_per_worker=4,
        rollout=4,
        vectorization=vectorization,
        eval_every_steps=10,
        eval_episodes=3,
    )
    roles = lab.build_all()
    step_until(roles, lambda: roles[0].record["iterations"] >= 2)
    agents = lab.shared.topology.agents_per_env
    for group, slot in ((group, lab.shared.topology.slots_of_group(group)[0]) for group in range(4)):
        seen = lab.slots.observations["obs"][slot, 0, ::agents, :2].tolist()
        worker = group // 2 if knows_worker else -1
        assert seen == [[worker, 2 * (group % 2) + index] for index in range(2)]
    evaluator = next(role for role in roles if isinstance(role, Evaluator))
    evaluator.play.start()
    played = evaluator.play._observations["obs"][::agents, :2].tolist()
    assert played == [[2 if knows_worker else -1, index] for index in range(3)]
    for role in roles:
        role.close()


class Locked(envs.Placed):
    """Cannot be sent anywhere, neither by name nor with its code."""

    lock = threading.Lock()


def test_id_that_only_the_program_knows_is_registered_in_workers() -> None:
    """Found where it is registered, and made by a process that has not run the main guard."""
    gymnasium.register("BelowMain-v0", entry_point="tests.environments.first_contact:Placed")
    source = pickle.loads(pickle.dumps(find_env("BelowMain-v0")))
    del gymnasium.registry["BelowMain-v0"]
    env = source.make()
    assert env.reset()[0] is not None
    env.close()
    del gymnasium.registry["BelowMain-v0"]


@pytest.mark.parametrize("many", [False, True])
def test_id_that_workers_cannot_know_is_told_with_the_way_out(many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Locked, "__module__", "__main__")
    gymnasium.register("Locked-v0", entry_point=Locked)  # type: ignore[arg-type]
    source = find_env("Locked-v0")
    del gymnasium.registry["Locked-v0"]
    with pytest.raises(EnvError) as caught:
        source.make_vector(2, seed=0) if many else source.make()
    told = str(caught.value)
    assert told.startswith("Gymnasium does not know Locked-v0 in the processes of the run, although it does in the")
    assert 'below if __name__ == "__main__"' in told
    assert "--env=my_module:Locked-v0. Or call sf.register_env('Locked-v0', MyEnv)" in told


def test_argument_of_the_user_wins_over_the_place() -> None:
    env = EnvSource("PlacedClass", {"sf_worker": 7}, envs.Placed, worker=3).make(index=2)
    assert env.place == (7, 2)


REFUSED = "RuntimeError: only one instance per process"


@pytest.mark.parametrize("by_reset", [False, True], ids=["constructor", "reset"])
def test_second_environment_in_a_process_is_tried(by_reset: bool) -> None:
    config = make_config("Once", num_workers=None, num_envs_per_worker=None, async_rl=True)
    look = first_look(config, EnvSource("Once", {"by_reset": by_reset}, envs.Once))
    assert look.refuses_second == REFUSED
    assert not envs.Once.alive, "what was made is closed"
    assert not first_look(config, EnvSource("Counter", {}, Counter)).refuses_second
    one_each = replace(config, rollout=replace(config.rollout, num_envs_per_worker=1))
    assert not first_look(one_each, EnvSource("Once", {}, envs.Once)).refuses_second, "which makes no second one"


@pytest.mark.parametrize(
    "env_id",
    ["SlowlyMade", "tests.environments.first_contact:SlowlyMade-v0"],
    ids=["which cannot step as one", "whose module may register more"],
)
def test_first_look_times_the_second_environment_that_it_makes(env_id: str) -> None:
    register_env("SlowlyMade", envs.SlowlyMade)
    envs.SlowlyMade.places.clear()
    config = make_config(env_id, num_workers=None, num_envs_per_worker=None, async_rl=True)
    look = first_look(config, find_env(env_id))
    assert envs.SlowlyMade.places == [(0, 0), (0, 1)]
    assert envs.SlowlyMade.num_open == 0
    assert 0.02 <= look.step_time.start_s < 0.15 <= look.made_in_s, "without what only the first one has imported"


@pytest.mark.parametrize("at", ["reset", "close"])
def test_second_environment_is_closed_and_only_refuses_by_what_comes_before(
    at: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `close` raises is printed, as in a run."""
    config = make_config("SlowlyMade", num_workers=None, num_envs_per_worker=None, async_rl=True)
    look = first_look(config, EnvSource("SlowlyMade", {"second_raises": at}, envs.SlowlyMade))
    assert look.refuses_second == ("RuntimeError: no second reset" if at == "reset" else "")
    assert envs.SlowlyMade.num_open == 0
    printed = "SlowlyMade, environment 1: close() raised RuntimeError: no second close\n"
    assert capsys.readouterr().err == (printed if at == "close" else "")


def test_run_has_one_environment_per_process_where_there_cannot_be_two(capsys: pytest.CaptureFixture[str]) -> None:
    register_env("Once", envs.Once)
    config = make_config("Once", num_workers=None, num_envs_per_worker=None, async_rl=True)
    rollout = prepare(config).config.rollout
    assert (rollout.num_envs_per_worker, rollout.worker_num_splits) == (1, 1)
    said = capsys.readouterr().out
    assert f"Each process has one Once, because a second one beside it raised {REFUSED}. For more of them raise" in said


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"num_envs_per_worker": 4}, "what asks for more, num_envs_per_worker=4: take --num_envs_per_worker=1"),
        ({"worker_num_splits": 2}, "what asks for more, worker_num_splits=2:"),
        ({"serial_mode": True, "num_workers": 2}, "serial_mode=True with num_workers=2:"),
        ({"serial_mode": True, "eval_every_steps": 9}, "serial_mode=True with eval_every_steps:"),
        ({"eval_every_steps": 9, "num_policies": 2}, "evaluation of num_policies=2:"),
        ({}, ""),
        ({"serial_mode": True}, ""),
    ],
)
def test_flags_that_ask_for_a_second_environment_are_refused(flags: dict[str, Any], told: str) -> None:
    config = make_config(**({"num_workers": None, "num_envs_per_worker": None} | flags))
    info = probe(EnvSource("Once", {}, envs.Once))
    if told:
        with pytest.raises(ConfigError) as caught:
            sizes.one_each(config, info, REFUSED)
        assert f"Once exists once per process: a second one raised {REFUSED}. Leave out" in str(caught.value)
        assert told in str(caught.value)
    else:
        resolved = resolve(sizes.one_each(config, info, REFUSED), info, cores=4)
        assert (resolved.rollout.num_envs_per_worker, resolved.groups_per_worker) == (1, 1)
        assert resolved.rollout.num_workers == (1 if flags else 4)


@pytest.mark.parametrize("by_reset", [False, True], ids=["constructor", "reset"])
def test_evaluation_plays_one_environment_where_there_cannot_be_two(
    by_reset: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    source = EnvSource("Once", {"by_reset": by_reset}, envs.Once)
    info = probe(source)
    (episodes,) = play([acting(info)], source, info, num_episodes=5, seed=0)
    assert episodes.lengths == [4] * 5
    assert not envs.Once.alive, "also the one that was made before the second one raised"
    told = f"Once plays in one environment at a time, because 5 in one process could not begin: {REFUSED}\n"
    assert capsys.readouterr().out.endswith(told)


@pytest.mark.parametrize(("num_episodes", "num_made"), [(1, 1), (5, 6)])
def test_crash_in_the_first_reset_of_an_evaluation_is_raised_where_one_environment_crashes_as_well(
    num_episodes: int, num_made: int
) -> None:
    made: list[Broken] = []

    def make() -> Broken:
        made.append(Broken())
        return made[-1]

    source, info = EnvSource("Broken", {}, make), probe(EnvSource("Counter", {}, Counter))
    with pytest.raises(EnvCrashed, match=r"environment 0: reset.. raised RuntimeError: no level"):
        play([acting(info)], source, replace(info, env_id="Broken"), num_episodes, seed=0)
    assert [env.num_closed for env in made] == [1] * num_made


def test_evaluation_that_has_begun_once_does_not_go_on_with_fewer_environments() -> None:
    source = EnvSource("Counter", {"episode_steps": 4}, Counter)
    info = probe(source)
    playing = Play([acting(info)], source, info, num_episodes=3, seed=0)
    playing.start()
    playing._envs.envs[1].reset = Broken().reset  # type: ignore[attr-defined]
    with pytest.raises(EnvCrashed, match=r"environment 1: reset"):
        playing.start()
    assert playing.num_envs == 3
    playing.close()


def test_evaluator_plays_many_environments_beside_workers_with_one_each(tmp_path: Path) -> None:
    lab = make_lab(
        tmp_path, num_workers=2, num_envs_per_worker=1, worker_num_splits=1, eval_every_steps=10, eval_episodes=9
    )
    roles = lab.build_all()
    (evaluator,) = (role for role in roles if isinstance(role, Evaluator))
    assert evaluator.play.num_envs == 9
    for role in roles:
        role.close()
