"""What real environments give in the first hour of a user: statistics of episodes, pictures, masks and lists."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from sf.config import ModelConfig
from sf.envs import EnvSource, probe, register_env
from sf.envs.batches import make_env_batch
from sf.envs.vector_stepping import VectorBatch
from sf.evaluator.cast import Cast
from sf.evaluator.playing import play
from sf.policy import ActorCritic
from sf.shared.episodes import EpisodeRing
from sf.spaces import ActionSpec, EnvInfo
from sf.spaces.from_gymnasium import observation_leaves
from tests.cli.test_evaluate import acting
from tests.environments import episode_ends as envs
from tests.environments.late import GOOD_STEPS, Played
from tests.environments.toys import Toy
from tests.helpers.lab import make_lab, step_until

BITS: Any = spaces.Box(0, 1, (40, 48), np.dtype(bool))


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
    (episodes,) = play(Cast([acting(info)]), source, info, num_episodes=5, seed=0)
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
    (episodes,) = play(Cast([acting(info)]), source, info, num_episodes=6, seed=0)
    assert set(zip(episodes.rewards, episodes.lengths, strict=True)) <= lives


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
