"""Rewards divided by the running deviation of their discounted sums (rows C30 and C31)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sf.learner.reward_scaling import RewardScaling
from tests.lab import make_lab, step_until

ALL = torch.ones(60, 4, dtype=torch.bool)


def columns(*values: Any) -> Any:
    """[T, 1] of one environment."""
    return torch.tensor(values).unsqueeze(-1)


def test_c30_c31_literals(oracles: dict[str, Any]) -> None:
    for case in oracles["C30"]["cases"]:
        inputs, expected = case["inputs"], case["expected"]
        scaling = RewardScaling(1, inputs["gamma"], initial_count=1e-4)
        rewards, dones = columns(*map(float, inputs["rewards"])), columns(*map(bool, inputs["dones"]))
        scaled = scaling(rewards, dones, torch.ones_like(dones), torch.tensor([0]))
        assert scaled.flatten().tolist() == pytest.approx(expected["scaled_and_clipped"], abs=1e-5)


def slow(rewards: Any, ended: Any, gamma: float, valid: Any = True) -> Any:
    """The definition, with all sums so far kept in a list; the first entry stands for the initial count of 1e-4."""
    valid = np.broadcast_to(valid, rewards.shape)
    num_steps, num_envs = rewards.shape
    sums, seen, scaled = np.zeros(num_envs), [], np.zeros_like(rewards)
    for t in range(num_steps):
        sums = gamma * sums + rewards[t]
        seen.extend(sums[valid[t]])
        count = len(seen) + 1e-4
        mean = np.sum(seen) / count
        variance = (np.square(np.array(seen) - mean).sum() + 1e-4 * (1 + mean**2)) / count
        scaled[t] = np.clip(rewards[t] / np.sqrt(variance + 1e-8), -10, 10)
        sums[ended[t]] = 0
    return scaled


def test_c30_against_a_slow_loop_and_in_pieces() -> None:
    random = np.random.default_rng(0)
    rewards, ended = random.normal(2, 5, (60, 4)), random.random((60, 4)) < 0.1
    expected = slow(rewards, ended, 0.97)
    scaling = RewardScaling(4, 0.97, initial_count=1e-4)
    pieces = [
        scaling(torch.from_numpy(rewards[a:b]), torch.from_numpy(ended[a:b]), ALL[a:b], torch.arange(4))
        for a, b in ((0, 25), (25, 60))
    ]
    np.testing.assert_allclose(torch.cat(pieces).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_c30_what_the_policy_did_not_choose_is_no_part_of_the_variance() -> None:
    """Fillers, steps of other policies, and steps in which none of the rows counts."""
    random = np.random.default_rng(2)
    rewards, ended = random.normal(2, 5, (60, 4)), random.random((60, 4)) < 0.1
    valid = random.random((60, 4)) < 0.4
    valid[7] = False
    expected = slow(rewards, ended, 0.97, valid)
    scaling = RewardScaling(4, 0.97, initial_count=1e-4)
    scaled = scaling(torch.from_numpy(rewards), torch.from_numpy(ended), torch.from_numpy(valid), torch.arange(4))
    np.testing.assert_allclose(scaled.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert scaling.moments.count.item() == pytest.approx(valid.sum(), rel=1e-5)


def test_two_trajectories_of_one_environment_follow_each_other() -> None:
    random = np.random.default_rng(1)
    rewards, ended = random.normal(size=(20, 1)), random.random((20, 1)) < 0.2
    expected = slow(rewards, ended, 0.9)
    both = RewardScaling(3, 0.9, initial_count=1e-4)(
        torch.from_numpy(np.concatenate([rewards[:10], rewards[10:]], 1)),
        torch.from_numpy(np.concatenate([ended[:10], ended[10:]], 1)),
        ALL[:10, :2],
        torch.tensor([2, 2]),
    )
    np.testing.assert_allclose(both.T.reshape(-1, 1).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_slots_keep_raw_rewards_and_a_checkpoint_the_moments(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, "CartPole-v1", normalize_rewards=True)
    roles = lab.build_all()
    step_until(roles, lambda: roles[0].record["iterations"] >= 3)
    assert set(np.unique(lab.slots.rewards)) == {1.0}
    state = roles[0].update.state_dict()
    assert state["reward_scaling.count"].item() == pytest.approx(3 * roles[0].frames_per_iteration, rel=1e-5)
    assert 1 < state["reward_scaling.mean"] < 30
    for role in roles:
        role.close()


@pytest.mark.parametrize("rounds", [1, 2])
def test_trajectories_of_one_row_are_in_the_order_of_time(tmp_path: Path, rounds: int) -> None:
    """The environment counts its steps, so a stream whose steps go backwards would show."""
    flags: dict[str, Any] = {"num_envs_per_worker": 4, "rollout": 4, "batch_size": 16 * rounds}
    lab = make_lab(tmp_path, "sf/Counter-v0", env_kwargs='{"episode_steps": 0}', **flags)
    roles = lab.build_all()
    batcher = roles[0].batcher
    last: dict[int, float] = {}
    for _ in range(5):
        step_until(roles[1:], lambda: len(lab.slots.waiting_for(0)) * lab.slots.topology.rows >= 4 * rounds)
        batch = batcher.next()
        assert len(set(batch.streams.tolist())) == 4
        for column, stream in enumerate(batch.streams.tolist()):
            steps = batch.observations["obs"][:-1, column, 2].tolist()
            assert steps == [last.get(stream, -1) + 1 + i for i in range(4)]
            last[stream] = steps[-1]
        batcher.release()
