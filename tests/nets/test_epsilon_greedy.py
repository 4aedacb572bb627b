"""Choices that follow the best output but for a share epsilon of the steps."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from sf.config import ModelConfig
from sf.nets.categorical import MASKED_LOGIT, EpsilonGreedy
from sf.nets.fast.acting import check, small_program
from sf.policy import ActorCritic
from sf.spaces import ActionSpec, EnvInfo, LeafSpec

VALUES = torch.tensor([[0.5, -1.0, 2.0, 1.9]])


def made(epsilon: float, num_choices: int = 4) -> EpsilonGreedy:
    distribution = EpsilonGreedy((num_choices,), is_scalar=True)
    distribution.epsilon.fill_(epsilon)
    return distribution


def test_draws_follow_the_probabilities() -> None:
    distribution, num_draws = made(0.4), 40_000
    values = VALUES.expand(num_draws, -1)
    actions, log_probs = distribution.sample(values, distribution.noise(num_draws, torch.Generator().manual_seed(1)))
    shares = torch.bincount(actions, minlength=4) / num_draws
    torch.testing.assert_close(shares, torch.tensor([0.1, 0.1, 0.7, 0.1]), rtol=0, atol=0.01)
    torch.testing.assert_close(log_probs.exp(), torch.where(actions == 2, 0.7, 0.1))


def test_without_exploration_only_the_best_is_drawn() -> None:
    distribution = made(0.0)
    values = VALUES.expand(1000, -1)
    actions, log_probs = distribution.sample(values, distribution.noise(1000, None))
    assert actions.eq(2).all()
    torch.testing.assert_close(log_probs, torch.zeros(1000))
    assert distribution.best(VALUES).tolist() == [2]


def test_what_is_not_legal_is_never_drawn() -> None:
    distribution = made(1.0)
    values = VALUES.clone().index_fill_(1, torch.tensor([0, 2]), MASKED_LOGIT).expand(4000, -1)
    actions, log_probs = distribution.sample(values, distribution.noise(4000, torch.Generator().manual_seed(2)))
    assert set(actions.tolist()) == {1, 3}
    torch.testing.assert_close(log_probs, torch.full((4000,), math.log(0.5)))


def network(config: ModelConfig) -> ActorCritic:
    torch.manual_seed(0)
    info = EnvInfo("test", 1, {"obs": LeafSpec((3,), "float32")}, ActionSpec.discrete(4))
    return ActorCritic(info, config)


@pytest.mark.parametrize("normalize_returns", [False, True])
def test_numpy_acts_as_the_network_does(normalize_returns: bool) -> None:
    policy = network(ModelConfig(exploration="epsilon_greedy", normalize_returns=normalize_returns))
    for epsilon in (1.0, 0.3, 0.05):
        policy.variables()["distribution.epsilon"].fill_(epsilon)
        program = small_program(policy)
        assert program is not None
        check(program, policy)


def test_epsilon_travels_with_the_weights() -> None:
    policy = network(ModelConfig(exploration="epsilon_greedy"))
    policy.variables()["distribution.epsilon"].fill_(0.25)
    assert copy.deepcopy(policy).variables()["distribution.epsilon"] == 0.25
    assert policy.variables()["distribution.epsilon"] == 0.25
