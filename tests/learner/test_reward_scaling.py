"""Rewards divided by the running deviation of their discounted sums (rows C30 and C31)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sf.learner.batch import Batch
from sf.learner.reward_scaling import RewardScaling
from tests.helpers.lab import make_lab, step_until

ALL = torch.ones(60, 4, dtype=torch.bool)


def dataset(rewards: Any, ended: Any, valid: Any, streams: Any, is_new: Any = None) -> Batch:
    """What scaling looks at, without the rest of a dataset."""
    tensor = torch.as_tensor
    by_step = {
        "rewards": tensor(rewards),
        "terminated": tensor(ended),
        "truncated": torch.zeros_like(tensor(ended)),
        "valid": tensor(valid),
    }
    no_new = torch.zeros(len(streams), dtype=torch.bool)
    return Batch(by_step, {"streams": tensor(streams), "is_new": no_new if is_new is None else tensor(is_new)})


def columns(*values: Any) -> Any:
    """[T, 1] of one environment."""
    return torch.tensor(values).unsqueeze(-1)


def test_c30_c31_literals(oracles: dict[str, Any]) -> None:
    for case in oracles["C30"]["cases"]:
        inputs, expected = case["inputs"], case["expected"]
        scaling = RewardScaling(1, inputs["gamma"], initial_count=1e-4)
        rewards, dones = columns(*map(float, inputs["rewards"])), columns(*map(bool, inputs["dones"]))
        scaled = scaling(dataset(rewards, dones, torch.ones_like(dones), [0]))
        assert scaled.flatten().tolist() == pytest.approx(expected["scaled_and_clipped"], abs=1e-5)


def slow(rewards: Any, ended: Any, gamma: float, valid: Any = True) -> Any:
    """The definition, with all sums so far kept in a list; the first entry stands for the initial count of 1e-4."""
    valid = np.broadcast_to(valid, rewards.shape)
    num_steps, num_envs = rewards.shape
    sums, seen, scaled = np.zeros(num_envs), [], np.zeros_like(rewards)
    for t in range(num_steps):
        sums = np.where(valid[t], gamma * sums + rewards[t], 0)
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
    pieces = [scaling(dataset(rewards[a:b], ended[a:b], ALL[a:b], torch.arange(4))) for a, b in ((0, 25), (25, 60))]
    np.testing.assert_allclose(torch.cat(pieces).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_c30_what_the_policy_did_not_choose_is_no_part_of_the_variance() -> None:
    """Fillers, steps of other policies, and steps in which none of the rows counts."""
    random = np.random.default_rng(2)
    rewards, ended = random.normal(2, 5, (60, 4)), random.random((60, 4)) < 0.1
    valid = random.random((60, 4)) < 0.4
    valid[7] = False
    expected = slow(rewards, ended, 0.97, valid)
    scaling = RewardScaling(4, 0.97, initial_count=1e-4)
    scaled = scaling(dataset(rewards, ended, valid, torch.arange(4)))
    np.testing.assert_allclose(scaled.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert scaling.moments.count.item() == pytest.approx(valid.sum(), rel=1e-5)


def test_c30_sums_of_a_row_take_in_episodes_of_the_own_policy_only() -> None:
    """Two policies take turns, episode by episode; each learner sees the trajectories in which its own one acted."""
    random = np.random.default_rng(3)
    rewards, ended = random.normal(3, 1, (60, 4)), random.random((60, 4)) < 0.08
    policy = np.cumsum(np.concatenate([np.zeros((1, 4)), ended[:-1]]), 0) % 2  # the other one after each episode
    rewards[policy == 1] *= 1000
    pieces = [slice(start, start + 5) for start in range(0, 60, 5)]
    own = RewardScaling(4, 0.97)
    for piece in pieces:
        seen = np.flatnonzero((policy[piece] == 0).any(0))
        own(dataset(rewards[piece][:, seen], ended[piece][:, seen], policy[piece][:, seen] == 0, seen))
        for row in range(4):
            assert own.sums[row] == pytest.approx(running_sum(rewards, ended, policy == 0, row, piece.stop, 0.97))
    assert any((policy[piece] == 1).all(0).any() for piece in pieces), "some trajectories are left out"


def running_sum(rewards: Any, ended: Any, own: Any, row: int, stop: int, gamma: float) -> float:
    """Sum of the episode that goes on after step stop - 1, 0 where that is none of the policy."""
    start = stop
    while start > 0 and own[start - 1, row] and not ended[start - 1, row]:
        start -= 1
    return float(sum(gamma ** (stop - 1 - t) * rewards[t, row] for t in range(start, stop)))


def test_c30_sums_go_on_through_a_dataset_that_trains_nothing() -> None:
    """Whose transitions are too old: their episodes end all the same, and the variance does not know of them."""
    random = np.random.default_rng(4)
    rewards, ended = random.normal(2, 5, (40, 4)), random.random((40, 4)) < 0.1
    skipping, whole = (RewardScaling(4, 0.97) for _ in range(2))
    for start in range(0, 40, 10):
        piece = slice(start, start + 10)
        data = dataset(rewards[piece], ended[piece], ALL[:10], np.arange(4))
        whole(data)
        (skipping.pass_over if start == 10 else skipping)(data)
        assert skipping.sums == whole.sums
    assert (skipping.moments.count.item(), whole.moments.count.item()) == (120, 160)


def test_c30_an_update_that_skips_a_dataset_passes_over_its_rewards(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, "sf/Counter-v0", env_kwargs='{"episode_steps": 0}', normalize_rewards=True, rollout=4)
    learner, *others = lab.build_all()
    for _ in range(2):
        step_until([learner, *others], lambda: learner.source.rows_waiting > 0 or learner.step())
    update = learner.update
    before = update.reward_scaling.moments.count.item()
    step_until(others, lambda: len(lab.slots.waiting_for(0)) > 0 and not any([role.step() for role in others]))
    batch = learner.source.next()
    expected = [
        0.99 ** len(batch.rewards) * total + sum(0.99**age * reward for age, reward in enumerate(reversed(column)))
        for total, column in zip(update.reward_scaling.sums, batch.rewards.T.tolist(), strict=True)
    ]
    batch.policy_version[:] = -(10**6)
    assert list(update.steps(batch)) == []
    assert update.reward_scaling.sums == pytest.approx(expected)
    assert update.reward_scaling.moments.count.item() == before


def test_c30_no_sum_goes_on_in_the_episodes_of_a_successor(tmp_path: Path) -> None:
    """A rollout worker dies in the middle of episodes, and another one begins its own."""
    lab = make_lab(tmp_path, "sf/Counter-v0", env_kwargs='{"episode_steps": 0}', normalize_rewards=True, rollout=4)
    learner, *others = lab.build_all()
    step_until([learner, *others], lambda: learner.record["iterations"] >= 3)
    scaling = learner.update.reward_scaling
    assert scaling.sums == pytest.approx([sum_of_numbers(12)] * 8)
    lab.slots.discard_of_worker(0)
    others = [lab.build("rollout-0", incarnation=1), lab.build("inference-0-0")]
    step_until([learner, *others], lambda: learner.record["iterations"] >= 4)
    assert scaling.sums == pytest.approx([sum_of_numbers(4)] * 8)


@pytest.mark.parametrize("where", ["observation", "reward"])
@pytest.mark.parametrize("length", [5, 7])
@pytest.mark.parametrize("every", [40, 44])
def test_c30_no_sum_goes_on_after_a_trajectory_that_is_left_out(
    tmp_path: Path, every: int, length: int, where: str
) -> None:
    """With two policies a trajectory in which one does not act never reaches it, nor do the ends of episodes there."""
    kwargs = f'{{"where": "{where}", "bad": "nan", "every": {every}, "length": {length}}}'
    lab = make_lab(
        tmp_path, "tests.environments.toys:Leaky-v0", env_kwargs=kwargs, num_policies=2, normalize_rewards=True,
        rollout=4, on_nonfinite="drop",
    )  # fmt: skip
    roles = lab.build_all()
    possible = [(1 - 0.99**steps) / (1 - 0.99) for steps in range(length)]
    for _ in range(60):
        step_until(roles, lambda: any([role.step() for role in roles[:2]]))
        for learner in roles[:2]:
            for total in learner.update.reward_scaling.sums:
                assert min(abs(total - one) for one in possible) < 1e-6, "more than one episode with rewards of 1"


def sum_of_numbers(steps: int) -> float:
    """Discounted, of the rewards 1, 2, 3, ... of one episode."""
    return sum(0.99 ** (steps - number) * number for number in range(1, steps + 1))


def test_two_trajectories_of_one_environment_follow_each_other() -> None:
    random = np.random.default_rng(1)
    rewards, ended = random.normal(size=(20, 1)), random.random((20, 1)) < 0.2
    expected = slow(rewards, ended, 0.9)
    rewards, ended = (np.concatenate([array[:10], array[10:]], 1) for array in (rewards, ended))
    both = RewardScaling(3, 0.9, initial_count=1e-4)(dataset(rewards, ended, ALL[:10, :2], [2, 2]))
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
    batcher = roles[0].source
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
