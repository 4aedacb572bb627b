"""What a trial of an algorithm refuses or tells before a run, and what an update tells later."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn

from examples.algorithms.decoupled_ppo import DecoupledPPO
from examples.algorithms.policy_gradient import PolicyGradient
from sf.config import LearnerConfig
from sf.errors import ConfigError, ExitCode
from sf.learner.acting_network import ActingNetwork
from sf.learner.algorithm import Algorithm, Losses
from sf.learner.batch import Batch
from sf.learner.dataset import Transitions
from sf.learner.ppo import PPO
from sf.learner.trained_network import TrainedNetwork
from sf.learner.training import NonFiniteGradient
from sf.learner.trial import algorithm_of, begin, fields_of, loss_terms_of
from sf.learner.untrained import note_on_policy_twice, note_on_untrained
from sf.learner.update import Update
from sf.plugins import ALGORITHMS
from sf.policy import ActorCritic, Evaluation
from sf.shared.fields import Axes, StoredField, Writer, head_field
from sf.shared.slot_fields import last_observation_fields
from tests.helpers.commands import run
from tests.helpers.updates import act, learner_config, make_policy, one_thread_and_seed

EXAMPLES = "examples.algorithms"


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    one_thread_and_seed()


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


class Failing(PPO):
    """Cannot prepare anything."""

    def prepare(self, batch: Batch, policy: ActorCritic) -> Transitions:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        (Failing(LearnerConfig()), r"algorithm=Failing raised ZeroDivisionError in prepare\(batch, policy\)"),
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


class WithHead(PPO):
    """A head that nothing trains, or an optimizer does, or a `TrainedNetwork`."""

    def __init__(self, config: LearnerConfig, way: str) -> None:
        super().__init__(config)
        head = nn.Linear(4, 3)
        self.head: Any = TrainedNetwork(head, 0.1, torch.device("cpu")) if way == "network" else head
        self.policy: ActorCritic | None = None
        self.scale = nn.Parameter(torch.ones(()), requires_grad=way != "network")
        if way == "optimizer":
            self.optimizer = torch.optim.Adam([*head.parameters(), self.scale])

    def begin(self, acting: ActingNetwork) -> None:
        self.policy = acting.policy

    def loss(self, evaluation: Evaluation, minibatch: Transitions) -> Losses:
        errors = self.head(minibatch.observations["obs"])
        return super().loss(evaluation, minibatch).plus(further_loss=self.scale * errors.square().mean())


class WithSteps(WithHead):
    """Steps it."""

    def after_step(self, size: int) -> None:
        self.optimizer.step() if hasattr(self, "optimizer") else self.head.step(size)


class BeforeTheLoss(PPO):
    """Changes a column that nothing needs for the way back."""

    def loss(self, evaluation: Evaluation, minibatch: Transitions) -> Losses:
        minibatch.advantages.mul_(2.0)
        return super().loss(evaluation, minibatch)


@pytest.mark.parametrize("way", ["nothing", "optimizer", "network"])
def test_weights_that_nothing_trains_are_told(way: str) -> None:
    algorithm, policy = WithSteps(LearnerConfig(), way), make_policy()
    begin(algorithm, policy)
    note = note_on_untrained(algorithm, policy)
    told = "the loss of algorithm=WithSteps depends on head.weight, head.bias, scale, which no optimizer"
    assert (told in note) == (way == "nothing")
    assert (note == "") == (way != "nothing")


@pytest.mark.parametrize("way", ["optimizer", "network"])
def test_networks_whose_optimizer_takes_no_steps_are_told(way: str) -> None:
    algorithm, policy = WithHead(LearnerConfig(), way), make_policy()
    begin(algorithm, policy)
    assert "which no method after_step or after_batch takes steps of" in note_on_untrained(algorithm, policy)


def test_an_optimizer_of_weights_that_the_run_trains_is_told() -> None:
    algorithm, policy = WithSteps(LearnerConfig(), "optimizer"), make_policy()
    assert note_on_policy_twice(algorithm, policy) == ""
    algorithm.optimizer = torch.optim.Adam(policy.parameters())
    assert note_on_policy_twice(algorithm, policy).startswith("Warning: optimizer of algorithm=WithSteps has param")


@pytest.mark.parametrize("dtype", ["float32", "int64", "float23"])
def test_a_field_that_nothing_writes_is_refused(dtype: str) -> None:
    algorithm, policy = PPO(LearnerConfig()), make_policy()
    unwritten = {"z": StoredField(Axes.STEPS, dtype, Writer.ROLLOUT)}
    told = pytest.raises(ConfigError, match="algorithm=PPO: nothing writes the field 'z'")
    with patch.object(PPO, "fields", lambda *_: unwritten), told:
        fields_of(algorithm, policy.info)
    with patch.object(PPO, "fields", lambda _, info: last_observation_fields(info) | {"head": head_field()}):
        assert len(fields_of(algorithm, policy.info)) == 3


class InPlace(PPO):
    """Changes what it was given."""

    def loss(self, evaluation: Evaluation, minibatch: Transitions) -> Losses:
        losses = super().loss(evaluation, minibatch)
        minibatch.advantages.zero_()
        return losses


class PreparesEachEpoch(PPO):
    """As the class says."""

    prepares_each_epoch = True


def test_a_loss_that_changes_its_arguments_is_refused_before_the_run() -> None:
    for kind in (InPlace, BeforeTheLoss):
        with pytest.raises(ConfigError, match="loss changes advantages of its minibatch in place"):
            loss_terms_of(kind(LearnerConfig()), make_policy())


def test_a_subclass_of_ppo_prepares_before_each_epoch_if_its_class_says_so() -> None:
    assert PreparesEachEpoch(LearnerConfig()).prepares_each_epoch
    assert not PPO(LearnerConfig()).prepares_each_epoch


class Spoiled(PPO):
    """A term beside the total is no number after the first step."""

    def loss(self, evaluation: Evaluation, minibatch: Transitions) -> Losses:
        losses = super().loss(evaluation, minibatch)
        beside = torch.tensor(float("nan") if self.version else 0.0)
        return Losses(losses.total, {**losses.terms, "beside": beside})


def test_a_term_that_is_no_number_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    config = learner_config(num_batches_per_epoch=2, num_epochs=2)
    update = Update(make_policy(), config, algorithm=Spoiled(config))
    for _ in range(3):
        update.want_summary = True
        list(update.steps(act(update.policy, version=update.version)))
        update.summary()
    assert [record.message for record in caplog.records if "Not finite" in record.message] == [
        "Not finite in the loss: beside. See the curves of these terms below train/."
    ]


class Broken(PPO):
    """So is the total."""

    def loss(self, evaluation: Evaluation, minibatch: Transitions) -> Losses:
        return super().loss(evaluation, minibatch).plus(bonus=evaluation.entropy.mean() * float("inf"))


def test_the_end_of_a_run_names_the_term_that_was_no_number() -> None:
    config = learner_config(num_batches_per_epoch=2, num_epochs=6)
    update = Update(make_policy(), config, algorithm=Broken(config))
    with pytest.raises(NonFiniteGradient, match=r"10 gradients in a row .* at version 0, with bonus = inf in its loss"):
        list(update.steps(act(update.policy)))


def test_a_column_that_is_not_there_is_told_with_the_nearest_one() -> None:
    batch = act(make_policy())
    with pytest.raises(KeyError, match=r"'reward' is no column of the batch\. Did you mean 'rewards'"):
        batch["reward"]
    transitions = PPO(LearnerConfig()).prepare(batch, make_policy()).with_columns(bonus=batch.rewards.flatten())
    assert torch.equal(transitions["bonus"], batch.rewards.flatten())
    with pytest.raises(KeyError, match=r"'aux' is no column that prepare has added .* There are: bonus"):
        transitions["aux"]


class WithoutBeginning(PPO):
    """It does not begin as its base class does."""

    def __init__(self, config: LearnerConfig) -> None:
        self.config = config


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("a3c", r"algorithm=a3c is not registered \(registered: appo, .*td3\)\. Give sf\.train the class with"),
        ("nowhere:Mine", r"algorithm=nowhere:Mine names the module nowhere, which cannot be found"),
        (f"{EXAMPLES}.policy_gradient:Missing", r"names Missing, but .*policy_gradient\.py has no such class"),
        (":Mine", r"algorithm=:Mine is no module:Name, such as my_algorithms:Mine"),
        (f"{EXAMPLES}.auxiliary_loss:Foresight", r"Foresight raised TypeError in its construction"),
        ("tests.helpers.updates:learner_config", r"raised TypeError in its construction|made a LearnerConfig"),
        ("types:SimpleNamespace", r"algorithm=types:SimpleNamespace .* in its construction|made a SimpleNamespace"),
        (
            f"{__name__}:WithoutBeginning",
            r"WithoutBeginning does not call super\(\).__init__\(config\) in its __init__\.",
        ),
        ("builtins:repr", r"algorithm=builtins:repr made a str, expected a subclass of sf\.Algorithm\."),
    ],
)
def test_an_algorithm_that_cannot_be_had_is_told(
    name: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ALGORITHMS, "registered", {})
    with pytest.raises(ConfigError, match=re.compile(sentence, re.S)):
        algorithm_of(LearnerConfig(algorithm=name))


@pytest.mark.more
@pytest.mark.parametrize("serial_mode", [True, False])
def test_a_wrong_algorithm_ends_a_run_before_it_begins(serial_mode: bool, tmp_path: Path) -> None:
    wrong = "--algorithm=tests.learner.test_trial:Columns", f"--serial_mode={serial_mode}"
    finished = run(tmp_path, "--env=CartPole-v1", f"--train_dir={tmp_path}", "--train_for_env_steps=1000", *wrong)
    assert finished.code == ExitCode.USAGE, finished.err
    assert "prepare must return the Transitions of all T·B steps" in finished.err
    assert "Traceback" not in finished.err
