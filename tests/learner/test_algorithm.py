"""The seam for algorithms: whose gradients count, what a trial refuses, and that the examples learn."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sf
from examples.algorithms.auxiliary_loss import Foresight, PPOWithForesight
from examples.algorithms.decoupled_ppo import DecoupledPPO
from examples.algorithms.policy_gradient import PolicyGradient
from sf.config import OF_ALGORITHMS, LearnerConfig, ModelConfig, changed_algorithm_flags
from sf.errors import ConfigError, ExitCode
from sf.learner.algorithm import Algorithm, Losses, LossGradients
from sf.learner.batch import Batch
from sf.learner.dataset import Transitions, evaluate_batch
from sf.learner.ppo import PPO
from sf.learner.propagation import Recorded, WrittenOut, propagation_through
from sf.learner.trial import algorithm_of, loss_terms_of, unread_flags
from sf.learner.update import Update
from sf.plugins import ALGORITHMS, register_model
from sf.policy import ActorCritic, Evaluation
from sf.spaces import EnvInfo, LeafSpec
from tests.helpers.commands import run
from tests.helpers.updates import DISCRETE, act, learner_config, make_policy, one_thread_and_seed, train

EXAMPLES = "examples.algorithms"


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    one_thread_and_seed()


class WithoutGradients(PPO):
    """PPO by autograd alone."""

    def loss(self, evaluation: Evaluation, minibatch: Transitions) -> Losses:
        return super().loss(evaluation, minibatch)


class OtherLoss:
    """A loss that comes from beside the algorithms."""

    def loss(self, evaluation: Evaluation, minibatch: Transitions) -> Losses:
        return Losses(evaluation.entropy.mean(), {})


class Mixed(OtherLoss, PPO):
    """Takes its loss from there."""


class OtherGains(PPO):
    """Changes a part of the loss."""

    def _gains(self, evaluation: Evaluation, minibatch: Transitions, log_ratios: Tensor) -> Tensor:
        return minibatch.advantages * log_ratios


class OtherPreparation(PPO):
    """Changes the data alone."""

    prepares_each_epoch = True

    def __init__(self, config: LearnerConfig) -> None:
        super().__init__(config)
        self.halved = 0.5

    def prepare(self, batch: Batch, policy: ActorCritic) -> Transitions:
        transitions = super().prepare(batch, policy)
        return transitions.with_columns(half=self._half(transitions.advantages))

    def _half(self, advantages: Tensor) -> Tensor:
        return self.halved * advantages

    def set_progress(self, fraction: float) -> None:
        super().set_progress(fraction / 2)


class OwnGradients(OtherGains):
    """Writes the gradients of that loss."""

    def gradients(self, evaluation: Evaluation, minibatch: Transitions) -> LossGradients:
        return super().gradients(evaluation, minibatch)


class FasterGradients(PPO):
    """Other code for the gradients of the same loss."""

    def gradients(self, evaluation: Evaluation, minibatch: Transitions) -> LossGradients:
        return super().gradients(evaluation, minibatch)


class Inherits(WithoutGradients):
    """Changes neither."""


@pytest.mark.parametrize(
    ("algorithm", "has_gradients"),
    [
        (PPO, True),
        (FasterGradients, True),
        (OtherGains, False),
        (OtherPreparation, True),
        (OwnGradients, True),
        (WithoutGradients, False),
        (Mixed, False),
        (Inherits, False),
        (PolicyGradient, False),
    ],
)
def test_gradients_of_another_loss_are_never_used(algorithm: type[Algorithm], has_gradients: bool) -> None:
    made = algorithm(LearnerConfig())
    assert made.has_gradients is has_gradients
    network = propagation_through(make_policy(), made)
    assert isinstance(network, WrittenOut if has_gradients else Recorded)


@pytest.mark.parametrize("flags", [{}, {"ppo_clip_anneal": True}, {"with_vtrace": True, "kl_loss_coeff": 0.2}])
def test_an_update_by_autograd_is_the_one_by_hand(flags: dict[str, Any]) -> None:
    config = learner_config(num_epochs=2, num_batches_per_epoch=2, shuffle_minibatches=False, **flags)
    policy = make_policy()
    batch = act(policy)
    ends = []
    for algorithm in (PPO(config), WithoutGradients(config)):
        update = Update(policy.__deepcopy__({}), config, algorithm=algorithm)
        update.set_progress(0.25)
        train(update, batch)
        ends.append(update.policy.flat.clone())
    assert not torch.equal(ends[0], policy.flat)
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-5, atol=1e-6)


class Evaluated(PolicyGradient):
    """Counts the calls of its loss."""

    num_calls = 0

    def loss(self, evaluation: Evaluation, minibatch: Transitions) -> Losses:
        self.num_calls += 1
        return super().loss(evaluation, minibatch)


def test_a_loss_is_computed_once_for_each_step_with_a_summary_too() -> None:
    config = learner_config(num_epochs=2, num_batches_per_epoch=3)
    algorithm, policy = Evaluated(config), make_policy()
    update = Update(policy, config, algorithm=algorithm)
    algorithm.num_calls, update.want_summary = 0, True  # the trial calls it too
    train(update, act(policy))
    assert algorithm.num_calls == 6
    assert {"loss", "policy_loss", "value_loss"} <= update.summary().keys()


class Counting(PolicyGradient):
    """Notes which weights it prepares with."""

    def __init__(self, config: LearnerConfig) -> None:
        super().__init__(config)
        self.sums: list[float] = []

    def prepare(self, batch: Batch, policy: ActorCritic) -> Transitions:
        self.sums.append(policy.flat.sum().item())
        return super().prepare(batch, policy)


@pytest.mark.parametrize("each_epoch", [False, True])
def test_a_batch_is_prepared_once_or_before_each_epoch(each_epoch: bool) -> None:
    config = learner_config(num_epochs=3, num_batches_per_epoch=2)
    algorithm, policy = Counting(config), make_policy()
    algorithm.prepares_each_epoch = each_epoch
    update = Update(policy, config, algorithm=algorithm)
    algorithm.sums.clear()  # the trial prepares too
    before = policy.flat.sum().item()
    train(update, act(policy))
    assert len(algorithm.sums) == len(set(algorithm.sums)) == (3 if each_epoch else 1)
    assert algorithm.sums[0] == before


# -------------------------------------------------------------------------------------------------------------- trial


def losing(loss: Callable[[Evaluation, Transitions], Any]) -> Algorithm:
    kind = type("Mine", (Algorithm,), {"loss": lambda self, evaluation, minibatch: loss(evaluation, minibatch)})
    made: Algorithm = kind(LearnerConfig())
    return made


class Forgetful(PPO):
    """Prepares the first step of each trajectory only."""

    def prepare(self, batch: Batch, policy: ActorCritic) -> Transitions:
        return super().prepare(batch, policy).take(torch.arange(2))


class Columns(PPO):
    """Prepares a dict."""

    def prepare(self, batch: Batch, policy: ActorCritic) -> Any:
        return {"advantages": batch.rewards}


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        (
            Forgetful(LearnerConfig()),
            r"algorithm=Forgetful: prepare must return .* 6 for a batch .* 2 of",
        ),
        (Columns(LearnerConfig()), r"algorithm=Columns: prepare must return .* returned <class 'dict'>\. Begin with"),
        (Algorithm(LearnerConfig()), r"algorithm=Algorithm raised NotImplementedError in loss.*has no method loss\("),
        (losing(lambda e, m: e.entropy.mean()), r"loss must return sf\.Losses\(total, terms\), .* 'torch\.Tensor'>"),
        (losing(lambda e, m: 1 / 0), r"algorithm=Mine raised ZeroDivisionError in loss\(evaluation, minibatch\)"),
        (
            losing(lambda e, m: Losses(e.entropy, {})),
            r"a scalar tensor with gradient, but is .* shape \[6\] w",
        ),
        (losing(lambda e, m: Losses(m.advantages.mean(), {})), r"but is a tensor of shape \[\] without gradient"),
        (losing(lambda e, m: Losses(0.5, {})), r"with gradient, but is 0\.5\. Take the mean over the minibatch"),  # type: ignore[arg-type]
        (losing(lambda e, m: Losses(e.entropy.mean(), {"a": e.entropy})), r"the term a of its Losses .* shape \[6\]"),
        (losing(lambda e, m: Losses(e.entropy.mean(), {"lr": e.entropy.mean()})), r"the term lr is taken by another"),
    ],
)
def test_what_is_no_algorithm_is_told_before_anything_is_trained(algorithm: Algorithm, sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.compile(sentence, re.S)):
        loss_terms_of(algorithm, make_policy())


@pytest.mark.parametrize(
    "settings", [{}, {"use_rnn": True}, {"actor_critic_share_weights": False}, {"normalize_returns": False}]
)
@pytest.mark.parametrize("algorithm", [PPO, PolicyGradient, DecoupledPPO])
def test_a_trial_changes_nothing(algorithm: type[Algorithm], settings: dict[str, Any]) -> None:
    policy = make_policy(**settings)
    before, random = policy.flat.clone(), torch.get_rng_state()
    terms = loss_terms_of(algorithm(learner_config(with_vtrace=algorithm is PPO)), policy)
    assert {"policy_loss", "value_loss", "exploration_loss"} <= set(terms)
    assert torch.equal(policy.flat, before)
    assert not policy.flat_gradient.any()
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("sac", r"algorithm=sac is not registered \(registered: none so far\)\. Give sf\.train the class with"),
        ("nowhere:Mine", r"algorithm=nowhere:Mine names the module nowhere, which cannot be found"),
        (f"{EXAMPLES}.policy_gradient:Missing", r"names Missing, but .*policy_gradient\.py has no such class"),
        (":Mine", r"algorithm=:Mine is no module:Name, such as my_algorithms:Mine"),
        (f"{EXAMPLES}.auxiliary_loss:Foresight", r"Foresight raised TypeError in its construction"),
        ("tests.helpers.updates:learner_config", r"raised TypeError in its construction|made a LearnerConfig"),
        ("types:SimpleNamespace", r"algorithm=types:SimpleNamespace .* in its construction|made a SimpleNamespace"),
        ("builtins:repr", r"algorithm=builtins:repr made a str, expected a subclass of sf\.Algorithm\."),
    ],
)
def test_an_algorithm_that_cannot_be_had_is_told(
    name: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ALGORITHMS, "registered", {})
    with pytest.raises(ConfigError, match=re.compile(sentence, re.S)):
        algorithm_of(LearnerConfig(algorithm=name))


WORDS = {"objective": "truncated", "proximal_policy": "interpolated", "ppo_clip_form": "reciprocal"}
NEEDS: dict[str, dict[str, Any]] = {
    "vtrace_rho": {"with_vtrace": True},
    "vtrace_c": {"with_vtrace": True},
    "proximal_policy": {"objective": "decoupled"},
    "importance_weight_max": {"objective": "truncated"},
}


def changed_flag(name: str) -> dict[str, Any]:
    """Another value than that by default, and the flags with which PPO reads it."""
    value = getattr(LearnerConfig(), name)
    if name not in WORDS:
        value = not value if isinstance(value, bool) else (value or 0.0) + 0.125
    return {name: WORDS.get(name, value), **NEEDS.get(name, {})}


@pytest.mark.parametrize("name", OF_ALGORITHMS)
def test_a_flag_that_an_algorithm_does_not_read_is_known(name: str) -> None:
    """PPO reads all of them, where their values matter; a loss of entropy alone reads those of `prepare`."""
    named = {"ppo": f"{__name__}:WithoutGradients", "other": f"{__name__}:EntropyAlone"}
    config = learner_config(algorithm=named["ppo"], **changed_flag(name))
    assert unread_flags(config, make_policy()) == []
    other = learner_config(algorithm=named["other"], **changed_flag(name))
    of_prepare = {"gamma", "gae_lambda", "value_bootstrap"}
    assert (name in unread_flags(other, make_policy())) == (name not in of_prepare)


class EntropyAlone(OtherLoss, Algorithm):
    """Reads no flag."""


class ReadsThemAll(EntropyAlone):
    """Keeps the flags in a form of its own."""

    def __init__(self, config: LearnerConfig) -> None:
        super().__init__(config)
        self.flags = dict(vars(config))


def test_all_flags_count_as_read_where_they_are_copied() -> None:
    config = LearnerConfig(algorithm=f"{__name__}:ReadsThemAll", ppo_dual_clip=3.0)
    assert unread_flags(config, make_policy()) == []


def test_a_part_of_ppo_that_is_replaced_leaves_its_flags_unread_even_if_others_shrink() -> None:
    config = learner_config(algorithm=f"{__name__}:OtherGains", ppo_dual_clip=3.0, ppo_clip_anneal=True)
    assert unread_flags(config, make_policy()) == ["ppo_dual_clip"]


def test_rewards_that_are_normalized_are_discounted_as_well() -> None:
    assert changed_algorithm_flags(LearnerConfig(gamma=0.9)) == ["gamma"]
    assert changed_algorithm_flags(LearnerConfig(gamma=0.9, normalize_rewards=True)) == []


@pytest.mark.parametrize("serial_mode", [True, False])
def test_flags_without_effect_are_told_before_a_run(serial_mode: bool, tmp_path: Path) -> None:
    name = f"{EXAMPLES}.policy_gradient:PolicyGradient"
    flags = "--objective=decoupled", "--ppo_dual_clip=3", "--exploration_loss_coeff=0.02", "--gamma=0.9"
    finished = run(
        tmp_path, "--env=CartPole-v1", f"--train_dir={tmp_path}", "--train_for_env_steps=1000", f"--algorithm={name}",
        f"--serial_mode={serial_mode}", *flags,
    )  # fmt: skip
    assert finished.code == ExitCode.FINISHED, finished.err
    sentence = f"Warning: algorithm={name} does not read objective=decoupled, ppo_dual_clip=3.0. So they will change"
    assert finished.out.count(sentence) == 1


@pytest.mark.parametrize("serial_mode", [True, False])
def test_a_wrong_algorithm_ends_a_run_before_it_begins(serial_mode: bool, tmp_path: Path) -> None:
    wrong = "--algorithm=tests.learner.test_algorithm:Columns", f"--serial_mode={serial_mode}"
    finished = run(tmp_path, "--env=CartPole-v1", f"--train_dir={tmp_path}", "--train_for_env_steps=1000", *wrong)
    assert finished.code == ExitCode.USAGE, finished.err
    assert "prepare must return the Transitions of all T·B steps" in finished.err
    assert "Traceback" not in finished.err


# ----------------------------------------------------------------------------------------------------------- examples


def foresight_policy(**config: Any) -> ActorCritic:
    register_model("foresight", Foresight)
    info = EnvInfo("test", 1, {"obs": LeafSpec((4,), "float32")}, DISCRETE)
    return ActorCritic(info, ModelConfig(encoder="foresight", **config))


@pytest.mark.parametrize("config", [{}, {"use_rnn": True, "rnn_size": 64}])
def test_a_head_of_the_user_learns_what_its_loss_asks_for(config: dict[str, Any]) -> None:
    """The curve is the mean over the last minibatch, and the error of the head falls below that of saying 0."""
    policy = foresight_policy(**config)
    flags = learner_config(num_epochs=40, learning_rate=3e-3, max_grad_norm=0.0)
    update = Update(policy, flags, algorithm=PPOWithForesight(flags))
    update.want_summary = True
    batch = act(policy)
    goes_on = ~(batch.terminated | batch.truncated)
    change = (batch.observations["obs"][1:] - batch.observations["obs"][:-1])[goes_on]
    train(update, batch)
    summary = update.summary()
    assert summary["foresight_loss"] < 0.6 * change.square().mean().item()
    assert summary["loss"] == pytest.approx(
        summary["policy_loss"] + 0.5 * summary["value_loss"] + summary["exploration_loss"] + summary["foresight_loss"],
        abs=1e-5,
    )


def test_an_episode_that_ends_says_nothing_about_the_next_observation() -> None:
    config, policy = learner_config(), foresight_policy()
    algorithm, batch = PPOWithForesight(config), act(policy)
    transitions = algorithm.prepare(batch, policy)
    evaluation = policy.evaluate(transitions.observations, transitions.actions)
    before = algorithm.loss(evaluation, transitions).terms["foresight_loss"].item()
    ended = (batch.terminated | batch.truncated).flatten()
    assert ended.any()
    transitions["change"][ended] = 1e6
    assert algorithm.loss(evaluation, transitions).terms["foresight_loss"].item() == before


def slow_decoupled(now: Any, proximal: Any, behavior: Any, advantages: Any) -> float:
    """The decoupled objective of the paper, one transition after the other, with a clip ratio of 0.3."""
    total = 0.0
    for i in range(len(now)):
        correction = min(np.exp(proximal[i] - behavior[i]), 10.0)
        ratio = np.exp(now[i] - proximal[i])
        total -= correction * min(ratio * advantages[i], np.clip(ratio, 0.7, 1.3) * advantages[i])
    return total / len(now)


def test_decoupled_loss_is_the_one_of_the_paper() -> None:
    config = learner_config(ppo_clip_ratio=0.3)
    policy = make_policy()
    batch = act(policy)
    with torch.no_grad():  # the policy has moved since it acted, and moves again after the batch was prepared
        policy.flat_parameters.add_(0.1 * torch.randn_like(policy.flat_parameters))
    algorithm = DecoupledPPO(config)
    transitions = algorithm.prepare(batch, policy)
    proximal = evaluate_batch(batch, policy)[0].flatten()
    with torch.no_grad():
        policy.flat_parameters.add_(0.1 * torch.randn_like(policy.flat_parameters))
    evaluation = policy.evaluate(transitions.observations, transitions.actions)
    found = algorithm.loss(evaluation, transitions).terms["policy_loss"].item()

    def numbers(tensor: Tensor) -> Any:
        return tensor.detach().to(torch.float64).numpy()

    behavior, advantages = batch.behavior_log_probs.flatten(), transitions.advantages
    wanted = slow_decoupled(*map(numbers, (evaluation.log_probs, proximal, behavior, advantages)))
    assert found == pytest.approx(wanted, rel=1e-4)
    coupled = PPO(config).loss(evaluation, transitions).terms["policy_loss"].item()
    assert abs(coupled - wanted) > 1e-3, "the two objectives differ on stale data"


def test_decoupled_loss_has_finite_derivatives_where_a_ratio_overflows() -> None:
    config, policy = learner_config(), make_policy()
    algorithm = DecoupledPPO(config)
    transitions = algorithm.prepare(act(policy), policy)
    transitions["proximal_log_probs"].fill_(-200.0)
    evaluation = policy.evaluate(transitions.observations, transitions.actions)
    loss = algorithm.loss(evaluation, transitions).total
    assert torch.isfinite(torch.autograd.grad(loss, evaluation.log_probs)[0]).all()


def test_decoupled_loss_on_fresh_data_is_that_of_ppo() -> None:
    config, policy = learner_config(), make_policy()
    transitions = DecoupledPPO(config).prepare(act(policy), policy)
    with torch.no_grad():
        policy.flat_parameters.add_(0.1 * torch.randn_like(policy.flat_parameters))
    evaluation = policy.evaluate(transitions.observations, transitions.actions)
    found, wanted = (each.loss(evaluation, transitions) for each in (DecoupledPPO(config), PPO(config)))
    torch.testing.assert_close(found.total, wanted.total)


LEARN: dict[str, tuple[type[Algorithm], dict[str, Any]]] = {
    "policy_gradient": (PolicyGradient, {"num_epochs": 1}),
    "auxiliary_loss": (PPOWithForesight, {"encoder": f"{EXAMPLES}.auxiliary_loss:Foresight"}),
    "decoupled_ppo": (DecoupledPPO, {}),
}


def learn(tmp_path: Path, example: str, seed: int) -> sf.TrainResult:
    """In serial mode, in which a seed is one result and other processes of the machine change nothing."""
    algorithm, flags = LEARN[example]
    flags = {"stop_at_reward": 475, "train_for_env_steps": 1_000_000, "train_dir": str(tmp_path), **flags}
    return sf.train("CartPole-v1", algorithm=algorithm, seed=seed, serial_mode=True, **flags)


@pytest.mark.parametrize("example", LEARN)
def test_example_learns_cartpole(example: str, tmp_path: Path) -> None:
    result = learn(tmp_path, example, seed=1)
    assert result.exit_reason == "stop_at_reward reached"
    algorithm = LEARN[example][0]
    text = (result.path / "config.json").read_text()
    assert f'"algorithm": "{algorithm.__module__}:{algorithm.__qualname__}"' in text
    terms = {"policy_loss", "value_loss", "exploration_loss"}
    terms |= {"foresight_loss"} if example == "auxiliary_loss" else set()
    assert {f"train/{term}" for term in terms} <= result.metrics.keys()
    assert result.policy is not None


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 4])  # the plain policy gradient learns from nine seeds of ten within the frames
@pytest.mark.parametrize("example", LEARN)
def test_example_learns_cartpole_from_other_seeds(example: str, seed: int, tmp_path: Path) -> None:
    assert learn(tmp_path, example, seed).exit_reason == "stop_at_reward reached"


def test_several_learners_share_an_algorithm_of_the_user_and_its_terms(tmp_path: Path) -> None:
    algorithm = "--algorithm=examples.algorithms.auxiliary_loss:PPOWithForesight"
    encoder = "--encoder=examples.algorithms.auxiliary_loss:Foresight"
    sizes = "--num_learners=2", "--num_workers=2", "--num_envs_per_worker=4", "--rollout=16"
    finished = run(
        tmp_path, "--env=CartPole-v1", f"--train_dir={tmp_path}", "--experiment=two", algorithm, encoder, *sizes,
        "--train_for_env_steps=4000",
    )  # fmt: skip
    assert finished.code == ExitCode.FINISHED, finished.err
    assert "train/foresight_loss" in (tmp_path / "two/metrics.jsonl").read_text()
