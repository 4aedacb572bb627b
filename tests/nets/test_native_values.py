"""Networks of values in C, against the same networks in torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sf.algorithms.critics import Critics
from sf.config import LearnerConfig, ModelConfig
from sf.learner.acting_network import ActingNetwork
from sf.learner.optimizer import FlatAdam
from sf.learner.trained_network import TrainedNetwork
from sf.nets.fast.small_networks import MOST_LAYERS, WIDEST
from sf.policy import ActorCritic
from sf.spaces import EnvInfo, LeafSpec
from tests.helpers.updates import BOX, OBS_SIZE, one_thread_and_seed

CPU = torch.device("cpu")
close: Any = {"rtol": 1e-4, "atol": 2e-5}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    one_thread_and_seed()


def acting(native: bool = True, **model: Any) -> ActingNetwork:
    config = LearnerConfig(native_update=native)
    info = EnvInfo("test", 1, {"obs": LeafSpec((OBS_SIZE,), "float32")}, BOX)
    policy = ActorCritic(info, ModelConfig(normalize_returns=False, **model))
    return ActingNetwork(policy, FlatAdam(policy, config), config)


def critics(acting_network: ActingNetwork, *arguments: Any, **keywords: Any) -> TrainedNetwork:
    return TrainedNetwork(Critics(acting_network, *arguments, **keywords), 1e-3, CPU)


def is_native(network: TrainedNetwork) -> bool:
    return network._function != network.module.forward


def gradients(network: TrainedNetwork, values: Tensor, wanted: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    network.zero_grad()
    action.grad = None
    torch.autograd.backward((values * wanted).sum())
    assert action.grad is not None
    return network._variables.gradient.clone(), action.grad


@pytest.mark.parametrize(
    ("layers", "rows", "nonlinearity", "number"),
    [((16,), 5, "tanh", 2), ((130, 100), 97, "relu", 2), ((256, 256), 256, "relu", 2), ((24, 40, 8), 33, "elu", 1)],
)
def test_values_and_gradients_are_those_of_torch(
    layers: tuple[int, ...], rows: int, nonlinearity: str, number: int
) -> None:
    beside = acting(encoder_mlp_layers=layers, nonlinearity=nonlinearity)
    network = critics(beside, 1, takes_action=True, number=number)
    assert is_native(network)
    inputs, action = {"obs": torch.randn(rows, OBS_SIZE)}, torch.randn(rows, 2, requires_grad=True)
    wanted = torch.randn(number, rows)
    found, right = network(inputs, action), network.module(inputs, action)
    torch.testing.assert_close(found, right, **close)
    for own, expected in zip(
        gradients(network, found, wanted, action), gradients(network, right, wanted, action), strict=True
    ):
        torch.testing.assert_close(own, expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(network.target()(inputs, action.detach()), right.detach(), **close)


def test_the_least_value_leads_the_action_and_a_frozen_network_gets_nothing() -> None:
    network = critics(acting(encoder_mlp_layers=(100, 100), nonlinearity="relu"), 1, takes_action=True)
    inputs, action = {"obs": torch.randn(120, OBS_SIZE)}, torch.randn(120, 2, requires_grad=True)
    led = []
    for function in (network, network.module):
        with network.frozen():
            (gradient,) = torch.autograd.grad(function(inputs, action).amin(0).sum(), action)
        led.append(gradient)
    torch.testing.assert_close(*led, **close)
    assert not network._variables.gradient.any()
    torch.autograd.backward(network(inputs, action).sum())
    assert network._variables.gradient.any()


def test_several_outputs_of_some_rows() -> None:
    network = critics(acting(encoder_mlp_layers=(20, 30)), 5, takes_action=False)
    inputs, chosen = {"obs": torch.randn(40, OBS_SIZE)}, torch.randint(5, (2, 40, 1))
    weights = (torch.arange(40) % 3 == 0).float()  # most rows have no derivative
    found = []
    for function in (network, network.module):
        network.zero_grad()
        values = function(inputs)
        assert values.shape == (2, 40, 5)
        torch.autograd.backward((values.gather(-1, chosen).squeeze(-1) * weights).sum())
        found.append(network._variables.gradient.clone())
    torch.testing.assert_close(*found, **close)


@pytest.mark.parametrize(
    "model",
    [
        {"layer_norm": True}, {"encoder_mlp_layers": (WIDEST + 1,)}, {"encoder_mlp_layers": (8,) * MOST_LAYERS},
        {"encoder_per_key": True},
    ],
)  # fmt: skip
def test_other_networks_are_left_to_torch(model: dict[str, Any]) -> None:
    assert not is_native(critics(acting(**model), 1, takes_action=True))


def test_native_update_leaves_it_out() -> None:
    assert not is_native(critics(acting(native=False, encoder_mlp_layers=(16,)), 1, takes_action=True))


@pytest.mark.parametrize("shares", [True, False])
def test_values_apart_move_no_features_of_the_policy(shares: bool) -> None:
    beside = acting(encoder_mlp_layers=(16, 16), actor_critic_share_weights=shares, adaptive_stddev=True)
    observations = {"obs": torch.randn(9, OBS_SIZE)}
    d_params, d_values = torch.randn(9, 4), torch.randn(9)
    found = []
    for outputs in (beside.outputs_apart(observations), beside.policy.forward_apart(observations)):
        beside.zero_grad()
        torch.autograd.backward(outputs, [d_params, d_values])
        found.append(beside.policy.flat_gradient.clone())
    torch.testing.assert_close(*found, **close)


@pytest.mark.parametrize("native", [True, False])
def test_the_way_back_without_a_graph_is_that_of_torch(native: bool) -> None:
    beside = acting(native=native, encoder_mlp_layers=(16, 16))
    observations = {"obs": torch.randn(9, OBS_SIZE)}
    params, values, back = beside.outputs_and_way_back(observations)
    d_params, d_values = torch.randn_like(params), torch.randn(9)
    assert not params.requires_grad
    assert not values.requires_grad
    beside.zero_grad()
    back(d_params, d_values)
    found = beside.policy.flat_gradient.clone()
    beside.zero_grad()
    torch.autograd.backward(beside.policy.forward(observations, None)[:2], [d_params, d_values])
    torch.testing.assert_close(found, beside.policy.flat_gradient, **close)
