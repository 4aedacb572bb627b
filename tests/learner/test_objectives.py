"""Corrections for stale data: each against a slow loop, and all of them PPO on data of the present policy."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from sf.config import check
from sf.errors import ConfigError
from sf.learner.algorithm import Losses
from sf.learner.batch import Batch
from sf.learner.dataset import Transitions, evaluate_batch
from sf.learner.losses import clip_range, interpolated_log_probs
from sf.learner.ppo import PPO
from sf.learner.update import Update
from sf.policy import ActorCritic, Evaluation, Sequences
from tests.helpers.lab import make_config
from tests.helpers.updates import act, learner_config, make_policy, one_thread_and_seed, train

OBJECTIVES: list[dict[str, Any]] = [
    {"objective": "decoupled"},
    {"objective": "decoupled", "proximal_policy": "interpolated"},
    {"objective": "truncated"},
    {"ppo_clip_ratio_high": 0.4},
    {"ppo_dual_clip": 3.0},
]
OTHER_CORRECTIONS: list[dict[str, Any]] = [
    {},
    {"ppo_clip_form": "reciprocal"},
    {"ppo_clip_ratio_high": 0.4, "ppo_dual_clip": 3.0},
    {"kl_loss_coeff": 0.5},
    {"kl_loss_coeff": 0.5, "objective": "truncated"},
    {"with_vtrace": True},
    {"recompute_advantages": True},
    {"ess_lr": True},
]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    one_thread_and_seed()


def move(policy: ActorCritic, size: float = 0.15) -> None:
    with torch.no_grad():
        policy.flat_parameters.add_(size * torch.randn_like(policy.flat_parameters))


class Stale:
    """A batch of versions 3 to 7, prepared at version 10, asked for at version 12."""

    def __init__(self, **flags: Any) -> None:
        off = {"kl_loss_coeff": 0.0, "exploration_loss_coeff": 0.0, "value_loss_coeff": 0.0}
        self.config = learner_config(**{**off, **flags})
        policy = make_policy()
        batch = act(policy)
        self.acted = torch.randint(3, 8, batch.rewards.shape)
        self.batch = batch.with_columns(policy_version=self.acted)
        move(policy)
        self.algorithm = PPO(self.config)
        self.algorithm.version = 10
        self.transitions = self.algorithm.prepare(self.batch, policy)
        self.proximal = policy.evaluate(self.transitions.observations, self.transitions.actions).log_probs.detach()
        move(policy)
        self.policy, self.algorithm.version = policy, 12
        self.evaluation = policy.evaluate(self.transitions.observations, self.transitions.actions)

    @property
    def rows(self) -> list[tuple[float, float, float, float, int]]:
        """Each transition: log-probability now, at the start, when acting; the advantage, and the version."""
        columns = (
            self.evaluation.log_probs.detach(), self.proximal, self.transitions.behavior_log_probs,
            self.transitions.advantages, self.acted.flatten(),
        )  # fmt: skip
        return list(zip(*(column.double().tolist() for column in columns), strict=True))

    def found(self) -> tuple[float, Tensor]:
        """The policy loss, and its gradient with respect to the log-probabilities of now."""
        loss = self.algorithm.loss(self.evaluation, self.transitions).terms["policy_loss"]
        (gradient,) = torch.autograd.grad(loss, self.evaluation.log_probs)
        return loss.item(), gradient

    def expect(self, gains: list[float], slopes: list[float]) -> None:
        loss, gradient = self.found()
        assert loss == pytest.approx(-sum(gains) / len(gains), rel=1e-4)
        wanted = -torch.tensor(slopes) / len(slopes)
        torch.testing.assert_close(gradient, wanted.float(), rtol=1e-3, atol=1e-6)


def slow_clipped(ratio: float, advantage: float, low: float, high: float) -> tuple[float, float]:
    """The gain, and its slope in log ratio."""
    clipped = min(max(ratio, low), high)
    if ratio * advantage <= clipped * advantage:
        return ratio * advantage, ratio * advantage
    return clipped * advantage, 0.0


def test_decoupled_objective_clips_around_the_policy_at_the_start() -> None:
    stale = Stale(objective="decoupled", importance_weight_max=1.5)
    gains, slopes, limited = [], [], 0
    for now, proximal, behavior, advantage, _ in stale.rows:
        weight = math.exp(proximal - behavior)
        limited += weight > 1.5
        gain, slope = slow_clipped(math.exp(now - proximal), advantage, 0.8, 1.2)
        gains.append(min(weight, 1.5) * gain)
        slopes.append(min(weight, 1.5) * slope)
    assert limited > 3
    stale.expect(gains, slopes)


def test_interpolated_policy_lies_between_by_version() -> None:
    stale = Stale(objective="decoupled", proximal_policy="interpolated", importance_weight_max=100.0)
    gains, slopes = [], []
    for now, _, behavior, advantage, acted in stale.rows:
        proximal = behavior + (10 - acted) / (12 - acted) * (now - behavior)
        weight = math.exp(proximal - behavior)
        gain, slope = slow_clipped(math.exp(now - proximal), advantage, 0.8, 1.2)
        gains.append(weight * gain)
        slopes.append(weight * slope)
    stale.expect(gains, slopes)


def test_interpolation_at_its_ends() -> None:
    behavior, present = torch.tensor([-1.0, -1.0, -1.0]), torch.tensor([-3.0, -3.0, -3.0])
    acted = torch.tensor([4, 8, 9])
    assert interpolated_log_probs(behavior, present, acted, 8, 8).tolist() == [-3.0, -1.0, -1.0]
    assert interpolated_log_probs(behavior, present, acted, 8, 12).tolist() == [-2.0, -1.0, -1.0]


def test_truncated_weights_go_on_to_train() -> None:
    stale = Stale(objective="truncated", importance_weight_max=1.2)
    weights = [min(math.exp(now - behavior), 1.2) for now, _, behavior, _, _ in stale.rows]
    assert weights.count(1.2) > 3
    gains = [weight * row[3] for weight, row in zip(weights, stale.rows, strict=True)]
    stale.expect(gains, gains)


def test_upper_clip_has_a_range_of_its_own() -> None:
    assert clip_range(learner_config(ppo_clip_ratio=0.2, ppo_clip_ratio_high=0.5)) == (0.8, 1.5)
    reciprocal = learner_config(ppo_clip_ratio=0.25, ppo_clip_ratio_high=0.5, ppo_clip_form="reciprocal")
    assert clip_range(reciprocal) == (0.8, 1.5)
    stale = Stale(ppo_clip_ratio_high=0.5)
    both = [slow_clipped(math.exp(now - behavior), a, 0.8, 1.5) for now, _, behavior, a, _ in stale.rows]
    stale.expect([gain for gain, _ in both], [slope for _, slope in both])


def test_dual_clip_limits_what_a_bad_action_costs() -> None:
    stale = Stale(ppo_dual_clip=1.25)
    gains, slopes, limited = [], [], 0
    for now, _, behavior, advantage, _ in stale.rows:
        gain, slope = slow_clipped(math.exp(now - behavior), advantage, 0.8, 1.2)
        if advantage < 0 and gain < 1.25 * advantage:
            limited += 1
            gain, slope = 1.25 * advantage, 0.0
        gains.append(gain)
        slopes.append(slope)
    assert limited > 1
    stale.expect(gains, slopes)


class ByAutograd(PPO):
    """PPO without its written-out gradients, which round in another order."""

    def loss(self, evaluation: Evaluation, minibatch: Transitions) -> Losses:
        return super().loss(evaluation, minibatch)


@pytest.mark.parametrize("flags", [*OBJECTIVES, {"ess_lr": True}, {"recompute_advantages": True}])
@pytest.mark.parametrize("model", [{}, {"use_rnn": True, "rnn_size": 8}])
def test_a_step_on_data_of_the_present_policy_is_that_of_ppo(flags: dict[str, Any], model: dict[str, Any]) -> None:
    """To the last digit where there is no further pass over the batch. Versions differ though the weights do not."""
    policy = make_policy(**model)
    batch = act(policy).with_columns(policy_version=torch.randint(3, 8, (8, 6)))
    with torch.no_grad():  # in the shape of the minibatch, because the acting side rounds in another one
        log_probs = policy.evaluate(*data_of(batch), *sequences(policy, batch)).log_probs.view(8, 6)
    batch, ends = batch.with_columns(log_probs=log_probs), []
    if model:  # this batch was acted without the recurrent state of the steps before
        batch = batch.with_columns(values=evaluate_batch(batch, policy)[1])
    for each in ({}, flags):
        config = learner_config(shuffle_minibatches=False, learning_rate=1e-2, **each)
        update = Update(policy.__deepcopy__({}), config, algorithm=ByAutograd(config))
        update.version, update.want_summary = 7, True
        (lags,) = train(update, batch)
        assert lags[2] - lags[0] > 2
        assert update.summary()["actual_lr"] == 1e-2
        ends.append(update.policy.flat_parameters.detach().clone())
    assert not torch.equal(ends[0], policy.flat_parameters)
    if flags in ({"objective": "decoupled"}, {"recompute_advantages": True}):
        torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=1e-6)
    else:
        assert torch.equal(ends[0], ends[1])


def sequences(policy: ActorCritic, batch: Batch) -> tuple[Any, ...]:
    return (Sequences(batch.initial_memory, batch.resets[:-1]),) if policy.state_size else ()


@pytest.mark.parametrize("flags", OBJECTIVES)
def test_every_objective_raises_the_probability_of_what_was_good(flags: dict[str, Any]) -> None:
    config = learner_config(num_epochs=4, num_batches_per_epoch=2, learning_rate=3e-3, **flags)
    policy = make_policy()
    batch = act(policy)
    update = Update(policy, config)
    transitions = PPO(config).prepare(batch, policy)
    good = transitions.advantages > transitions.advantages.mean()
    before = policy.evaluate(transitions.observations, transitions.actions).log_probs.detach()
    train(update, batch)
    change = policy.evaluate(transitions.observations, transitions.actions).log_probs.detach() - before
    assert change[good].mean() > 0 > change[~good].mean()


def test_the_policy_at_the_start_stays_the_same_for_all_epochs() -> None:
    config = learner_config(num_epochs=3, objective="decoupled", recompute_advantages=True)
    algorithm, policy = PPO(config), make_policy()
    update = Update(policy, config, algorithm=algorithm)
    batch, columns, prepare = act(policy), [], algorithm.prepare

    def kept(*arguments: Any) -> Any:
        transitions = prepare(*arguments)
        columns.append(transitions["proximal_log_probs"].clone())
        return transitions

    algorithm.prepare = kept  # type: ignore[method-assign,assignment]
    first = policy.evaluate(*data_of(batch)).log_probs.detach()
    train(update, batch)
    assert len(columns) == 3
    for column in columns:
        torch.testing.assert_close(column, first)
    assert not torch.allclose(policy.evaluate(*data_of(batch)).log_probs.detach(), first)


def data_of(batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
    return {"obs": batch.observations["obs"][:-1].flatten(0, 1)}, batch.actions.flatten(0, 1)


def test_advantages_are_computed_anew_with_present_values() -> None:
    config = learner_config(recompute_advantages=True, gamma=0.9, gae_lambda=0.8)
    policy = make_policy()
    batch = act(policy)
    move(policy)
    with torch.no_grad():
        values = policy.values({"obs": batch.observations["obs"].flatten(0, 1)}).view(9, 6).double().numpy()
    transitions = PPO(config).prepare(batch, policy)
    found = transitions.advantages.view(8, 6).double().numpy()
    for column in range(6):
        advantage = 0.0
        for t in reversed(range(8)):
            terminated, truncated = bool(batch.terminated[t, column]), bool(batch.truncated[t, column])
            following = batch.final_values[t, column].item() if truncated else values[t + 1, column]
            error = batch.rewards[t, column].item() + (0.0 if terminated else 0.9 * following) - values[t, column]
            advantage = error + (0.0 if terminated or truncated else 0.9 * 0.8 * advantage)
            assert found[t, column] == pytest.approx(advantage, abs=1e-4)
    assert transitions.old_values.tolist() == pytest.approx(
        policy.normalize(torch.tensor(values[:-1]).float().flatten()).tolist(), abs=1e-5
    )


def test_learning_rate_follows_the_effective_sample_size() -> None:
    """The first step of Adam is as long as its rate, so the change of the weights shows it."""
    policy = make_policy()
    batch = act(policy)
    move(policy, 0.4)
    ratios = (policy.evaluate(*data_of(batch)).log_probs.detach() - batch.behavior_log_probs.flatten()).exp().double()
    share = (ratios.sum() ** 2 / (len(ratios) * (ratios**2).sum())).item()
    assert share < 0.9
    ends = []
    for flags in ({"ess_lr": True, "learning_rate": 1e-3}, {"learning_rate": 1e-3 * share}):
        update = Update(policy.__deepcopy__({}), learner_config(**flags))
        update.want_summary = True
        train(update, batch)
        assert update.summary()["actual_lr"] == pytest.approx(1e-3 * share)
        ends.append(update.policy.flat_parameters.detach().clone())
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-6, atol=1e-7)


def test_an_importance_weight_that_weakens_fresh_data_is_refused() -> None:
    check(make_config(importance_weight_max=1.0))
    with pytest.raises(ConfigError, match=r"importance_weight_max=0\.9 must be at least 1"):
        check(make_config(importance_weight_max=0.9))


@pytest.mark.parametrize("log_prob", [-200.0, 200.0])
@pytest.mark.parametrize("is_good", [True, False])
@pytest.mark.parametrize("flags", [*OBJECTIVES, *OTHER_CORRECTIONS])
def test_an_extreme_ratio_leaves_the_policy_finite(flags: dict[str, Any], is_good: bool, log_prob: float) -> None:
    policy = make_policy()
    batch = act(policy)
    log_probs = batch.behavior_log_probs.clone()
    advantages = PPO(learner_config()).prepare(batch, policy).advantages
    log_probs.view(-1)[advantages.argmax() if is_good else advantages.argmin()] = log_prob
    update = Update(policy, learner_config(**flags))
    before = policy.flat_parameters.detach().clone()
    train(update, batch.with_columns(log_probs=log_probs))
    assert (update.version, update.num_skipped) == (1, 0)
    assert torch.isfinite(policy.flat).all()
    assert not torch.equal(policy.flat_parameters, before)


@pytest.mark.parametrize("flags", [*OBJECTIVES, *OTHER_CORRECTIONS])
def test_extreme_probabilities_change_no_other_derivative(flags: dict[str, Any]) -> None:
    """The acting and the proximal policy are extreme, with good, bad and indifferent actions."""
    stale = Stale(**flags)
    plain, log_probs = stale.transitions, torch.tensor([-200.0, -200.0, -200.0, 200.0, 200.0, 200.0])
    behavior, advantages = plain.behavior_log_probs.clone(), plain.advantages.clone()
    behavior[:6], advantages[:12] = log_probs, torch.tensor([1.0, -1.0, 0.0] * 4)
    extreme = replace(plain, behavior_log_probs=behavior, advantages=advantages)
    if "proximal_log_probs" in plain.extra:
        proximal = plain["proximal_log_probs"].clone()
        proximal[6:12] = log_probs
        extreme = extreme.with_columns(proximal_log_probs=proximal)
    gradients = []
    for transitions in (plain, extreme):
        loss = stale.algorithm.loss(stale.evaluation, transitions).total
        gradients.append(torch.autograd.grad(loss, stale.evaluation.log_probs, retain_graph=True)[0])
    assert torch.isfinite(gradients[1]).all()
    assert torch.equal(gradients[0][12:], gradients[1][12:])
    if stale.algorithm.has_gradients:
        by_hand = stale.algorithm.gradients(stale.evaluation, extreme).log_probs
        torch.testing.assert_close(by_hand, gradients[1], rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"ppo_dual_clip": 0.9}, r"ppo_dual_clip=0\.9 would limit the loss of unchanged actions\. Use more than 1"),
        ({"ppo_dual_clip": 1.0}, "Use more than 1"),
        ({"with_vtrace": True, "recompute_advantages": True}, "V-trace computes advantages anew before each epoch by"),
        ({"with_vtrace": True, "objective": "decoupled"}, "objective=decoupled with with_vtrace=True would correct"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(flags: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check(make_config(**flags))
