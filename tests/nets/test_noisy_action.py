"""Numbers in [-1, 1] with noise of one deviation."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch.distributions import Normal

from sf.config import ModelConfig
from sf.nets.fast.acting import check, small_program
from sf.nets.gaussian import NoisyAction
from sf.policy import ActorCritic
from sf.spaces import ActionColumn, ActionSpec, EnvInfo, LeafSpec

normal: Any = Normal


def test_draws_lie_around_the_squashed_output() -> None:
    distribution = NoisyAction(2, ModelConfig(exploration="noise"))
    distribution.log_noise.fill_(math.log(0.3))
    params = torch.tensor([[0.5, -2.0]])
    assert distribution.best(params).tolist() == params.tanh().tolist()
    noise = torch.tensor([[1.0, -1.0]])
    actions, log_probs = distribution.sample(params, noise)
    torch.testing.assert_close(actions, params.tanh() + 0.3 * noise)
    torch.testing.assert_close(log_probs, normal(params.tanh(), 0.3).log_prob(actions).sum(-1))
    assert not list(distribution.parameters())


def network(**config: Any) -> ActorCritic:
    torch.manual_seed(0)
    action = ActionSpec((ActionColumn(low=-2.0, high=2.0),) * 3)
    info = EnvInfo("test", 1, {"obs": LeafSpec((3,), "float32")}, action)
    return ActorCritic(info, ModelConfig(exploration="noise", **config))


@pytest.mark.parametrize("normalize_returns", [False, True])
@pytest.mark.parametrize("deviation", [0.1, 0.7])
def test_numpy_acts_as_the_network_does(normalize_returns: bool, deviation: float) -> None:
    policy = network(normalize_returns=normalize_returns)
    policy.variables()["distribution.log_noise"].fill_(math.log(deviation))
    program = small_program(policy)
    assert program is not None
    check(program, policy)


def test_the_deviation_travels_with_the_weights() -> None:
    policy = network()
    policy.variables()["distribution.log_noise"].fill_(-3.0)
    assert copy.deepcopy(policy).variables()["distribution.log_noise"] == -3.0
