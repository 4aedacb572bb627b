"""The update: lag, masks, minibatches, statistics, parity with an independent PPO step."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sf.config import LearnerConfig, ModelConfig
from sf.errors import CheckpointError
from sf.learner.dataset import with_gae
from sf.learner.minibatches import Selection
from sf.learner.optimizer import FlatAdam, clip_gradient
from sf.learner.returns import vtrace
from sf.learner.update import Batch, Update
from sf.policy import ActorCritic
from sf.spaces import ActionColumn, ActionSpec, EnvInfo, LeafSpec

ORACLES: dict[str, Any] = json.loads((Path(__file__).parent / "oracles.json").read_text())
DISCRETE = ActionSpec.discrete(3)
BOX = ActionSpec((ActionColumn(low=-1.0, high=1.0),) * 2)
OBS_SIZE = 4


@pytest.fixture(autouse=True)
def _one_thread_and_seed() -> None:
    # Idle threads of torch spin, which on a busy machine makes these small updates ten times slower.
    torch.set_num_threads(1)
    torch.manual_seed(0)


def make_policy(action: ActionSpec = DISCRETE, **config: Any) -> ActorCritic:
    info = EnvInfo("test", 1, {"obs": LeafSpec((OBS_SIZE,), "float32")}, action)
    return ActorCritic(info, ModelConfig(encoder_mlp_layers=(16, 16), **config))


def learner_config(**changes: Any) -> LearnerConfig:
    return LearnerConfig(**{"num_batches_per_epoch": 1, "num_epochs": 1, "exploration_loss_coeff": 0.01, **changes})


def act(policy: ActorCritic, num_steps: int = 8, num_trajectories: int = 6, version: int = 0) -> Batch:
    """A batch with random observations, rewards and ends, whose actions this policy has drawn."""
    observations = {"obs": 2 * torch.randn(num_steps + 1, num_trajectories, OBS_SIZE) + 1}
    shape = (num_steps, num_trajectories)
    step = policy.act({"obs": observations["obs"][:-1].flatten(0, 1)})
    kind = torch.randint(0, 8, shape)
    truncated = kind == 1
    return Batch(
        observations=observations,
        initial_memory=policy.get_initial_state(num_trajectories),
        streams=torch.arange(num_trajectories),
        actions=step.action.clone().view(*shape, *step.action.shape[1:]),
        behavior_log_probs=step.info.log_probability.clone().view(shape),
        values=step.info.value_prediction.clone().view(shape),
        rewards=torch.randn(shape),
        terminated=kind == 0,
        truncated=truncated,
        bootstrap_values=policy.values({"obs": observations["obs"][-1]}),
        final_values=torch.where(truncated, torch.randn(shape), torch.nan),
        policy_version=torch.full(shape, version),
        valid=torch.ones(shape, dtype=torch.bool),
    )


def train(update: Update, batch: Batch) -> list[tuple[float, float, float]]:
    return [(step.lag_min, step.lag_avg, step.lag_max) for step in update.steps(batch)]


# ------------------------------------------------------------------------------------------------------ version, lag


def test_a2_version_rises_by_one_with_each_step() -> None:
    update = Update(make_policy(), learner_config(num_batches_per_epoch=3, num_epochs=2))
    versions = [step.version for step in update.steps(act(update.policy))]
    assert versions == [1, 2, 3, 4, 5, 6]
    assert update.version == 6


@pytest.mark.parametrize("case", ORACLES["A4"]["cases"])
def test_a4_lag_of_a_minibatch(case: Any) -> None:
    inputs, expected = case["inputs"], case["expected"]
    update = Update(make_policy(), learner_config())
    update.version = inputs["version_before_step"]
    batch = act(update.policy, num_steps=2, num_trajectories=2)
    batch.policy_version = torch.tensor(inputs["labels"]).view(2, 2)
    assert train(update, batch) == [(expected["min"], expected["avg"], expected["max"])]


def test_a4_lag_counts_only_the_own_policy() -> None:
    update = Update(make_policy(), learner_config())
    update.version = 7
    batch = act(update.policy, num_steps=2, num_trajectories=2)
    batch.policy_version = torch.tensor([[7, 5], [100, 3]])
    batch.valid[1, 0] = False
    assert train(update, batch) == [(0.0, 2.0, 4.0)]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("case", ORACLES["A5"]["cases"])
def test_a5_staircase(case: Any, shuffle: bool) -> None:
    inputs = case["inputs"]
    config = learner_config(
        num_epochs=inputs["num_epochs"],
        num_batches_per_epoch=inputs["num_batches_per_epoch"],
        shuffle_minibatches=shuffle,
    )
    update = Update(make_policy(), config)
    lags = []
    for _ in range(inputs["num_iterations"]):
        lags += train(update, act(update.policy, version=update.version))
    assert lags == [(lag, lag, lag) for lag in case["expected"]["lag_sequence"]]


# ---------------------------------------------------------------------------------------------------------- zero lag


@pytest.mark.parametrize("action", [DISCRETE, BOX])
@pytest.mark.parametrize("num_iterations", [1, 3])
def test_a10d_ratio_is_one_at_zero_lag_also_after_statistics_changed(action: ActionSpec, num_iterations: int) -> None:
    update = Update(make_policy(action), learner_config(learning_rate=0.01))
    update.want_summary = True
    for _ in range(num_iterations):
        train(update, act(update.policy, version=update.version))
    summary = update.summary()
    assert summary["ratio_min"] == summary["ratio_max"] == pytest.approx(1.0, abs=1e-5)
    assert summary["ratio_mean"] == pytest.approx(0.0, abs=1e-5)
    assert summary["fraction_clipped"] == summary["clipfrac"] == 0.0
    assert summary["kl_divergence"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("action", [DISCRETE, BOX])
def test_a10e_gradient_is_that_of_plain_a2c(action: ActionSpec) -> None:
    config = learner_config(max_grad_norm=0.0, learning_rate=1e-8)
    update = Update(make_policy(action), config)
    policy = update.policy
    batch = act(policy)
    data = with_gae(batch, policy, config)
    evaluation = policy.evaluate(data.observations, data.actions)
    advantages = (data.advantages - data.advantages.mean()) / (data.advantages.std() + 1e-8)
    loss = (
        -(advantages * evaluation.log_probs).mean()
        + config.value_loss_coeff * 0.5 * (evaluation.normalized_values - data.value_targets).square().mean()
        - config.exploration_loss_coeff * evaluation.entropy.mean()
    )
    policy.flat_gradient.zero_()
    torch.autograd.backward(loss)
    expected = policy.flat_gradient.clone()
    train(update, batch)
    # The gradient of the optimizer step is still there, because max_grad_norm=0 leaves it alone.
    scale = expected.abs().max()
    torch.testing.assert_close(policy.flat_gradient / scale, expected / scale, rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------------------------------------------------------ parity


class PlainPPO:
    """An independent PPO for a shared tanh trunk, float64, written after the single-file scripts; Adam by hand."""

    def __init__(self, policy: ActorCritic, config: LearnerConfig) -> None:
        self.config = config
        self.parameters = [p.detach().double().clone().requires_grad_() for p in policy.parameters()]
        self.first = [torch.zeros_like(p) for p in self.parameters]
        self.second = [torch.zeros_like(p) for p in self.parameters]
        self.count = 0

    def forward(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        w1, b1, w2, b2, wp, bp, wv, bv = self.parameters
        hidden = torch.tanh(torch.tanh(observations.clamp(-10, 10) @ w1.t() + b1) @ w2.t() + b2)
        distribution: Any = torch.distributions.Categorical(logits=hidden @ wp.t() + bp)
        return distribution.log_prob(actions), distribution.entropy(), (hidden @ wv.t() + bv).squeeze(-1)

    def advantages(self, batch: Batch) -> Tensor:
        c = self.config
        out = torch.zeros_like(batch.rewards, dtype=torch.float64)
        num_steps, num_trajectories = out.shape
        for b in range(num_trajectories):
            last = 0.0
            for t in reversed(range(num_steps)):
                following = batch.bootstrap_values[b] if t == num_steps - 1 else batch.values[t + 1, b]
                if batch.truncated[t, b]:
                    following = batch.final_values[t, b]
                alive = 0.0 if batch.terminated[t, b] else 1.0
                open_trace = 0.0 if batch.terminated[t, b] or batch.truncated[t, b] else 1.0
                bootstrap = c.gamma * following.item() if alive else 0.0
                delta = batch.rewards[t, b].item() + bootstrap - batch.values[t, b].item()
                last = delta + c.gamma * c.gae_lambda * open_trace * last
                out[t, b] = last
        return out

    def train(self, batch: Batch) -> None:
        advantages = self.advantages(batch)
        returns = advantages + batch.values.double()
        num_trajectories = batch.values.shape[1]
        for _ in range(self.config.num_epochs):
            for columns in np.array_split(np.arange(num_trajectories), self.config.num_batches_per_epoch):
                self.step(batch, advantages, returns, torch.from_numpy(columns))

    def step(self, batch: Batch, advantages: Tensor, returns: Tensor, columns: Tensor) -> None:
        c = self.config

        def part(x: Tensor) -> Tensor:
            x = x[:, columns].flatten(0, 1)
            return x.double() if x.is_floating_point() else x

        log_probs, entropy, values = self.forward(part(batch.observations["obs"][:-1]), part(batch.actions))
        ratio = (log_probs - part(batch.behavior_log_probs)).exp()
        a = part(advantages)
        a = (a - a.mean()) / (a.std() + 1e-8)
        policy_loss = torch.max(-a * ratio, -a * torch.clamp(ratio, 1 - c.ppo_clip_ratio, 1 + c.ppo_clip_ratio)).mean()
        old, target = part(batch.values), part(returns)
        clipped = old + torch.clamp(values - old, -c.ppo_clip_value, c.ppo_clip_value)
        value = 0.5 * torch.max((values - target) ** 2, (clipped - target) ** 2).mean()
        loss = policy_loss - c.exploration_loss_coeff * entropy.mean() + c.value_loss_coeff * value
        gradients = torch.autograd.grad(loss, self.parameters)
        norm = torch.sqrt(torch.stack([(g**2).sum() for g in gradients]).sum())
        scale = min(1.0, c.max_grad_norm / (norm.item() + 1e-6))
        self.count += 1
        for p, g, m, v in zip(self.parameters, gradients, self.first, self.second, strict=True):
            g = g * scale
            m.mul_(0.9).add_(0.1 * g)
            v.mul_(0.999).add_(0.001 * g**2)
            corrected, second = m / (1 - 0.9**self.count), v / (1 - 0.999**self.count)
            p.data -= c.learning_rate * corrected / (second.sqrt() + c.adam_eps)


def test_parity_with_an_independent_ppo() -> None:
    config = learner_config(
        num_batches_per_epoch=3, num_epochs=4, shuffle_minibatches=False, learning_rate=3e-3, max_grad_norm=0.5
    )
    policy = make_policy(normalize_input=False, normalize_returns=False)
    update, plain = Update(policy, config), PlainPPO(policy, config)
    for _ in range(2):
        batch = act(policy, version=update.version)
        batch.observations["obs"].clamp_(-10, 10)
        train(update, batch)
        plain.train(batch)
        expected = torch.cat([p.detach().reshape(-1) for p in plain.parameters])
        torch.testing.assert_close(policy.flat_parameters.detach().double(), expected, rtol=1e-3, atol=2e-5)


def test_c3_adam_defaults() -> None:
    defaults = Update(make_policy(), LearnerConfig()).optimizer.defaults
    assert defaults["eps"] == 1e-5
    assert defaults["betas"] == (0.9, 0.999)


def test_c3_adam_is_that_of_torch() -> None:
    policy = make_policy()
    config = learner_config(learning_rate=1e-3)
    optimizer = FlatAdam(policy, config)
    reference = torch.nn.Parameter(policy.flat_parameters.detach().clone())
    torch_adam = torch.optim.Adam([reference], lr=1e-3, eps=config.adam_eps)
    for size in (1.0, 1e-3, 10.0, 0.0, 1e-6):
        gradient = size * torch.randn_like(reference)
        policy.flat_gradient.copy_(gradient)
        reference.grad = gradient.clone()
        optimizer.step(1e-3)
        torch_adam.step()
        torch.testing.assert_close(policy.flat_parameters, reference, rtol=1e-6, atol=1e-7)
    state = torch_adam.state[reference]
    torch.testing.assert_close(optimizer.exp_avg, state["exp_avg"])
    torch.testing.assert_close(optimizer.exp_avg_sq, state["exp_avg_sq"])


def test_c11_gradient_is_scaled_to_the_largest_norm() -> None:
    gradient = torch.randn(100)
    clipped = gradient.clone()
    norm = clip_gradient(clipped, 0.5)
    assert norm.item() == pytest.approx(gradient.norm().item())
    assert clipped.norm().item() <= 0.5
    torch.testing.assert_close(clipped / clipped.norm(), gradient / gradient.norm())
    short = gradient / gradient.norm() * 0.4
    assert torch.equal(clip_and_return(short, 0.5), short)
    assert torch.equal(clip_and_return(gradient, 0.0), gradient)


def clip_and_return(gradient: Tensor, max_norm: float) -> Tensor:
    clipped = gradient.clone()
    clip_gradient(clipped, max_norm)
    return clipped


# ------------------------------------------------------------------------------------------------------- minibatches


def select(own: Any = None, ages: Any = None, shape: tuple[int, int] = (4, 3), max_age: int = 10) -> Selection:
    own = torch.ones(shape, dtype=torch.bool) if own is None else own
    return Selection(own, torch.zeros(shape, dtype=torch.int64) if ages is None else ages, max_age)


@pytest.mark.parametrize("whole_trajectories", [False, True])
def test_rows_of_an_epoch_go_to_the_device_in_one_transfer(
    whole_trajectories: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    transfers, to = [], Tensor.to

    def counted(tensor: Tensor, *args: Any) -> Tensor:
        transfers.append(len(tensor))
        return to(tensor, *args)

    monkeypatch.setattr(Tensor, "to", counted)
    own, ages = torch.ones(6, 8, dtype=torch.bool), torch.arange(6).repeat(8, 1).t()
    parts = Selection(own, ages, 4, device=torch.device("meta")).deal(4, True, whole_trajectories)
    here = Selection(own, ages, 4).deal(4, True, whole_trajectories)
    assert len(transfers) == 1
    for part, same in zip(parts, here, strict=True):
        assert part.counted.is_cpu
        for name in ("trained", "columns", "kept"):
            there, wanted = getattr(part, name), getattr(same, name)
            assert (there is None) == (wanted is None)
            assert there is None or there.is_meta


def test_c6_each_epoch_is_a_fresh_permutation() -> None:
    selection = select(shape=(32, 8))
    epochs = [[part.trained for part in selection.deal(4, shuffle=True)] for _ in range(2)]
    orders = [torch.cat([rows for rows in epoch if rows is not None]).tolist() for epoch in epochs]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(256))
    assert [len(rows) for rows in epochs[0] if rows is not None] == [64] * 4


def test_without_shuffling_parts_are_whole_trajectories() -> None:
    parts = select(shape=(4, 6)).deal(3, shuffle=False)
    columns = [sorted(set((part.counted % 6).tolist())) for part in parts]
    assert columns == [[0, 1], [2, 3], [4, 5]]
    assert [len(part.counted) for part in parts] == [8, 8, 8]


def test_rows_that_cannot_be_divided_make_nearly_equal_parts() -> None:
    own = torch.ones(4, 3, dtype=torch.bool)
    own[0, 0] = own[1, 2] = False
    parts = select(own).deal(4, shuffle=True)
    assert [len(part.counted) for part in parts] == [3, 3, 2, 2]
    assert sorted(torch.cat([part.counted for part in parts]).tolist()) == [1, 2, 3, 4, 6, 7, 8, 9, 10, 11]


def test_fewer_rows_than_parts_make_fewer_steps() -> None:
    update = Update(make_policy(), learner_config(num_batches_per_epoch=5))
    assert len(train(update, act(update.policy, num_steps=3, num_trajectories=1))) == 3


def test_one_minibatch_is_the_dataset_itself() -> None:
    (part,) = select().deal(1, shuffle=True)
    assert part.trained is None
    assert sorted(part.counted.tolist()) == list(range(12))


# ------------------------------------------------------------------------------------------------------------- masks


@pytest.mark.parametrize("case", ORACLES["A24"]["cases"])
def test_a24_valid_is_younger_than_max_policy_lag(case: Any) -> None:
    inputs, expected = case["inputs"], case["expected"]
    ages = inputs["version_at_dataset_start"] - torch.tensor(inputs["labels"]).view(2, 2)
    assert ages.flatten().tolist() == expected["lags"]
    selection = select(shape=(2, 2), ages=ages, max_age=inputs["max_policy_lag"])
    assert selection.trained_rows is not None
    assert sorted(selection.trained_rows.tolist()) == [i for i, valid in enumerate(expected["valid"]) if valid]


def after_one_step(policy: ActorCritic, batch: Batch, config: LearnerConfig, version: int = 0) -> tuple[Update, Tensor]:
    update = Update(copy.deepcopy(policy), config)
    update.version = version
    update.want_summary = True
    assert len(train(update, batch)) == 1
    return update, update.policy.flat.clone()


@pytest.mark.parametrize("reason", ["too old", "other policy"])
def test_a24_training_equals_training_on_the_valid_subset(reason: str) -> None:
    config = learner_config(max_policy_lag=5, normalize_advantages=True, learning_rate=1e-2)
    policy = make_policy()
    whole = act(policy, num_steps=6, num_trajectories=4)
    subset = whole.trajectories(torch.arange(3))
    whole.policy_version[:, :3] = subset.policy_version[:] = 10
    if reason == "other policy":
        whole.valid[:, 3], whole.policy_version[:, 3] = False, 10
        # What another policy recorded may be anything.
        whole.behavior_log_probs[:, 3] = whole.values[:, 3] = whole.rewards[:, 3] = torch.nan
        whole.observations["obs"][:, 3] = torch.nan
        factor = 1.0
    else:
        whole.policy_version[:, 3] = 5
        factor = 0.75
    masked, masked_flat = after_one_step(policy, whole, config, version=10)
    _, expected_flat = after_one_step(
        policy, subset, dataclasses.replace(config, learning_rate=factor * config.learning_rate), version=10
    )
    torch.testing.assert_close(masked_flat, expected_flat)
    summary = masked.summary()
    assert summary["lr"] == config.learning_rate
    assert summary["actual_lr"] == pytest.approx(factor * config.learning_rate)
    assert summary["valids_fraction"] == 0.75
    assert summary["same_policy_fraction"] == (0.75 if reason == "other policy" else 1.0)
    assert summary["version_diff_max"] == (0 if reason == "other policy" else 5)


def test_a24_lag_is_that_at_the_start_of_the_dataset() -> None:
    update = Update(make_policy(), learner_config(max_policy_lag=2, num_batches_per_epoch=4, num_epochs=2))
    batch = act(update.policy, num_steps=4, num_trajectories=8)
    assert [lag for lag, _, _ in train(update, batch)] == list(range(8))


def test_a24_dataset_without_a_valid_transition_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    update = Update(make_policy(), learner_config(max_policy_lag=3))
    update.version = 3
    before = update.policy.flat.clone()
    with caplog.at_level(logging.ERROR):
        assert train(update, act(update.policy)) == []
    assert "all 48 transitions are max_policy_lag=3 or more optimizer steps old" in caplog.text
    assert update.version == 3
    assert torch.equal(update.policy.flat, before)
    assert update.summary() == {}


def test_dataset_of_other_policies_only_is_skipped() -> None:
    update = Update(make_policy(), learner_config())
    batch = act(update.policy)
    batch.valid.zero_()
    assert train(update, batch) == []
    empty = batch.trajectories(torch.arange(0))
    assert train(update, empty) == []


# -------------------------------------------------------------------------------------------------------- statistics


def test_a10_statistics_change_with_the_last_step_of_a_dataset() -> None:
    update = Update(make_policy(), learner_config(num_batches_per_epoch=2, num_epochs=2))
    policy = update.policy
    assert policy.return_normalizer is not None
    batch = act(policy)
    returns = with_gae(batch, policy, update.config).returns
    normalizers = [policy.observation_normalizers["obs"].std, policy.return_normalizer.std]
    changed = [any(bool((std != 1).any()) for std in normalizers) for _ in update.steps(batch)]
    assert changed == [False, False, False, True]
    observations = batch.observations["obs"][:-1].flatten(0, 1)
    torch.testing.assert_close(normalizers[0], observations.std(0, correction=0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(normalizers[1], returns.std(correction=0), rtol=1e-4, atol=1e-5)


# ----------------------------------------------------------------------------------------------------------- variants


def test_value_bootstrap_off_treats_truncation_like_termination() -> None:
    policy = make_policy()
    batch = act(policy)
    ended = dataclasses.replace(
        batch, terminated=batch.terminated | batch.truncated, truncated=torch.zeros_like(batch.truncated)
    )
    off = with_gae(batch, policy, learner_config(value_bootstrap=False)).advantages
    torch.testing.assert_close(off, with_gae(ended, policy, learner_config()).advantages)
    assert not torch.allclose(off, with_gae(batch, policy, learner_config()).advantages)


def test_on_policy_vtrace_trains_like_gae_with_lambda_one() -> None:
    policy = make_policy(normalize_returns=False)
    batch = act(policy)
    _, with_trace = after_one_step(policy, batch, learner_config(with_vtrace=True))
    _, without = after_one_step(policy, batch, learner_config(gae_lambda=1.0))
    torch.testing.assert_close(with_trace, without, rtol=1e-4, atol=1e-6)


def test_vtrace_follows_the_present_weights_in_each_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def spy(behavior: Tensor, target: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        seen.append((target - behavior).abs().max().item())
        return vtrace(behavior, target, *rest)

    monkeypatch.setattr("sf.learner.dataset.vtrace", spy)
    update = Update(make_policy(), learner_config(with_vtrace=True, num_epochs=2, num_batches_per_epoch=3))
    train(update, act(update.policy))
    assert seen[0] == pytest.approx(0.0, abs=1e-6)
    assert seen[1] > 1e-5


@pytest.mark.parametrize("schedule", ["kl_adaptive_minibatch", "kl_adaptive_epoch"])
def test_kl_adaptive_rate_rises_while_the_policy_hardly_moves(schedule: str) -> None:
    config = learner_config(lr_schedule=schedule, num_batches_per_epoch=2, num_epochs=2, learning_rate=1e-6)
    update = Update(make_policy(), config)
    train(update, act(update.policy))
    changes = 4 if schedule == "kl_adaptive_minibatch" else 2
    assert update.lr == pytest.approx(1e-6 * 1.5**changes)


def test_linear_rate_reaches_the_optimizer() -> None:
    update = Update(make_policy(), learner_config(lr_schedule="linear", learning_rate=1e-3))
    update.set_progress(0.25)
    update.want_summary = True
    train(update, act(update.policy))
    assert update.lr == update.summary()["actual_lr"] == pytest.approx(0.75e-3)


@pytest.mark.parametrize("action", [DISCRETE, BOX])
def test_advantage_of_the_better_action_makes_it_more_probable(action: ActionSpec) -> None:
    policy = make_policy(action)
    update = Update(policy, learner_config(num_epochs=5, num_batches_per_epoch=4, learning_rate=3e-3))
    good = 2 if action is DISCRETE else 0.5

    def score(actions: Tensor) -> Tensor:
        return (actions == good).float() if action is DISCRETE else -(actions - good).square().sum(-1)

    observations = {"obs": torch.randn(256, OBS_SIZE)}
    before = score(policy.act(observations).action).mean()
    for _ in range(15):
        batch = act(policy, num_steps=16, num_trajectories=16, version=update.version)
        batch.rewards = score(batch.actions)
        batch.terminated.fill_(True)
        train(update, batch)
    assert score(policy.act(observations).action).mean() > before + 0.3


# ----------------------------------------------------------------------------------------------------------- summary

TAGS_OF_A21_AND_A22 = [
    "version_diff_min",
    "version_diff_avg",
    "version_diff_max",
    "lr",
    "actual_lr",
    "grad_norm",
    "adam_max_second_moment",
    "num_sgd_steps",
    "loss",
    "policy_loss",
    "value_loss",
    "exploration_loss",
    "kl_loss",
    "entropy",
    "fraction_clipped",
    "kl_divergence",
    "kl_divergence_max",
    "ratio_min",
    "ratio_mean",
    "ratio_max",
    "max_abs_logprob",
    "value",
    "value_delta",
    "value_delta_max",
    "adv_min",
    "adv_max",
    "adv_std",
    "returns_running_mean",
    "returns_running_std",
    "valids_fraction",
    "same_policy_fraction",
    "obs_running_mean",
    "obs_running_std",
]
TAGS_OF_C12 = ["clipfrac", "old_approx_kl", "half_mean_squared_log_ratio", "approx_kl", "explained_variance"]
TAGS_OF_CR1 = ["first_ratio_min", "first_ratio_max"]


def test_a21_a22_tags() -> None:
    update = Update(make_policy(), learner_config(num_batches_per_epoch=2, num_epochs=2))
    train(update, act(update.policy))
    assert update.summary() == {}, "nothing is computed unless asked"
    update.want_summary = True
    train(update, act(update.policy, version=update.version))
    summary = update.summary()
    assert set(summary) == {*TAGS_OF_A21_AND_A22, *TAGS_OF_C12, *TAGS_OF_CR1, "skipped_steps"}
    assert all(np.isfinite(value) for value in summary.values())
    assert summary["num_sgd_steps"] == 8
    assert summary["version_diff_avg"] == 3


def test_a22_running_statistics_are_absent_when_switched_off() -> None:
    update = Update(make_policy(normalize_input=False, normalize_returns=False), learner_config())
    update.want_summary = True
    train(update, act(update.policy))
    assert not [tag for tag in update.summary() if "running" in tag]


# ------------------------------------------------------------------------------------------------------------- state


def test_resumed_update_goes_on_as_the_first_would() -> None:
    config = learner_config(num_batches_per_epoch=2, num_epochs=2, lr_schedule="kl_adaptive_minibatch")
    first = Update(make_policy(), config)
    train(first, act(first.policy))
    state = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    batch = act(first.policy, version=first.version)
    second = Update(make_policy(), config)
    second.load_state_dict(state)
    assert (second.version, second.lr) == (first.version, first.lr) == (4, state["learning_rate"].item())
    for update in (first, second):
        torch.manual_seed(1)
        train(update, batch)
    assert torch.equal(first.policy.flat, second.policy.flat)
    assert second.version == 8
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name


def test_d7_state_of_another_network_is_refused_and_changes_nothing() -> None:
    saved = Update(make_policy(BOX, normalize_returns=False), learner_config())
    saved.version = 9
    update = Update(make_policy(DISCRETE), learner_config())
    before = update.policy.flat.clone()
    with pytest.raises(CheckpointError) as caught:
        update.load_state_dict(saved.state_dict())
    for line in (
        r"policy.policy_head.weight: expected float32[3, 16], found float32[2, 16]",
        r"policy.distribution.log_std: not expected, found float32[2]",
        r"statistics.returns.mean: missing, expected float64[]",
        r"optimizer.exp_avg: expected float32",
    ):
        assert line in str(caught.value)
    assert torch.equal(update.policy.flat, before)
    assert update.version == 0
