"""Recurrent layers through sequences in C, against the cells of torch."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from torch import Tensor

from sf.config import LearnerConfig, ModelConfig
from sf.config.written_out import WIDEST_MEMORY
from sf.errors import UsageError
from sf.learner.acting_network import ActingNetwork
from sf.learner.optimizer import FlatAdam
from sf.machine.compiled import NoCompilerError
from sf.nets.fast import native_recurrent
from sf.nets.fast.native_recurrent import through_sequences
from sf.nets.recurrent import Memory
from sf.policy import ActorCritic
from sf.spaces import EnvInfo, LeafSpec
from tests.helpers.updates import BOX, OBS_SIZE, one_thread_and_seed

NUM_INPUTS = 7
close: Any = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    one_thread_and_seed()


def both(**settings: Any) -> tuple[Memory, Memory]:
    """A memory with weights and biases of all kinds, and the same in C."""
    memory = Memory(NUM_INPUTS, ModelConfig(use_rnn=True, **settings))
    for parameter in memory.parameters():
        torch.nn.init.normal_(parameter, std=memory.size**-0.5)
    native = copy.deepcopy(memory)
    native.through_sequences = through_sequences
    return memory, native


def gradients(memory: Memory, x: Tensor, state: Tensor, resets: Tensor, *wanted: Tensor) -> list[Tensor]:
    """Outputs, the state afterwards, and derivatives of everything, for weights of outputs and of that state."""
    x, state = (tensor.clone().requires_grad_() for tensor in (x, state))
    outputs, after = memory(x, state, resets)
    loss = sum((tensor * weights).sum() for tensor, weights in zip((outputs, after), wanted, strict=False))
    assert isinstance(loss, Tensor)
    loss.backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert state.grad is not None
    found = [parameter.grad for parameter in memory.parameters()]
    return [outputs.detach(), after.detach(), x.grad, state.grad, *(each for each in found if each is not None)]


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize(
    ("size", "layers", "num_steps", "num_sequences"),
    [(5, 1, 1, 1), (32, 1, 9, 1), (33, 2, 6, 3), (64, 1, 4, 11), (WIDEST_MEMORY, 1, 3, 2), (16, 3, 20, 20)],
)
def test_outputs_states_and_gradients_are_those_of_torch(
    kind: str, size: int, layers: int, num_steps: int, num_sequences: int
) -> None:
    memory, native = both(rnn_type=kind, rnn_size=size, rnn_num_layers=layers)
    x, state = torch.randn(num_steps * num_sequences, NUM_INPUTS), torch.randn(num_sequences, memory.state_size)
    resets = torch.rand(num_steps, num_sequences) < 0.3
    wanted = torch.randn(len(x), size), torch.randn_like(state)
    for number in (1, 2):  # of the outputs alone, as in training, and of the state as well
        here, there = (gradients(each, x, state, resets, *wanted[:number]) for each in (memory, native))
        assert len(here) == 4 + 4 * layers
        for one, other in zip(here, there, strict=True):
            torch.testing.assert_close(one, other, **close)
        for each in (memory, native):
            each.zero_grad()


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_nothing_comes_from_before_a_reset(kind: str) -> None:
    _, native = both(rnn_type=kind, rnn_size=8)
    resets = torch.tensor([[False, True], [True, False], [False, False]])
    x, state = torch.randn(6, NUM_INPUTS), torch.randn(2, native.state_size)
    found = gradients(native, x, state, resets, torch.ones(6, 8))
    other = gradients(native, x, 3.0 * state, resets, torch.ones(6, 8))
    changed = (found[0] != other[0]).any(-1).view(3, 2)
    assert changed.tolist() == [[True, False], [False, False], [False, False]]
    assert (found[3] != 0).any(-1).tolist() == [True, False]


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_inputs_in_any_order_of_memory(kind: str) -> None:
    memory, native = both(rnn_type=kind, rnn_size=8)
    x, state = torch.randn(NUM_INPUTS, 6).T, torch.randn(native.state_size, 2).T
    resets = torch.zeros(2, 3, dtype=torch.bool).T
    for one, other in zip(*(each(x, state, resets) for each in (memory, native)), strict=True):
        torch.testing.assert_close(one, other, **close)
    with torch.no_grad():
        torch.testing.assert_close(memory(x, state, resets)[0], native(x, state, resets)[0], **close)


def test_no_sequences() -> None:
    _, native = both(rnn_size=8)
    found = gradients(native, torch.zeros(0, NUM_INPUTS), torch.zeros(0, 8), torch.zeros(4, 0, dtype=torch.bool),
                      torch.ones(0, 8))  # fmt: skip
    assert found[0].shape == (0, 8)
    assert len(found) == 8, "with gradients of two weights and two biases"
    assert all((gradient == 0).all() for gradient in found[4:])


def test_what_is_not_a_number_stays_that() -> None:
    _, native = both(rnn_size=8)
    x = torch.zeros(3, NUM_INPUTS)
    x[1, 2] = torch.nan
    outputs, after = native(x, torch.zeros(1, 8), torch.zeros(3, 1, dtype=torch.bool))
    assert outputs.isnan().all(-1).tolist() == [False, True, True]
    assert after.isnan().all()


def acting(learner: dict[str, Any] | None = None, **model: Any) -> ActingNetwork:
    config = LearnerConfig(**(learner or {}))
    info = EnvInfo("test", 1, {"obs": LeafSpec((OBS_SIZE,), "float32")}, BOX)
    policy = ActorCritic(info, ModelConfig(**model))
    return ActingNetwork(policy, FlatAdam(policy, config), config)


def are_native(policy: ActorCritic) -> list[bool]:
    memories = [memory for memory in (policy.memory, policy.value_memory) if memory is not None]
    return [memory.through_sequences is not None for memory in memories]


def test_a_policy_that_learns_and_its_copies_use_it() -> None:
    policy = acting(use_rnn=True, actor_critic_share_weights=False).policy
    assert are_native(policy) == are_native(copy.deepcopy(policy)) == [True, True]
    assert are_native(acting().policy) == []


@pytest.mark.parametrize(
    ("learner", "model"),
    [
        ({"native_update": False}, {}),
        ({"torch_compile": True}, {}),
        ({}, {"rnn_size": WIDEST_MEMORY + 1}),
    ],
)
def test_torch_alone_where_it_is_asked_for_or_faster(learner: dict[str, Any], model: dict[str, Any]) -> None:
    assert are_native(acting(learner, use_rnn=True, **model).policy) == [False]


def test_torch_alone_without_a_compiler(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def missing() -> None:
        raise NoCompilerError("there is no C compiler cc")

    monkeypatch.setattr(native_recurrent, "functions", missing)
    with caplog.at_level(logging.INFO):
        assert are_native(acting(use_rnn=True).policy) == [False]
    assert "train with torch alone" in caplog.text
    assert "there is no C compiler cc" in caplog.text


def test_a_second_derivative_is_refused() -> None:
    _, native = both(rnn_size=8)
    x = torch.randn(3, NUM_INPUTS, requires_grad=True)
    outputs, _ = native(x, torch.zeros(1, 8), torch.zeros(3, 1, dtype=torch.bool))
    with pytest.raises(UsageError, match=r"no second derivatives\. Use --native_update=False"):
        torch.autograd.grad(outputs.sum(), x, create_graph=True)
