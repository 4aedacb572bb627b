"""Learners of a population: flags that change between two iterations, and policies that take over others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sf.algorithms.appo import APPO
from sf.learner.evolving import EvolvingLearner
from sf.learner.ppo import PPO
from sf.learner.update import Update
from sf.nets.device import from_host
from sf.shared.ledger import Ledger
from sf.shared.messages import Evolve
from sf.storage.population import write_population
from tests.helpers.lab import Lab, make_lab, step_until
from tests.helpers.updates import act, learner_config, make_policy, train

CHANGED: dict[str, Any] = {
    "learning_rate": 0.02, "exploration_loss_coeff": 0.3, "value_loss_coeff": 2.0, "gamma": 0.5, "gae_lambda": 0.3,
    "ppo_clip_ratio": 0.01, "ppo_clip_value": 0.02, "kl_loss_coeff": 0.7, "max_grad_norm": 0.01, "adam_eps": 1e-3,
    "adam_beta1": 0.3, "adam_beta2": 0.4, "target_kl": 1e-12,
}  # fmt: skip


def population(path: Path, **flags: Any) -> Lab:
    small = {"num_policies": 2, "with_pbt": True, "num_envs_per_worker": 16, "num_epochs": 2}
    return make_lab(path, "CartPole-v1", **small | flags)


def built(lab: Lab) -> tuple[list[Any], EvolvingLearner, EvolvingLearner]:
    roles = lab.build_all()
    first, second, *_ = roles
    assert isinstance(first, EvolvingLearner)
    assert isinstance(second, EvolvingLearner)
    return roles, first, second


def trained(roles: list[Any], *learners: EvolvingLearner, iterations: int) -> None:
    wanted = [learner.record["iterations"] + iterations for learner in learners]
    step_until(roles, lambda: all(one.record["iterations"] >= each for one, each in zip(learners, wanted, strict=True)))


@pytest.mark.parametrize("name", CHANGED)
@pytest.mark.parametrize("native", [True, False])
def test_a_flag_has_the_effect_of_one_that_was_there_from_the_beginning(name: str, native: bool) -> None:
    """After two epochs the weights are those of a run that began with the flag, and not those of one without."""
    flags = {"native_update": native, "num_epochs": 2, "num_batches_per_epoch": 2, "learning_rate": 1e-3}
    before = learner_config(**flags)
    after = learner_config(**flags | {name: CHANGED[name]})
    weights = []
    for first, then in ((before, after), (after, after), (before, before)):
        torch.manual_seed(0)
        update = Update(make_policy(), first)
        update.reconfigure(then)
        update.set_progress(0.0)
        torch.manual_seed(1)
        for _ in range(2):  # ratios and values move with the first one
            train(update, act(update.policy, version=update.version))
        weights.append(update.policy.flat.clone())
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_falling_learning_rate_falls_from_the_new_one() -> None:
    update = Update(make_policy(), learner_config(lr_schedule="linear", learning_rate=0.1))
    update.reconfigure(learner_config(lr_schedule="linear", learning_rate=0.4))
    update.set_progress(0.25)
    assert update.lr == pytest.approx(0.3)


def test_an_adaptive_learning_rate_stays_where_it_is() -> None:
    config = {"lr_schedule": "kl_adaptive_epoch", "learning_rate": 0.001}
    update = Update(make_policy(), learner_config(**config, lr_schedule_kl_threshold=1e-9))
    train(update, act(update.policy))
    train(update, act(update.policy, version=update.version))
    moved = update.lr
    update.reconfigure(learner_config(**config, lr_schedule_kl_threshold=0.5))
    assert update.lr == moved
    assert update._schedule._threshold == 0.5  # type: ignore[attr-defined]


def test_clip_ranges_that_shrink_do_so_from_the_new_ones() -> None:
    algorithm = PPO(learner_config(ppo_clip_anneal=True))
    algorithm.reconfigure(learner_config(ppo_clip_anneal=True, ppo_clip_ratio=0.4))
    algorithm.set_progress(0.5)
    assert algorithm.config.ppo_clip_ratio == pytest.approx(0.2)


def test_a_target_network_is_a_copy_of_the_policy_that_was_taken_over() -> None:
    config = learner_config(algorithm="appo")
    algorithm = APPO(config)
    update = Update(make_policy(), config, algorithm=algorithm)
    with torch.no_grad():
        update.policy.flat.copy_(make_policy().flat)
    update.begin_with_weights()
    assert torch.equal(algorithm.target.flat, update.policy.flat)


@pytest.mark.parametrize("num_old", [1, 5, 8])
def test_no_transition_from_before_a_takeover_is_trained_on(num_old: int) -> None:
    update = Update(make_policy(), learner_config(num_epochs=2))
    train(update, act(update.policy))
    update.begin_with_weights()
    assert update.version == 3
    seen, batch = [], act(update.policy, version=3)
    batch.policy_version[:num_old] = 2
    batch.rewards[:num_old] = 1e6
    evaluate = update._evaluate

    def spy(minibatch: Any) -> Any:
        evaluation, rows = evaluate(minibatch)
        seen.append(rows)
        return evaluation, rows

    update._evaluate = spy  # type: ignore[method-assign]
    train(update, batch)
    assert update.num_left_out == num_old * 6
    assert [len(rows) for rows in seen] == ([] if num_old == 8 else [(8 - num_old) * 6] * 2)
    assert all(rows.returns.abs().max() < 1e3 for rows in seen)


def test_after_a_takeover_two_policies_are_one(tmp_path: Path) -> None:
    lab = population(tmp_path)
    roles, first, second = built(lab)
    trained(roles, first, second, iterations=3)
    version, frames = second.update.version, second.frames
    assert not torch.equal(first.network.flat, second.network.flat)
    lab.shared.controls[1].send(Evolve((("learning_rate", 0.005), ("gamma", 0.9)), source=0))
    second._obey()
    assert torch.equal(first.network.flat, second.network.flat), "which has the statistics of what is normalized"
    published = torch.empty_like(first.network.flat)
    assert second.weights.read(from_host(published)) == version + 1
    assert torch.equal(published, first.network.flat)
    assert (second.update.version, second.record["version"], second.frames) == (version + 1, version + 1, frames)
    assert not second.update.optimizer.exp_avg.any()
    assert not second.update.optimizer.exp_avg_sq.any()
    assert second.update.optimizer.num_steps == 0
    for name, own in second.update.statistics.moments.items():
        other = first.update.statistics.moments[name]
        assert torch.allclose(own.mean, other.mean, rtol=1e-5, atol=1e-6)
        assert torch.allclose(own.variance, other.variance, rtol=1e-4, atol=1e-6)
        assert own.count > 0
    assert (second.update.lr, second.update.config.gamma) == (0.005, 0.9)
    assert first.update.config.gamma == 0.99
    observations = {"obs": torch.randn(50, 4)}
    one, other_one = (learner.network.act(observations, greedy=True) for learner in (first, second))
    assert torch.equal(one.action, other_one.action)
    assert torch.equal(one.info.value_prediction, other_one.info.value_prediction)


@pytest.mark.parametrize("async_rl", [True, False])
def test_what_was_collected_before_a_takeover_trains_nothing(tmp_path: Path, async_rl: bool) -> None:
    lab = population(tmp_path, async_rl=async_rl, num_batches_to_accumulate=3)
    roles, first, second = built(lab)
    trained(roles, first, second, iterations=2)
    second._carry_out(Evolve((("learning_rate", 0.005),), source=0))
    void, trained_versions = second.update.version, []
    assert isinstance(second.update, Update)
    steps = second.update._step

    def spy(evaluation: Any, rows: Any, lr_factor: float, minibatch: Any) -> Any:
        assert isinstance(second.update, Update)
        trained_versions.extend((second.update.version - minibatch.each_lag).tolist())
        return steps(evaluation, rows, lr_factor, minibatch)

    second.update._step = spy  # type: ignore[method-assign]
    trained(roles, first, second, iterations=8)
    assert (second.update.num_left_out > 0) == async_rl
    assert min(trained_versions) >= void
    assert second.record["left_out"] == second.update.num_left_out
    assert first.update.num_left_out == 0
    assert Ledger.of(lab.slots, False).is_balanced


def test_an_order_without_a_source_changes_the_next_step_and_no_weight(tmp_path: Path) -> None:
    lab = population(tmp_path)
    roles, first, second = built(lab)
    trained(roles, first, second, iterations=1)
    version, flat, rates = second.update.version, second.network.flat.clone(), []
    lab.shared.controls[1].send(Evolve((("learning_rate", 0.0123),)))
    step = second.update.optimizer.step

    def spy(lr: float) -> None:
        rates.append(lr)
        step(lr)

    second.update.optimizer.step = spy  # type: ignore[method-assign]
    second._obey()
    assert second.update.version == version
    assert torch.equal(second.network.flat, flat)
    trained(roles, second, iterations=1)
    assert set(rates) == {0.0123}


def test_a_learner_begins_with_the_values_that_are_noted(tmp_path: Path) -> None:
    lab = population(tmp_path, pbt_space='{"gamma": {"min": 0.8, "max": 0.99}}')
    directory = tmp_path / lab.config.run.experiment
    write_population(directory, {"values": [{"gamma": 0.91}, {"gamma": 0.82, "adam_eps": 1.0}]})
    _, first, second = built(lab)
    assert (first.update.config.gamma, second.update.config.gamma) == (0.91, 0.82)
    assert second.update.config.adam_eps == 1e-5, "which the space does not name"


def test_what_is_void_stays_so_in_a_serial_run_that_goes_on(tmp_path: Path) -> None:
    lab = population(tmp_path)
    roles, first, second = built(lab)
    trained(roles, first, second, iterations=1)
    second._carry_out(Evolve((), source=0))
    state = second.state()
    second.update.void_before = 0
    second.load_state(state)
    assert second.update.void_before == second.update.version
