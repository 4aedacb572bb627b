"""The seam for algorithms: whose gradients count, and what a trial refuses."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from examples.algorithms.decoupled_ppo import DecoupledPPO
from examples.algorithms.policy_gradient import PolicyGradient
from sf.config import OF_ALGORITHMS, LearnerConfig, changed_algorithm_flags
from sf.errors import ConfigError, ExitCode
from sf.learner.acting_network import ActingNetwork
from sf.learner.algorithm import Algorithm, Losses, LossGradients
from sf.learner.batch import Batch
from sf.learner.dataset import Transitions
from sf.learner.ppo import PPO
from sf.learner.propagation import Recorded, WrittenOut, propagation_through
from sf.learner.trained_network import TrainedNetwork
from sf.learner.trial import algorithm_of, begin, loss_terms_of, note_on_untrained, unread_flags
from sf.learner.update import Update
from sf.plugins import ALGORITHMS
from sf.policy import ActorCritic, Evaluation
from tests.helpers.commands import run
from tests.helpers.updates import act, learner_config, make_policy, one_thread_and_seed, train

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
    made = algorithm(LearnerConfig(native_update=False))
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


class BeforeTheLoss(PPO):
    """Changes a column that nothing needs for the way back."""

    def loss(self, evaluation: Evaluation, minibatch: Transitions) -> Losses:
        minibatch.advantages.mul_(2.0)
        return super().loss(evaluation, minibatch)


@pytest.mark.parametrize("way", ["nothing", "optimizer", "network"])
def test_weights_that_nothing_trains_are_told(way: str) -> None:
    algorithm, policy = WithHead(LearnerConfig(), way), make_policy()
    begin(algorithm, policy)
    note = note_on_untrained(algorithm, policy)
    told = "the loss of algorithm=WithHead depends on head.weight, head.bias, scale, which no optimizer"
    assert (told in note) == (way == "nothing")
    assert (note == "") == (way != "nothing")


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
    assert unread_flags(config, make_policy(), changed_algorithm_flags(config)) == []
    other = learner_config(algorithm=named["other"], **changed_flag(name))
    of_prepare = {"gamma", "gae_lambda", "value_bootstrap"}
    assert (name in unread_flags(other, make_policy(), changed_algorithm_flags(other))) == (name not in of_prepare)


class EntropyAlone(OtherLoss, Algorithm):
    """Reads no flag."""


class ReadsThemAll(EntropyAlone):
    """Keeps the flags in a form of its own."""

    def __init__(self, config: LearnerConfig) -> None:
        super().__init__(config)
        self.flags = dict(vars(config))


def test_all_flags_count_as_read_where_they_are_copied() -> None:
    config = LearnerConfig(algorithm=f"{__name__}:ReadsThemAll", ppo_dual_clip=3.0)
    assert unread_flags(config, make_policy(), changed_algorithm_flags(config)) == []


def test_a_part_of_ppo_that_is_replaced_leaves_its_flags_unread_even_if_others_shrink() -> None:
    config = learner_config(algorithm=f"{__name__}:OtherGains", ppo_dual_clip=3.0, ppo_clip_anneal=True)
    assert unread_flags(config, make_policy(), changed_algorithm_flags(config)) == ["ppo_dual_clip"]


def test_rewards_that_are_normalized_are_discounted_as_well() -> None:
    assert changed_algorithm_flags(LearnerConfig(gamma=0.9)) == ["gamma"]
    assert changed_algorithm_flags(LearnerConfig(gamma=0.9, normalize_rewards=True)) == []


@pytest.mark.more
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


@pytest.mark.more
@pytest.mark.parametrize("serial_mode", [True, False])
def test_a_wrong_algorithm_ends_a_run_before_it_begins(serial_mode: bool, tmp_path: Path) -> None:
    wrong = "--algorithm=tests.learner.test_algorithm:Columns", f"--serial_mode={serial_mode}"
    finished = run(tmp_path, "--env=CartPole-v1", f"--train_dir={tmp_path}", "--train_for_env_steps=1000", *wrong)
    assert finished.code == ExitCode.USAGE, finished.err
    assert "prepare must return the Transitions of all T·B steps" in finished.err
    assert "Traceback" not in finished.err


def test_a_term_of_a_loss_does_not_take_the_place_of_another_one() -> None:
    losses = Losses(torch.tensor(1.0), {"policy_loss": torch.tensor(1.0)})
    assert losses.plus(bonus=torch.tensor(2.0)).total == 3.0
    with pytest.raises(ConfigError, match="has a term 'policy_loss' already"):
        losses.plus(policy_loss=torch.tensor(2.0))
