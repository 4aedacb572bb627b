"""The seam for algorithms: whose gradients count, and which flags are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from examples.algorithms.policy_gradient import PolicyGradient
from sf.config import OF_ALGORITHMS, LearnerConfig, changed_algorithm_flags
from sf.errors import ConfigError, ExitCode
from sf.learner.algorithm import Algorithm, Losses, LossGradients
from sf.learner.batch import Batch
from sf.learner.dataset import Transitions
from sf.learner.ppo import PPO
from sf.learner.propagation import Recorded, WrittenOut, propagation_through
from sf.learner.trial import unread_flags
from sf.learner.update import Update
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


def test_a_term_of_a_loss_does_not_take_the_place_of_another_one() -> None:
    losses = Losses(torch.tensor(1.0), {"policy_loss": torch.tensor(1.0)})
    assert losses.plus(bonus=torch.tensor(2.0)).total == 3.0
    with pytest.raises(ConfigError, match="has a term 'policy_loss' already"):
        losses.plus(policy_loss=torch.tensor(2.0))
