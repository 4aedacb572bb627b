"""Several learners of one policy: together they do what one does with the whole dataset (row C-X2)."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from sf.config import LearnerConfig, ModelConfig
from sf.learner.batch import Batch
from sf.learner.peers import ALONE, Peers
from sf.learner.ranks import Ranks
from sf.learner.update import Update
from sf.policy import ActorCritic
from sf.spaces import ActionSpec, EnvInfo, LeafSpec
from tests.helpers.batches import make_batch
from tests.helpers.learners import EACH_WAY, Makers, of_several_ranks, together

INFO = EnvInfo("test", 1, {"obs": LeafSpec((4,), "float32")}, ActionSpec.discrete(3))
STEPS = 8


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def make_update(config: dict[str, Any], model: dict[str, Any], peers: Peers | None = None) -> Update:
    torch.manual_seed(0)
    policy = ActorCritic(INFO, ModelConfig(encoder_mlp_layers=(16, 16), **model))
    flags = {"num_batches_per_epoch": 2, "num_epochs": 2, "shuffle_minibatches": False, "learning_rate": 1e-3, **config}
    return Update(policy, LearnerConfig(**flags), 8, peers or ALONE)


def random_dataset(seed: int, num_trajectories: int, state_size: int) -> Batch:
    """A dataset that some policy could have collected; its values differ from column to column."""
    random = torch.Generator().manual_seed(seed)
    shape = (STEPS, num_trajectories)
    kind = torch.randint(0, 8, shape, generator=random)
    scale = torch.linspace(0.5, 4.0, num_trajectories)
    return make_batch(
        observations={"obs": scale[:, None] * torch.randn(STEPS + 1, num_trajectories, 4, generator=random) + 1},
        initial_memory=torch.randn(num_trajectories, state_size, generator=random),
        streams=torch.arange(num_trajectories) % 8,
        actions=torch.randint(0, 3, shape, generator=random),
        behavior_log_probs=torch.log(0.2 + 0.2 * torch.rand(shape, generator=random)),
        values=torch.randn(shape, generator=random),
        rewards=scale * torch.randn(shape, generator=random),
        terminated=kind == 0,
        truncated=kind == 1,
        bootstrap_values=torch.randn(num_trajectories, generator=random),
        final_values=torch.randn(shape, generator=random),
        policy_version=torch.randint(-3, 1, shape, generator=random),
        valid=torch.ones(shape, dtype=torch.bool),
    )


Facts = tuple[dict[str, Tensor], list[tuple[float, float, float]], float, list[dict[str, float]]]
OF_A_SHARE = "explained_variance", "adv_std"
"""Shown as the means over the shares of all learners, because those of the whole do not follow from them."""


def trained_on(peers: Peers | None, config: Any, model: Any, batches: list[Batch]) -> Facts:
    """State, lags and learning rate after some datasets, and what was shown of each."""
    update = make_update(config, model, peers)
    update.want_summary = True
    lags, summaries = [], []
    for batch in batches:
        batch = batch.with_columns(policy_version=batch.policy_version + update.version)
        lags += [(step.lag_min, step.lag_avg, step.lag_max) for step in update.steps(batch)]
        summaries.append(update.summary())
    return {name: tensor.clone() for name, tensor in update.state_dict().items()}, lags, update.lr, summaries


def split(whole: Batch, sizes: tuple[int, int]) -> list[Batch]:
    """Two shares of which minibatch i, half of each share, makes minibatch i of the whole."""
    first, second = (size // 2 for size in sizes)
    columns: tuple[list[int], list[int]] = ([], [])
    at = 0
    for _ in range(2):
        columns[0].extend(range(at, at + first))
        columns[1].extend(range(at + first, at + first + second))
        at += first + second
    return [whole.trajectories(torch.tensor(own, dtype=torch.int64)) for own in columns]


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[int, int]]] = {
    "half a batch each": ({}, {}, (4, 4)),
    "unequal shares": ({}, {}, (2, 6)),
    "nothing for one": ({}, {}, (0, 8)),
    "one transition too old": ({"max_policy_lag": 3}, {}, (4, 4)),
    "population deviation": ({"advantage_ddof": 0}, {}, (2, 6)),
    "advantages as they are": ({"normalize_advantages": False}, {}, (2, 6)),
    "reward statistics": ({"normalize_rewards": True}, {}, (6, 10)),
    "V-trace": ({"with_vtrace": True}, {}, (2, 6)),
    "early stop": ({"target_kl": 0.035}, {}, (2, 6)),
    "adaptive rate": ({"lr_schedule": "kl_adaptive_minibatch", "lr_schedule_kl_threshold": 0.05}, {}, (2, 6)),
    "adaptive rate per epoch": ({"lr_schedule": "kl_adaptive_epoch", "lr_schedule_kl_threshold": 0.05}, {}, (2, 6)),
    "adaptive rate per batch": ({"lr_schedule": "kl_adaptive_batch", "lr_schedule_kl_threshold": 0.05}, {}, (2, 6)),
    "memory": ({}, {"use_rnn": True, "rnn_size": 8}, (2, 6)),
    "memory and nothing for one": ({"with_vtrace": True}, {"use_rnn": True, "rnn_size": 8}, (0, 8)),
}


@pytest.mark.more
@EACH_WAY
def test_cx2_two_learners_with_half_a_batch_each_equal_one_with_the_whole(makers: Makers) -> None:
    """Weights, optimizer, statistics, learning rate, lag and curves of three datasets, and copies to the last bit."""
    expected: dict[str, Facts] = {}
    jobs: tuple[list[Any], list[Any]] = ([], [])
    for name, (config, model, sizes) in CASES.items():
        update = make_update(config, model)
        wholes = [random_dataset(seed, sum(sizes), update.policy.state_size) for seed in range(3)]
        for job, share in zip(jobs, zip(*(split(whole, sizes) for whole in wholes), strict=True), strict=True):
            job.append((config, model, list(share)))
        expected[name] = trained_on(None, config, model, wholes)
    found = together(makers, train_all, *([job] for job in jobs))
    for name, first, second in zip(CASES, *found, strict=True):
        state, lags, rate, summaries = expected[name]
        assert first[1:] == second[1:], name
        assert first[1] == [pytest.approx(lag, abs=1e-9) for lag in lags], name
        assert first[2] == rate, name
        for shown, whole in zip(first[3], summaries, strict=True):
            assert shown.keys() == whole.keys(), name
            for tag in whole.keys() - set(OF_A_SHARE):
                assert shown[tag] == pytest.approx(whole[tag], rel=1e-4, abs=1e-5), (name, tag)
        for key, tensor in state.items():
            assert torch.equal(first[0][key], second[0][key]), (name, key)
            difference = (first[0][key] - tensor).abs().max().item()
            assert difference <= 1e-6 * max(1.0, tensor.abs().max().item()), (name, key, difference)


def train_all(peers: Peers, jobs: list[Any]) -> list[Facts]:
    return [trained_on(peers, *job) for job in jobs]


@EACH_WAY
def test_cx2_after_100_steps_two_learners_have_the_parameters_of_one(makers: Makers) -> None:
    wholes = [random_dataset(seed, 8, 0) for seed in range(25)]
    model: dict[str, Any] = {"normalize_returns": True}
    state, *_ = trained_on(None, {}, model, wholes)
    assert state["version"] == 100
    shares = zip(*(split(whole, (4, 4)) for whole in wholes), strict=True)
    for ((found, *_),) in together(makers, train_all, *([[({}, model, list(share))]] for share in shares)):
        for key, tensor in state.items():
            limit = 1e-6 if re.search("statistics|normalizer", key) else 1e-5
            assert (found[key] - tensor).abs().max().item() <= limit * max(1.0, tensor.abs().max().item()), key


@EACH_WAY
@pytest.mark.parametrize("normalize_rewards", [False, True])
def test_fault_b9_h4_what_one_cannot_learn_nobody_learns(makers: Makers, normalize_rewards: bool) -> None:
    """The share of one learner is no number: both skip its minibatches, and train on the next dataset."""
    good, bad = random_dataset(1, 4, 0), random_dataset(2, 4, 0)
    bad.rewards.fill_(float("nan"))
    jobs = [good, bad, normalize_rewards], [good, good, normalize_rewards]
    for before, after, skipped, steps in together(makers, train_and_skip, *jobs):
        assert any(name.startswith("reward_scaling.") for name in before) == normalize_rewards
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert (skipped, steps) == (4, [4, 0, 4])


def train_and_skip(peers: Peers, first: Batch, second: Batch, normalize_rewards: bool) -> Any:
    update = make_update({"normalize_advantages": False, "normalize_rewards": normalize_rewards}, {}, peers)
    steps = [len(list(update.steps(first)))]
    before = {name: tensor.clone() for name, tensor in update.state_dict().items()}
    steps.append(len(list(update.steps(second))))
    after = {name: tensor.clone() for name, tensor in update.state_dict().items()}
    steps.append(len(list(update.steps(first))))
    return before, after, update.num_skipped, steps


class Counting:
    """A process group that counts what is asked of it."""

    def __init__(self, group: Any) -> None:
        self.group, self.number = group, 0

    def __getattr__(self, name: str) -> Any:
        self.number += 1
        return getattr(self.group, name)


def test_cx2_an_optimizer_step_takes_one_exchange_between_ranks() -> None:
    """What else there is comes once in an epoch, or in a dataset."""
    share = random_dataset(1, 8, 0)
    for found in together(of_several_ranks, exchanges_of, [share], [share]):
        few, many = found
        assert many - few == 2 * (8 - 4)


def exchanges_of(peers: Ranks, share: Batch) -> list[int]:
    numbers = []
    peers._group = counting = Counting(peers._group)
    for num_minibatches in (4, 8):
        update = make_update({"num_batches_per_epoch": num_minibatches, "num_epochs": 2}, {}, peers)
        before = counting.number
        assert len(list(update.steps(share))) == 2 * num_minibatches
        numbers.append(counting.number - before)
    return numbers


def test_fault_b9_statistics_take_in_no_dataset_of_which_a_step_was_skipped() -> None:
    """One trajectory of four is no number: of the minibatches of two, those without it are trained on."""
    good, bad = random_dataset(1, 4, 0), random_dataset(2, 4, 0)
    bad.rewards[:, 0] = float("nan")
    update = make_update({"normalize_advantages": False}, {"normalize_returns": True})
    list(update.steps(good))
    before = {name: tensor.clone() for name, tensor in update.state_dict().items()}
    assert len(list(update.steps(bad))) == update.num_skipped == 2
    after = update.state_dict()
    for name, tensor in after.items():
        assert torch.isfinite(tensor).all(), name
        assert not re.search("statistics|normalizer", name) or torch.equal(tensor, before[name]), name
    assert not torch.equal(after["optimizer.exp_avg"], before["optimizer.exp_avg"])
    list(update.steps(good))
    assert update.state_dict()["statistics.returns.count"] > before["statistics.returns.count"]
