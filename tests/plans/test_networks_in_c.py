"""Networks of plans go through C where they are as `sf` made them, and learn what torch learns."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sf.plans import LSTMModel, QModel, TorchModel

VECTOR, CHOICES = gym.spaces.Box(-1, 1, (5,), np.float32), gym.spaces.Discrete(3)
OBS = torch.as_tensor(np.random.default_rng(1).normal(size=(70, 5)).astype(np.float32))


class Read(TorchModel):
    """Reads its observations in a way that is trained."""

    scale: nn.Parameter

    def features(self, obs: Tensor) -> Tensor:
        if not hasattr(self, "scale"):
            self.scale = nn.Parameter(torch.ones(()))
        return obs * self.scale


def loss(model: Any, obs: Tensor = OBS) -> Tensor:
    outputs, _ = model({"obs": obs})
    found: Tensor = outputs.log_softmax(-1)[:, 0].exp().mean() + (model.value_function() - obs[:, 1]).square().mean()
    return found


def by_torch(network: Any, leaf: Tensor) -> Any:
    """The forward pass that a drop-in stands for."""
    return network({"obs": leaf}, None)[:2]


def gradients(model: Any, calls: int) -> list[Tensor | None]:
    """Summed over calls; on a new graph each."""
    model.zero_grad()
    for number in range(calls):
        torch.autograd.backward(loss(model, OBS[number:]))
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def expect_gradients_of_torch(model: Any, calls: int = 1) -> None:
    in_c, forward = gradients(model, calls), model._forward
    model._forward = by_torch
    of_torch, model._forward = gradients(model, calls), forward
    assert [gradient is None for gradient in in_c] == [gradient is None for gradient in of_torch]
    for own, expected in zip(in_c, of_torch, strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-6)
    assert any(gradient is not None and gradient.abs().max() > 0 for gradient in in_c)


@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("settings", [{}, {"activation": "relu", "hiddens": (32,)}, {"activation": "elu"}])
@pytest.mark.parametrize("make", [TorchModel, QModel, Read])
def test_gradients_in_c_are_those_of_torch(make: Any, settings: dict[str, Any], calls: int) -> None:
    model = make(VECTOR, CHOICES, 3, settings)
    assert model._forward._native is not None
    expect_gradients_of_torch(model, calls)


@pytest.mark.parametrize("part", ["outputs", "values"])
@pytest.mark.parametrize("shares", [True, False])
def test_parameters_that_a_loss_does_not_reach_have_no_gradient(part: str, shares: bool) -> None:
    model: Any = TorchModel(VECTOR, CHOICES, 3, {}, actor_critic_share_weights=shares)
    found = []
    for forward in (model._forward, by_torch):
        model._forward = forward
        model.zero_grad()
        outputs, _ = model({"obs": OBS})
        torch.autograd.backward((outputs if part == "outputs" else model.value_function()).square().mean())
        found.append([p.grad is None for p in model.parameters()])
    assert found[0] == found[1]
    assert any(found[0])


def test_any_optimizer_moves_the_weights_whether_or_not_it_keeps_the_gradients() -> None:
    for to_none in (True, False):
        model = TorchModel(VECTOR, CHOICES, 3, {})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = loss(model).item()
        for _ in range(3):
            optimizer.zero_grad(set_to_none=to_none)
            torch.autograd.backward(loss(model))
            first = model.network.policy_head.weight.grad
            optimizer.step()
        assert loss(model).item() < before
        assert first is not None
        held = first.clone()
        torch.autograd.backward(loss(model))
        assert not torch.equal(first, held), "a second loss is added to the gradients of the first one"


def test_what_has_no_form_in_c_goes_through_torch() -> None:
    pictures = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)
    for model in (LSTMModel(VECTOR, CHOICES, 3, {}), TorchModel(pictures, CHOICES, 3, {})):
        assert model._forward._native is None
    assert not any(part.requires_grad for part in model({"obs": torch.zeros(2, 64, 64, 3, dtype=torch.uint8)})[1])


def copied(model: Any) -> Any:
    return copy.deepcopy(model)


def pickled(model: Any) -> Any:
    return pickle.loads(pickle.dumps(model))


@pytest.mark.parametrize("copy_of", [copied, pickled])
def test_a_copy_computes_and_learns_with_its_own_weights(copy_of: Any) -> None:
    model = TorchModel(VECTOR, CHOICES, 3, {})
    other = copy_of(model)
    with torch.no_grad():
        expected = model({"obs": OBS})[0]
        assert torch.equal(other({"obs": OBS})[0], expected)
        other.network.policy_head.bias.add_(1.0)
        torch.testing.assert_close(other({"obs": OBS})[0], expected + 1.0)
        assert torch.equal(model({"obs": OBS})[0], expected)
    expect_gradients_of_torch(other, 2)
    expect_gradients_of_torch(model, 2)


@pytest.mark.parametrize("name", ["policy_head.bias", "value_head.bias", "encoder.mlp.layers.0.weight"])
@pytest.mark.parametrize("replaces", [True, False])
def test_weights_that_were_moved_or_replaced_count(name: str, replaces: bool) -> None:
    model = TorchModel(VECTOR, CHOICES, 3, {})
    parameter, owner = model.network.get_parameter(name), model.network.get_submodule(name.rpartition(".")[0])
    if replaces:
        setattr(owner, name.rpartition(".")[2], nn.Parameter(parameter.detach() + 1.0))
    else:
        parameter.data = parameter.data + 1.0
    with torch.no_grad():
        found = model({"obs": OBS})[0], model.value_function()
        for own, expected in zip(found, by_torch(model.network, OBS), strict=True):
            assert torch.equal(own, expected)


def test_a_network_or_a_target_that_was_replaced_counts() -> None:
    model, other = (QModel(VECTOR, CHOICES, 3, {}) for _ in range(2))
    model.network, model.target = other.network, copy.deepcopy(other.target)
    with torch.no_grad():
        assert torch.allclose(model({"obs": OBS})[0], other({"obs": OBS})[0], atol=1e-5)
        assert torch.allclose(model.after(OBS), other.after(OBS), atol=1e-5)


def test_weights_that_change_between_the_two_ways_are_refused() -> None:
    model = TorchModel(VECTOR, CHOICES, 3, {})
    found = loss(model)
    model.load_state_dict({name: tensor + 1.0 for name, tensor in model.state_dict().items()})
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.backward(found)


@pytest.mark.parametrize("shape", [(70, 3), (70, 7), (5,)])
def test_observations_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    model = TorchModel(VECTOR, CHOICES, 3, {})
    with pytest.raises((RuntimeError, IndexError)):
        model({"obs": torch.zeros(shape)})


def test_a_second_derivative_is_refused_and_not_wrong() -> None:
    model = TorchModel(VECTOR, CHOICES, 3, {})
    first = torch.autograd.grad(loss(model), list(model.parameters()), create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first[0].sum().backward()  # type: ignore[no-untyped-call]
