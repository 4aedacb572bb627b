"""Every scalar below train/, against numbers worked out here with numpy and autograd from the recorded transitions.

One dataset with transitions of another policy and others that are too old, trained twice as one minibatch; the scalars
are those of the second optimizer step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from sf.learner.batch import Batch
from sf.learner.update import Update
from sf.policy import ActorCritic
from tests.helpers.slow_ppo import by_lag
from tests.helpers.updates import act, learner_config, make_policy, one_thread_and_seed

GAMMA, GAE_LAMBDA = 0.9, 0.8
CLIP, CLIP_VALUE, MAX_GRAD_NORM = 0.001, 0.002, 0.1
"""So small that one step of the optimizer is enough to reach them."""
VALUE_COEFF, ENTROPY_COEFF, KL_COEFF, LR = 0.7, 0.03, 0.2, 3e-3
BETA2, MAX_LAG, VERSION = 0.999, 10, 20
SCALARS = {
    "lr", "actual_lr", "skipped_steps", "grad_norm", "adam_max_second_moment",
    "loss", "policy_loss", "value_loss", "exploration_loss", "kl_loss", "entropy",
    "fraction_clipped", "clipfrac", "first_ratio_min", "first_ratio_max", "ratio_min", "ratio_mean", "ratio_max",
    "kl_divergence", "kl_divergence_max", "old_approx_kl", "half_mean_squared_log_ratio", "approx_kl",
    "max_abs_logprob", "value", "value_delta", "value_delta_max", "explained_variance", "adv_min", "adv_max", "adv_std",
    "returns_running_mean", "returns_running_std", "obs_running_mean", "obs_running_std",
    "version_diff_min", "version_diff_avg", "version_diff_max", "valids_fraction", "same_policy_fraction",
}  # fmt: skip


def advantages_of(batch: Batch) -> np.ndarray[Any, Any]:
    """Generalized advantage estimation (Schulman et al. 2015, equation 16), one trajectory and one step at a time."""
    steps, columns = batch.rewards.shape
    advantages = np.zeros((steps, columns))
    for b in range(columns):
        after = 0.0
        for t in reversed(range(steps)):
            next_value = float(batch.bootstrap_values[b] if t == steps - 1 else batch.values[t + 1, b])
            if batch.truncated[t, b]:
                next_value = float(batch.final_values[t, b])
            if batch.terminated[t, b]:
                next_value = 0.0
            if batch.terminated[t, b] or batch.truncated[t, b]:
                after = 0.0
            delta = float(batch.rewards[t, b]) + GAMMA * next_value - float(batch.values[t, b])
            advantages[t, b] = after = delta + GAMMA * GAE_LAMBDA * after
    return advantages


@dataclass
class Step:
    """What one optimizer step should show."""

    scalars: dict[str, float]
    ratios: np.ndarray[Any, Any]
    gradient: np.ndarray[Any, Any]
    """Clipped."""


def step_of(policy: ActorCritic, batch: Batch, trains: np.ndarray[Any, Any]) -> Step:
    """The step from the present weights on the chosen transitions [T, B]."""
    chosen = torch.from_numpy(trains)
    observations = {"obs": batch.observations["obs"][:-1][chosen]}
    evaluation = policy.evaluate(observations, batch.actions[chosen])
    normalizer = policy.return_normalizer
    assert normalizer is not None
    mean, std = float(normalizer.mean), float(normalizer.std)
    raw = advantages_of(batch)
    old = (batch.values.numpy()[trains] - mean) / std
    targets = (raw[trains] + batch.values.numpy()[trains] - mean) / std
    adv = (raw[trains] - raw[trains].mean()) / (raw[trains].std(ddof=1) + 1e-8)

    log_r = evaluation.log_probs - batch.behavior_log_probs[chosen]
    r, a = log_r.exp(), torch.tensor(adv, dtype=torch.float32)
    policy_loss = torch.max(-a * r, -a * r.clip(1 - CLIP, 1 + CLIP)).mean()
    v, v_old = evaluation.normalized_values, torch.tensor(old, dtype=torch.float32)
    goal = torch.tensor(targets, dtype=torch.float32)
    v_clipped = v_old + (v - v_old).clip(-CLIP_VALUE, CLIP_VALUE)
    value_loss = 0.5 * torch.max((v - goal) ** 2, (v_clipped - goal) ** 2).mean()
    entropy = evaluation.entropy.mean()
    k3 = r - 1 - log_r
    loss = policy_loss + VALUE_COEFF * value_loss - ENTROPY_COEFF * entropy + KL_COEFF * k3.mean()
    gradients = torch.autograd.grad(loss, list(policy.parameters()))
    gradient = np.concatenate([g.numpy().ravel() for g in gradients])
    norm = float(np.sqrt((gradient.astype(np.float64) ** 2).sum()))

    ratios, logs = r.detach().double().numpy(), log_r.detach().double().numpy()
    values_now = v.detach().double().numpy() * std + mean
    deltas = np.abs(values_now - batch.values.numpy()[trains])
    clipped = float((np.abs(ratios - 1) > CLIP).mean())
    scalars = {
        "grad_norm": norm,
        "loss": loss.item(),
        "policy_loss": policy_loss.item(),
        "value_loss": value_loss.item(),
        "exploration_loss": -ENTROPY_COEFF * entropy.item(),
        "kl_loss": KL_COEFF * (ratios - 1 - logs).mean(),
        "entropy": entropy.item(),
        "fraction_clipped": clipped,
        "ratio_min": ratios.min(),
        "ratio_mean": np.abs(1 - ratios).mean(),
        "ratio_max": ratios.max(),
        "kl_divergence": (ratios - 1 - logs).mean(),
        "kl_divergence_max": (ratios - 1 - logs).max(),
        "old_approx_kl": (-logs).mean(),
        "half_mean_squared_log_ratio": (logs**2).mean() / 2,
        "approx_kl": (ratios - 1 - logs).mean(),
        "max_abs_logprob": np.abs(evaluation.log_probs.detach().numpy()).max(),
        "value": values_now.mean(),
        "value_delta": deltas.mean(),
        "value_delta_max": deltas.max(),
        "explained_variance": 1 - np.var(targets - old) / np.var(targets),
        "adv_min": raw[trains].min(),
        "adv_max": raw[trains].max(),
        "adv_std": raw[trains].std(),
    }
    return Step(
        {name: float(value) for name, value in scalars.items()}, ratios, gradient * min(1.0, MAX_GRAD_NORM / norm)
    )


def policy_with_statistics() -> ActorCritic:
    """Whose running statistics are not those of the beginning."""
    policy = make_policy(normalize_returns=True)
    assert policy.return_normalizer is not None
    for normalizer, mean, variance in (
        (policy.return_normalizer, torch.tensor(2.0), torch.tensor(9.0)),
        (
            policy.observation_normalizers["obs"],
            torch.tensor([1.0, 0.5, 0.0, -0.5]),
            torch.tensor([4.0, 1.0, 2.0, 3.0]),
        ),
    ):
        normalizer.mean.copy_(mean)
        normalizer.std.copy_(variance.sqrt())
    return policy


def batch_of_several_ages(policy: ActorCritic) -> Batch:
    """With steps of another policy, and steps that are too old to train."""
    batch = act(policy, version=VERSION)
    versions, valid = batch.policy_version.clone(), batch.valid.clone()
    versions[0], versions[1], versions[2] = VERSION - MAX_LAG, VERSION - MAX_LAG + 1, VERSION - 3
    valid[3, 1:] = False
    return batch.with_columns(policy_version=versions, valid=valid)


def test_a22_every_scalar_of_training() -> None:
    one_thread_and_seed()
    policy = policy_with_statistics()
    batch = batch_of_several_ages(policy)
    own, ages = batch.valid.numpy(), VERSION - batch.policy_version.numpy()
    trains = own & (ages < MAX_LAG)
    config = learner_config(
        num_epochs=2, gamma=GAMMA, gae_lambda=GAE_LAMBDA, ppo_clip_ratio=CLIP,
        ppo_clip_value=CLIP_VALUE, value_loss_coeff=VALUE_COEFF, exploration_loss_coeff=ENTROPY_COEFF,
        kl_loss_coeff=KL_COEFF, max_grad_norm=MAX_GRAD_NORM, learning_rate=LR, max_policy_lag=MAX_LAG,
        shuffle_minibatches=False, strict=False,
    )  # fmt: skip
    update = Update(policy, config)
    update.version, update.want_summary = VERSION, True

    first = step_of(policy, batch, trains)
    steps = update.steps(batch)
    next(steps)
    second = step_of(policy, batch, trains)
    report = next(steps)
    assert next(steps, None) is None
    found = update.summary()

    # What is shown of statistics is what the next dataset is normalized with.
    returns = (advantages_of(batch) + batch.values.numpy())[trains]
    seen = batch.observations["obs"][:-1].numpy()[trains]
    shown = {"returns_running_mean": returns.mean(), "returns_running_std": returns.std()}
    shown |= {"obs_running_mean": seen.mean(0).mean(), "obs_running_std": seen.std(0).mean()}
    lag = ages[own] + 1  # of the second step
    second_moment = BETA2 * (1 - BETA2) * first.gradient**2 + (1 - BETA2) * second.gradient**2
    trained_on = [
        (int(age) + index, ratio, bool(abs(ratio - 1) > CLIP))
        for index, step in enumerate((first, second))
        for age, ratio in zip(ages[trains], step.ratios, strict=True)
    ]
    of_lag = by_lag(trained_on)
    assert of_lag.keys() == {
        f"{k}_at_lag/{b}" for k in ("ratio", "ESS", "clipped") for b in ("0", "1", "2-3", "4-7", "8-15")
    }
    assert set(found) == SCALARS | of_lag.keys()
    expected = (
        second.scalars
        | of_lag
        | shown
        | {
            "clipfrac": (first.scalars["fraction_clipped"] + second.scalars["fraction_clipped"]) / 2,
            "first_ratio_min": first.scalars["ratio_min"],
            "first_ratio_max": first.scalars["ratio_max"],
            "lr": LR,
            "actual_lr": LR * trains.sum() / own.sum(),
            "skipped_steps": 0,
            "adam_max_second_moment": second_moment.max(),
            "version_diff_min": lag.min(),
            "version_diff_avg": lag.mean(),
            "version_diff_max": lag.max(),
            "valids_fraction": trains.sum() / trains.size,
            "same_policy_fraction": own.sum() / own.size,
        }
    )
    assert found == pytest.approx({name: float(value) for name, value in expected.items()}, rel=2e-4, abs=1e-6)
    assert report.version == VERSION + 2
    assert [report.lag_min, report.lag_avg, report.lag_max] == pytest.approx([lag.min(), lag.mean(), lag.max()])
    for name in ("fraction_clipped", "version_diff_min", "kl_divergence"):
        assert found[name] > 0, name
