"""Runs in which policy 0 learns against its past selves."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sf
from sf.config import SelfPlayConfig, check
from sf.envs.mapping import Mapping
from sf.errors import ConfigError, EnvError, ExperimentError
from sf.policy import checkpoints
from sf.population.pool import Pool
from sf.population.self_play import SELF_PLAY, SelfPlay
from sf.storage.names import frames_of, newest_in
from tests.environments.moves import MOVES
from tests.envs.test_mapping import agents
from tests.helpers.lab import make_config

GAME = "tests.environments.moves:LargerMove"
SMALL: dict[str, Any] = {
    "env": GAME, "seed": 1, "num_workers": 1, "num_envs_per_worker": 8, "rollout": 16, "self_play": True,
    "num_policies": 3, "self_play_snapshot_every": 1000, "self_play_games": 10, "encoder_mlp_layers": (16,),
}  # fmt: skip
SERIAL: dict[str, Any] = SMALL | {"serial_mode": True, "async_rl": False}


def curve(path: Path, tag: str, policy_id: int = 0) -> list[float]:
    lines = (path / "metrics.jsonl").read_text().splitlines()
    points = [point for point in map(json.loads, lines) if point["policy_id"] == policy_id]
    return [point[tag] for point in points if tag in point]


def pool_at(path: Path) -> Any:
    return json.loads((path / SELF_PLAY).read_text())["pool"]


class TestMapping:
    @pytest.mark.parametrize("num_agents", [2, 5])
    def test_policy_0_plays_one_side_or_all(self, num_agents: int) -> None:
        mapping, random = Mapping("self_play", 4, agents(num_agents), mirror=0.25), np.random.default_rng(1)
        dealt = [tuple(mapping.deal(episode, random).tolist()) for episode in range(8000)]
        mirrored = [policies for policies in dealt if set(policies) == {0}]
        assert len(mirrored) / len(dealt) == pytest.approx(0.25, abs=0.02)
        others = [policies for policies in dealt if set(policies) != {0}]
        for number in (1, 2, 3):
            for learner in (0, 1):
                sides = tuple(0 if agent % 2 == learner else number for agent in range(num_agents))
                assert others.count(sides) / len(others) == pytest.approx(1 / 6, abs=0.02)

    def test_without_self_play_it_deals_the_policies_that_there_are(self, tmp_path: Path) -> None:
        result = sf.train(
            env=GAME, seed=1, serial_mode=True, async_rl=False, num_workers=1, num_envs_per_worker=4, rollout=16,
            num_policies=2, policy_mapping="self_play", train_dir=str(tmp_path), train_for_env_steps=500,
            frozen_policies='{"1": "tests.environments.moves:worst"}', encoder_mlp_layers=(8,),
        )  # fmt: skip
        assert result.exit_reason == "train_for_env_steps reached"
        assert min(curve(next(tmp_path.iterdir()), "reward/reward", policy_id=1)) < 0


def pool_with(path: str) -> str:
    """The file of a pool with one snapshot, which has this path."""
    pool = Pool(SelfPlayConfig(), 0)
    pool.add(path, 10**9)
    return json.dumps({"pool": pool.state(), "anchors": {}})


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 6,000 frames."""
    parent = tmp_path_factory.mktemp("self_play")
    sf.train(train_dir=str(parent), experiment="one", train_for_env_steps=6000, **SERIAL)
    return parent / "one"


class TestRun:
    def test_snapshots_of_policy_0_are_in_the_pool_at_intervals(self, path: Path) -> None:
        snapshots = pool_at(path)["snapshots"]
        frames = [one["frames"] for one in snapshots]
        assert frames[0] == 0
        assert len(frames) >= 5
        assert min(np.diff(frames)) >= 1000
        for one in snapshots:
            saved = checkpoints.load(path / one["path"])
            assert saved.frames == one["frames"]

    def test_it_beats_its_beginning_and_is_rated_above_it(self, path: Path) -> None:
        first = pool_at(path)["snapshots"][0]["results"]
        assert first["wins"] > 2 * first["losses"]
        assert curve(path, "self_play/elo")[-1] > 100

    def test_opponents_play_as_snapshots_and_learn_nothing(self, path: Path) -> None:
        played = {number for seat in (1, 2) for number in curve(path, "self_play/snapshot", seat)}
        assert len(played) > 1
        for seat in (1, 2):
            assert not curve(path, "train/loss", seat)
            assert max(curve(path, "perf/_fps", seat)) > 0
            own = checkpoints.load_newest(path / f"checkpoint_p{seat}").network.variables()
            newest = int(curve(path, "self_play/snapshot", seat)[-1])
            there = checkpoints.load(path / pool_at(path)["snapshots"][newest]["path"]).network.variables()
            assert all((own[name] == there[name]).all() for name in own)

    @pytest.mark.more
    def test_a_serial_run_repeats_bit_by_bit(self, path: Path, tmp_path: Path) -> None:
        sf.train(train_dir=str(tmp_path), experiment="one", train_for_env_steps=6000, **SERIAL)
        assert pool_at(tmp_path / "one") == pool_at(path)
        one, other = (checkpoints.load_newest(run / "checkpoint_p0").network for run in (path, tmp_path / "one"))
        assert (one.flat == other.flat).all()

    @pytest.mark.more
    def test_a_resumed_run_keeps_its_pool_and_goes_on(self, path: Path, tmp_path: Path) -> None:
        shutil.copytree(path, tmp_path / "one")
        before = pool_at(path)
        shutil.rmtree(tmp_path / "one" / before["snapshots"][1]["path"])
        sf.train(train_dir=str(tmp_path), experiment="one", train_for_env_steps=9000, **SERIAL)
        after = pool_at(tmp_path / "one")
        numbers = [one["number"] for one in after["snapshots"]]
        assert numbers[: len(before["snapshots"]) - 1] == [0, *range(2, before["num_made"])], "one has gone"
        assert after["num_made"] > before["num_made"]
        assert after["snapshots"][0]["results"]["wins"] >= before["snapshots"][0]["results"]["wins"]

    @pytest.mark.more
    def test_a_killed_run_forgets_the_snapshots_after_its_checkpoint(
        self, path: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        shutil.copytree(path, tmp_path / "one")
        own = tmp_path / "one/checkpoint_p0"
        sf.train(train_dir=str(tmp_path), experiment="one", train_for_env_steps=9000, **SERIAL)
        newest = newest_in(own)
        assert newest is not None
        shutil.rmtree(newest)  # as if it had been killed just before
        resumed_at = newest_in(own)
        assert resumed_at is not None
        lost = [one for one in pool_at(own.parent)["snapshots"] if one["frames"] > frames_of(resumed_at)]
        assert lost
        sf.train(train_dir=str(tmp_path), experiment="one", train_for_env_steps=10_000, **SERIAL)
        assert f"after the newest checkpoint are forgotten: {len(lost)}." in capfd.readouterr().out
        found = pool_at(own.parent)["snapshots"]
        assert [one["number"] for one in found] == [*range(len(found))]
        assert min(np.diff([one["frames"] for one in found])) >= 1000
        assert {f"checkpoint_p0/pool/{there.name}" for there in (own / "pool").iterdir()} == {
            one["path"] for one in found
        }

    @pytest.mark.parametrize(
        "content",
        [
            "",
            "[1]",
            '{"anchors": {}}',
            '{"pool": {"snapshots": [], "rating": 1}, "anchors": {}}',
            *(pool_with(path) for path in ("/tmp", "../..", "checkpoint_p0/pool/../..", "checkpoint_p0/pool", "")),
        ],
    )
    def test_a_damaged_pool_is_refused(self, tmp_path: Path, content: str) -> None:
        (tmp_path / SELF_PLAY).write_text(content)
        pool = Pool(make_config(GAME, self_play=True, num_policies=2).self_play, 0)
        with pytest.raises(ExperimentError, match=r"self_play\.json is damaged, .* begin the pool of self-play anew"):
            SelfPlay(pool, [1], 10, tmp_path, [], {})
        assert (tmp_path / SELF_PLAY).read_text() == content

    @pytest.mark.more
    def test_a_damaged_snapshot_leaves_the_pool_and_the_run_goes_on(
        self, path: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        shutil.copytree(path, tmp_path / "one")
        (tmp_path / "one" / pool_at(path)["snapshots"][0]["path"] / "tensors.safetensors").write_bytes(b"")
        settings = SERIAL | {"self_play_games": 1}
        result = sf.train(train_dir=str(tmp_path), experiment="one", train_for_env_steps=20_000, **settings)
        assert result.exit_reason == "train_for_env_steps reached"
        assert "a snapshot has left the pool of self-play" in capfd.readouterr().out
        assert 0 not in [one["number"] for one in pool_at(tmp_path / "one")["snapshots"]]


@pytest.mark.more
def test_processes_against_a_function_and_a_small_pool(tmp_path: Path) -> None:
    settings = SMALL | {"num_policies": 4, "self_play_pool_size": 2, "self_play_opponents": "hard"}
    settings |= {"frozen_policies": '{"3": "tests.environments.moves:worst"}', "async_rl": True}
    result = sf.train(train_dir=str(tmp_path), experiment="one", train_for_env_steps=30_000, **settings)
    assert result.exit_reason == "train_for_env_steps reached"
    path = tmp_path / "one"
    kept = {Path(one["path"]).name for one in pool_at(path)["snapshots"]}
    assert {found.name for found in (path / "checkpoint_p0" / "pool").iterdir()} == kept
    assert pool_at(path)["num_made"] > len(kept)
    anchor = json.loads((path / SELF_PLAY).read_text())["anchors"]["3"]
    assert anchor["name"] == "tests.environments.moves:worst"
    assert anchor["results"]["losses"] == 0, "the smallest move never wins"
    assert anchor["results"]["wins"] > 100
    assert curve(path, "self_play/score_against_3")[-1] > 0.9


def test_a_function_that_returns_no_action_ends_the_run_with_its_call(tmp_path: Path) -> None:
    settings = SERIAL | {"num_policies": 2, "self_play": False, "policy_mapping": "by_agent"}
    with pytest.raises(EnvError, match=r"tests\.run\.test_self_play:too_large, called with the observation .* 3"):
        sf.train(
            train_dir=str(tmp_path), train_for_env_steps=1000,
            frozen_policies='{"1": "tests.run.test_self_play:too_large"}', **settings,
        )  # fmt: skip


def too_large(observation: Any, random: np.random.Generator) -> int:
    """No action of the game."""
    return MOVES


REFUSED: dict[str, dict[str, Any]] = {
    "num_policies=1: policy 0 learns": {"num_policies": 1},
    "no policy is left to play as a snapshot": {"frozen_policies": '{"1": "a:b", "2": "a:b"}'},
    "policy 0 learn, and frozen_policies": {"frozen_policies": '{"0": "a:b"}'},
    "an opponent has one learner": {"num_learners": 2},
    "self_play_pool_size=1 must be": {"self_play_pool_size": 1},
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_cannot_work_is_refused_before_the_run(sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(make_config(**({"num_policies": 3, "self_play": True} | REFUSED[sentence])))
    assert sentence in str(caught.value)


def test_an_environment_of_one_agent_and_a_function_that_is_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="CartPole-v1 has one agent, and self-play needs two sides"):
        sf.train(train_dir=str(tmp_path), **(SERIAL | {"env": "CartPole-v1"}))
    with pytest.raises(ConfigError, match=r"tests\.environments\.moves:nobody cannot be imported"):
        sf.train(train_dir=str(tmp_path), frozen_policies='{"1": "tests.environments.moves:nobody"}', **SERIAL)
    assert not any(tmp_path.iterdir())
