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


class Scaled(TorchModel):
    """A subclass that may do with the network what it likes."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.network.policy_head = nn.Linear(64, 3)


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


def gradients(model: Any, calls: int) -> list[Tensor]:
    """Summed over calls; on a new graph each."""
    model.zero_grad()
    for number in range(calls):
        torch.autograd.backward(loss(model, OBS[number:]))
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("settings", [{}, {"activation": "relu", "hiddens": (32,)}, {"activation": "elu"}])
@pytest.mark.parametrize("make", [TorchModel, QModel, Read])
def test_gradients_in_c_are_those_of_torch(make: Any, settings: dict[str, Any], calls: int) -> None:
    model = make(VECTOR, CHOICES, 3, settings)
    assert model._in_c is not None
    in_c = gradients(model, calls)
    model._in_c = None
    for own, of_torch in zip(in_c, gradients(model, calls), strict=True):
        torch.testing.assert_close(own, of_torch, rtol=1e-4, atol=1e-6)
    assert any(gradient.abs().max() > 0 for gradient in in_c)


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


def test_only_networks_as_they_were_made_go_through_c() -> None:
    changed = Scaled(VECTOR, CHOICES, 3, {})
    assert changed._in_c is None
    outputs, _ = changed({"obs": OBS})
    head = changed.network.policy_head
    assert outputs.grad_fn is not None
    assert not torch.equal(head.weight, torch.zeros_like(head.weight))
    assert LSTMModel(VECTOR, CHOICES, 3, {})._in_c is None
    assert TorchModel(gym.spaces.Box(0, 255, (64, 64, 3), np.uint8), CHOICES, 3, {})._in_c is None


def test_a_model_that_was_moved_or_copied_computes_with_its_own_weights() -> None:
    model = TorchModel(VECTOR, CHOICES, 3, {})
    with torch.no_grad():
        expected = model({"obs": OBS})[0]
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(other({"obs": OBS})[0], expected)
            other.network.policy_head.bias.add_(1.0)
            torch.testing.assert_close(other({"obs": OBS})[0], expected + 1.0)
            assert torch.equal(model({"obs": OBS})[0], expected)
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()
        model.network.policy_head.bias.add_(2.0)
        torch.testing.assert_close(model({"obs": OBS})[0], expected + 2.0)


def test_a_second_derivative_is_refused_and_not_wrong() -> None:
    model = TorchModel(VECTOR, CHOICES, 3, {})
    first = torch.autograd.grad(loss(model), list(model.parameters()), create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first[0].sum().backward()  # type: ignore[no-untyped-call]
