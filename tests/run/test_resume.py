"""A serial run that stops and goes on is the run that did not stop, bit for bit."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sf.config import Config
from sf.envs import history
from sf.learner.saving import RESUME_POINT
from sf.run.callbacks import Callbacks
from sf.run.supervisor import train
from sf.shared.episodes import Episode
from sf.storage import checkpoint
from sf.storage.task import changes_of_task, has_score
from tests.helpers.commands import run
from tests.helpers.lab import make_config

FRAMES = 3_000


def state_after(
    path: Path, stops: list[int], env: str = "CartPole-v1", **flags: Any
) -> tuple[dict[str, torch.Tensor], list[Episode]]:
    """What the last checkpoint holds, and the episodes, of a run that stopped after so many frames, and was resumed."""
    settings = {"serial_mode": True, "num_envs_per_worker": 8, "rollout": 16, "num_epochs": 2, "seed": 3}
    episodes: list[Episode] = []

    def stops_the_run(episode: Episode) -> bool:
        episodes.append(episode)
        return True

    newest, frames = None, -1
    for stop in [*stops, FRAMES]:
        config = make_config(env, train_dir=str(path), train_for_env_steps=stop, **(settings | flags))
        if stops and stop == FRAMES:
            train(config, Callbacks(on_episode=stops_the_run))  # wherever it happens to be
        train(config, Callbacks(on_episode=episodes.append))
        newest = checkpoint.load_newest(path / "default_experiment" / "checkpoint_p0")
        assert newest is not None
        assert frames < stop <= newest.env_steps
        frames = newest.env_steps
    assert newest is not None
    return newest.tensors, episodes


@pytest.mark.more
@pytest.mark.parametrize("async_rl", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "flags",
    [
        {"normalize_rewards": True, "normalize_input": True},
        {"use_rnn": True, "rnn_size": 8, "rnn_type": "lstm"},
        {"env": "Pendulum-v1", "num_batches_per_epoch": 3, "batch_size": 256},
        {"env": "sf/Couriers-v0", "batch_size": 256},
        {"env": "Pendulum-v1", "policy_workers_per_policy": 0, "num_workers": 2, "num_envs_per_worker": 4},
        {"algorithm": "tests.helpers.keeping:Keeping"},
        {"env": "Pendulum-v1", "noise_correlation": 0.9},
        {"env": "Pendulum-v1", "noise_correlation": 0.9, "policy_workers_per_policy": 0, "num_envs_per_worker": 4},
    ],
    ids=["statistics", "lstm", "numbers", "masks", "acting", "algorithm", "lasting noise", "lasting noise, acting"],
)
def test_fault_d9_resumed_run_is_bit_for_bit_the_same(tmp_path: Path, async_rl: bool, flags: dict[str, Any]) -> None:
    """Parameters, moments of the optimizer, statistics, random states, counters, all of shared memory, and scores."""
    whole, scores = state_after(tmp_path / "whole", [], async_rl=async_rl, **flags)
    again, scores_again = state_after(tmp_path / "again", [], async_rl=async_rl, **flags)
    parts, scores_in_parts = state_after(tmp_path / "parts", [500, 800, 2000], async_rl=async_rl, **flags)
    assert scores
    assert scores == scores_again == scores_in_parts
    assert set(whole) == set(parts)
    assert any(name.startswith(RESUME_POINT) for name in whole)
    for name, tensor in whole.items():
        assert torch.equal(tensor.nan_to_num(), again[name].nan_to_num()), f"{name} differs in two equal runs"
        assert torch.equal(tensor.nan_to_num(), parts[name].nan_to_num()), f"{name} differs after a resume"


@pytest.mark.more
def test_fault_d9_run_that_stopped_before_it_learned_goes_on_where_it_was(tmp_path: Path) -> None:
    """Its newest checkpoint has the name of the one that it went on from, and is another one."""

    def told(path: Path, *parts: tuple[int, bool]) -> int:
        episodes: list[Episode] = []

        def stop(episode: Episode) -> bool:
            episodes.append(episode)
            return True

        for frames, stops in parts:
            flags: dict[str, Any] = {"num_envs_per_worker": 4, "rollout": 64, "train_dir": str(path)}
            config = make_config(
                "tests.environments.toys:Drowsy-v0", train_for_env_steps=frames, serial_mode=True, **flags
            )
            train(config, Callbacks(on_episode=stop if stops else episodes.append))
        return len(episodes)

    parts = told(tmp_path / "parts", (256, False), (512, True), (512, False))
    assert parts == told(tmp_path / "whole", (512, False))


@pytest.mark.more
@pytest.mark.parametrize("shares", [True, False])
def test_a_resumed_run_has_as_many_networks_as_it_began_with(tmp_path: Path, shares: bool) -> None:
    """Whatever the default is now."""
    flags = "--env=Pendulum-v1", "--serial_mode=True", "--num_envs_per_worker=4", "--seed=1"
    first = run(tmp_path, *flags, "--train_for_env_steps=300", f"--actor_critic_share_weights={shares}")
    assert first.code == 0, first.err
    again = run(tmp_path, *flags, "--train_for_env_steps=600")
    assert again.code == 0, again.err
    assert "Resumed from" in again.out
    config = json.loads((tmp_path / "train_dir/default_experiment/config.json").read_text())
    assert config["model"]["actor_critic_share_weights"] is shares


@pytest.mark.more
def test_fault_d9_environments_that_do_not_repeat_begin_anew(tmp_path: Path) -> None:
    flags = "--env=tests.environments.toys:Moody-v0", "--serial_mode=True", "--num_envs_per_worker=4", "--seed=1"
    assert run(tmp_path, *flags, "--train_for_env_steps=2000").code == 0
    finished = run(tmp_path, *flags, "--train_for_env_steps=6000")
    assert finished.code == 0, finished.err
    assert "do not repeat their observation. They begin new episodes." in finished.out
    summary = json.loads((tmp_path / "train_dir/default_experiment/summary.json").read_text())
    assert summary["frames"] >= 6000


@pytest.mark.more
def test_fault_d9_a_long_episode_does_not_grow_in_memory_and_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beyond a bound its actions are forgotten, and a resumed run begins new episodes and says so."""
    monkeypatch.setattr(history, "MOST_BYTES", 100 * 4)  # of 200 steps
    settings: dict[str, Any] = {"num_envs_per_worker": 2, "train_dir": str(tmp_path), "serial_mode": True}
    has_moment, told = [], []
    for steps in (64, 96, 128, 136):
        train(make_config("Pendulum-v1", train_for_env_steps=2 * steps, **settings))
        newest = checkpoint.load_newest(tmp_path / "default_experiment" / "checkpoint_p0")
        assert newest is not None
        has_moment.append(any(name.startswith(RESUME_POINT) for name in newest.tensors))
        told.append("does not say where they were" in capsys.readouterr().out)
    assert has_moment == [True, True, False, True]  # the last start has begun new episodes, which are short
    assert told == [False, False, False, True]


@pytest.mark.parametrize("action", [np.int64(3), np.arange(4, dtype=np.float32), np.arange(6).reshape(2, 3)])
def test_fault_d9_history_is_bounded_until_the_episode_ends(action: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_BYTES", 10 * action.nbytes)
    kept = history.History([5, 6])
    for index in (0, 1):
        kept.begin(index)
    steps = [np.stack([action + number, action - number]) for number in range(11)]
    for step in steps[:10]:
        kept.add(step)
    again = history.History([])
    again.load_state(json.loads(json.dumps(kept.state())), str(action.dtype))
    for index in (0, 1):
        expected = np.stack([step[index] for step in steps[:10]])
        for own in (kept, again):
            assert own.actions(index).dtype == action.dtype
            np.testing.assert_array_equal(own.actions(index), expected)
    kept.add(steps[10])
    assert not kept.is_whole
    kept.begin(0)
    assert not kept.is_whole
    kept.begin(1)
    kept.add(steps[10])
    assert kept.is_whole
    np.testing.assert_array_equal(kept.actions(1), [steps[10][1]])


@pytest.mark.more
def test_fault_d9_another_shape_of_the_run_begins_anew(tmp_path: Path) -> None:
    flags = "--env=CartPole-v1", "--serial_mode=True", "--seed=1"
    assert run(tmp_path, *flags, "--train_for_env_steps=2000", "--num_envs_per_worker=4").code == 0
    finished = run(tmp_path, *flags, "--train_for_env_steps=4000", "--num_envs_per_worker=8")
    assert finished.code == 0, finished.err
    assert "another shape than before" in finished.out
    assert re.search(r"Collected \{0: 4\d{3}\}", finished.out)


@pytest.mark.more
@pytest.mark.parametrize(
    "flags",
    [
        {"num_workers": 2},
        {"num_workers": 3, "policy_workers_per_policy": 2, "use_rnn": True, "rnn_size": 8},
        {"num_workers": 2, "policy_workers_per_policy": 0},
        {"num_workers": 2, "worker_num_splits": 1, "env": "tests.environments.toys:GlobalRandom-v0"},
    ],
    ids=["mlp", "gru", "acting", "global generators"],
)
def test_synchronous_run_with_processes_repeats_bit_for_bit(tmp_path: Path, flags: dict[str, Any]) -> None:
    """Whatever the order in which workers ask and finish, with one dataset per sampling round."""
    found = []
    for attempt in "ab":
        settings: dict[str, Any] = {"num_envs_per_worker": 8, "rollout": 16, "num_epochs": 2, "seed": 3}
        settings |= {"train_dir": str(tmp_path / attempt), "train_for_env_steps": FRAMES}
        config = make_config(**(settings | flags))
        train(config)
        newest = checkpoint.load_newest(tmp_path / attempt / "default_experiment" / "checkpoint_p0")
        assert newest is not None
        found.append(newest.tensors)
    for name, tensor in found[0].items():
        assert torch.equal(tensor, found[1][name]), name


@pytest.mark.more
def test_a_resume_with_one_more_policy_says_that_it_begins_at_zero(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings: dict[str, Any] = {
        "train_dir": str(tmp_path),
        "serial_mode": True,
        "num_envs_per_worker": 4,
        "rollout": 16,
    }
    train(make_config(**settings, train_for_env_steps=200))
    points = (tmp_path / "default_experiment" / "metrics.jsonl").read_text()
    capsys.readouterr()
    train(make_config(**settings, train_for_env_steps=200))
    assert "200 frames" not in (shown := capsys.readouterr().out)
    assert re.search(r"frames were learned before in .+, so nothing was started\.", shown)
    assert (tmp_path / "default_experiment" / "metrics.jsonl").read_text() == points, "nothing was left to do"
    train(make_config(**settings, train_for_env_steps=800, num_policies=2))
    shown = capsys.readouterr().out
    assert "Other policies of this run have checkpoints, and policy 1 has none: IT BEGINS AT ZERO." in shown
    assert "policy 0 has none" not in shown


def rewards_of(config: Config) -> list[float]:
    """Returns of the episodes that count for the means of a start, at its end."""
    seen: list[Episode] = []
    train(config, Callbacks(on_episode=seen.append))
    return [episode.reward for episode in seen]


@pytest.mark.more
def test_another_task_has_episodes_means_and_a_best_score_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rewards of both in one episode would be those of neither; and no policy would ever reach the best one before."""
    settings: dict[str, Any] = {"serial_mode": True, "num_envs_per_worker": 8, "rollout": 16, "seed": 3}
    settings |= {"train_dir": str(tmp_path), "save_best_every_sec": 1}
    first = rewards_of(make_config("CartPole-v1", train_for_env_steps=6000, **settings))
    assert min(first) > 5
    own = tmp_path / "default_experiment/checkpoint_p0"
    best = checkpoint.load_newest(own / "best")
    assert best is not None
    assert best.data["reward"] > 5
    kwargs = '{"sutton_barto_reward": true}'
    capsys.readouterr()
    second = rewards_of(make_config("CartPole-v1", train_for_env_steps=14_000, env_kwargs=kwargs, **settings))
    assert set(second) <= {-1.0, 0.0}
    said = capsys.readouterr().out
    assert "The environments begin new episodes, because --env_kwargs has changed." in said
    assert "Best scores begin anew, and a new best checkpoint takes the place of the one so far." in said
    summary = json.loads((tmp_path / "default_experiment/summary.json").read_text())
    assert -1.0 <= summary["policies"][0]["reward"] <= 0.0
    best = checkpoint.load_newest(own / "best")
    assert best is not None
    assert best.data["reward"] <= 0.0


def test_tasks_are_compared_by_their_meaning() -> None:
    def of(**run: Any) -> dict[str, Any]:
        return {"config": {"run": {"env_kwargs": "{}", "max_episode_steps": None, "score": "reward"} | run}}

    assert changes_of_task(of(env_kwargs='{"a": 1, "b": 2}'), of(env_kwargs='{"b":2,"a":1}')) == []
    changed = changes_of_task(of(), of(env_kwargs='{"a": 1}', max_episode_steps=9, score="env/x"))
    assert changed == ["env_kwargs", "max_episode_steps"]
    old = of()
    del old["config"]["run"]["max_episode_steps"]
    assert changes_of_task(old, of(max_episode_steps=9)) == [], "another version has saved it"
    assert has_score(of() | {"reward": 3.0}, of())
    assert not has_score(of() | {"reward": None}, of())
    assert not has_score(of() | {"reward": 3.0}, of(score="env/x"))
    assert not has_score(of() | {"reward": 3.0}, of(max_episode_steps=9))
