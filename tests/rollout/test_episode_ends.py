"""Ends of episodes in a rollout worker: resets, the values of final observations, and scores."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from sf.envs import register_env
from sf.learner.returns import gae, values_after
from tests.environments.toys import Toy
from tests.helpers.commands import run
from tests.helpers.lab import make_lab, step_until
from tests.helpers.rollouts import play


def test_truncated_step_bootstraps_from_its_own_final_observation(tmp_path: Path) -> None:
    """The final observation has step 3; the one stored next is already the first of the next episode, with step 0."""
    lab = make_lab(tmp_path, "test/Counter", env_kwargs='{"episode_steps": 3, "truncate": true}', rollout=6)
    _, _, _, copies = play(lab, 4)
    for copy in copies:
        assert copy["truncated"].any()
        assert not copy["terminated"].any()
        assert (copy["final_values"][copy["truncated"]] == 3).all()
        assert (copy["obs"][1:][copy["truncated"]][:, 2] == 0).all()


def test_step_that_is_terminated_and_truncated_is_terminated(tmp_path: Path) -> None:
    """A time limit of the length of the episodes; no final observation is valued."""
    register_env("test/Both", functools.partial(Toy, terminated=True, truncated=True))
    _, _, _, copies = play(make_lab(tmp_path, "test/Both", rollout=6), 4)
    for copy in copies:
        assert copy["terminated"].all()
        assert not copy["truncated"].any()


@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("env", ["test/Counter", "test/CounterPair"])
def test_fault_b15_every_step_ends_an_episode(tmp_path: Path, env: str, truncate: bool) -> None:
    """One reset for each, the value of the own final observation where it was cut, and advantages as by hand."""
    kwargs = json.dumps({"episode_steps": 1, "truncate": truncate})
    lab = make_lab(tmp_path, env, env_kwargs=kwargs, num_envs_per_worker=4, rollout=6)
    _, _, _, copies = play(lab, 4)
    for group in (0, 1):
        episodes = np.concatenate([copy["obs"][:-1, :, 1] for copy in copies[group::2]])
        assert (episodes == np.arange(len(episodes))[:, None]).all()
    for copy in copies:
        assert copy["truncated"].all() == truncate
        assert copy["terminated"].all() != truncate
        following = 1.0 if truncate else 0.0  # the final observation has step 1, and so its value
        by_hand = copy["rewards"] + 0.99 * following - copy["values"][:-1].astype(np.float64)
        tensors = {name: torch.from_numpy(copy[name]) for name in ("rewards", "values", "final_values")}
        truncated, terminated = torch.from_numpy(copy["truncated"]), torch.from_numpy(copy["terminated"])
        values = tensors["values"][:-1]
        after = values_after(values, tensors["values"][-1], tensors["final_values"], truncated)
        found = gae(tensors["rewards"], values, after, terminated, truncated, 0.99, 0.95)
        np.testing.assert_allclose(found.numpy(), by_hand, rtol=1e-6)


@pytest.mark.parametrize("truncate", [False, True])
def test_fault_b15_whole_run_of_episodes_of_one_step(tmp_path: Path, truncate: bool) -> None:
    kwargs = json.dumps({"episode_steps": 1, "truncate": truncate})
    flags = ("--num_workers=1", "--num_envs_per_worker=8", "--train_for_env_steps=4000", "--async_rl=False")
    finished = run(tmp_path, "--env=sf/Counter-v0", f"--env_kwargs={kwargs}", *flags)
    assert finished.code == 0, finished.err
    text = (tmp_path / "train_dir/default_experiment/metrics.jsonl").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    last = json.loads(text.splitlines()[-1])
    assert (last["reward/reward"], last["len/len"]) == (1.0, 1.0)


def test_episodes_report_raw_returns_whatever_is_trained_on(tmp_path: Path) -> None:
    from sf.shared.episodes import EpisodeRing

    lab = make_lab(tmp_path, "test/Counter", env_kwargs='{"episode_steps": 4}', reward_scale=0.5, reward_clip=1.0)
    ring = EpisodeRing(lab.arena, 0)
    _, _, _, copies = play(lab, 4)
    episodes = ring.new_episodes()
    assert episodes
    assert {(episode.reward, episode.length) for episode in episodes} == {(10.0, 4)}
    assert ring.new_episodes() == []
    assert set(copies[0]["rewards"].ravel().tolist()) == {0.5, 1.0}


class EndsWithinReset(gymnasium.Env[Any, Any]):
    """Ends a trajectory early in every second step; its episode then ends within the reset."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)
        self.ends = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        within = self.ends % 2 == 1
        return np.zeros(1, np.float32), {"episode": {"r": 7.0, "l": 3}, "episode_continues": False} if within else {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.ends += 1
        info = {"episode_continues": True} if self.ends % 2 else {"episode": {"r": 5.0, "l": 1}}
        return np.zeros(1, np.float32), 1.0, True, False, info


def test_scores_that_an_environment_counts_itself_are_reported_also_those_within_a_reset(tmp_path: Path) -> None:
    register_env("EndsWithinReset", EndsWithinReset)
    lab = make_lab(tmp_path, "EndsWithinReset", num_envs_per_worker=2, worker_num_splits=1, rollout=4)
    roles = lab.build_all()
    step_until(roles, lambda: roles[-1].record["episodes"] >= 8)
    episodes = lab.arena["episodes"][0, :8, 1:3].tolist()
    assert episodes == [[7, 3], [7, 3], [5, 1], [5, 1]] * 2
    for role in roles:
        role.close()
