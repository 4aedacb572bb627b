"""Recurrent layers through whole sequences in C; torch takes ten operations for each step, and as many on the way back.

`recurrent.c` has the formulas of `torch.nn.GRUCell` and `torch.nn.LSTMCell`. Numbers differ by the order of sums.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sf.config.written_out import WIDEST_MEMORY
from sf.errors import UsageError
from sf.machine.compiled import NoCompilerError, library
from sf.nets.actor_critic import ActorCritic

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("recurrent.c")
GRU, LSTM = range(2)
KEPT = {GRU: 4, LSTM: 5}
"""Numbers for each unit and step that the way back reads."""
Pointer = ctypes.c_void_p


@functools.cache
def functions() -> Any:
    """The compiled file.

    Raises:
        NoCompilerError: see `sf.machine.compiled.library`.
    """
    found = library(SOURCE)
    count = ctypes.c_int64
    found.sf_sequence_scratch.argtypes, found.sf_sequence_scratch.restype = [count] * 3, count
    found.sf_sequence.argtypes, found.sf_sequence.restype = [*[count] * 4, *[Pointer] * 9], None
    found.sf_through_sequence.argtypes = [*[count] * 4, *[Pointer] * 9]
    found.sf_through_sequence.restype = None
    return found


class _Sequence(torch.autograd.Function):
    """A layer through sequences, from the products with its inputs, weights and biases of its state, and that state."""

    @staticmethod
    def forward(
        ctx: Any, kind: int, x: Tensor, weight: Tensor, bias: Tensor, state: Tensor, resets: Tensor
    ) -> tuple[Tensor, Tensor]:
        (num_steps, num_sequences), size = resets.shape, weight.shape[1]
        ctx.sizes = kind, num_steps, num_sequences, size
        states, kept = (torch.empty(len(x), width) for width in (state.shape[1], KEPT[kind] * size))
        outputs, after = torch.empty(len(x), size), state.clone(memory_format=torch.contiguous_format)
        tensors = (x.contiguous(), weight, bias, resets.contiguous(), after, states, kept, outputs, _scratch(ctx.sizes))
        functions().sf_sequence(*ctx.sizes, *(tensor.data_ptr() for tensor in tensors))
        ctx.save_for_backward(weight, tensors[3], states, kept)
        return outputs, after

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[None, Tensor, Tensor, Tensor, Tensor, None]:
        if torch.is_grad_enabled():
            raise UsageError("Recurrent layers in C have no second derivatives. Use --native_update=False.")
        weight, resets, states, kept = ctx.saved_tensors
        d_outputs, d_after = grad_outputs
        d_state = d_after.clone(memory_format=torch.contiguous_format)
        d_s = torch.empty(len(states), len(weight))
        d_x = torch.empty_like(d_s) if ctx.sizes[0] == GRU else d_s
        tensors = (weight, resets, states, kept, d_outputs.contiguous(), d_state, d_x, d_s, _scratch(ctx.sizes))
        functions().sf_through_sequence(*ctx.sizes, *(tensor.data_ptr() for tensor in tensors))
        return None, d_x, d_s.T @ states[:, : weight.shape[1]], d_s.sum(0), d_state, None


def _scratch(sizes: tuple[int, int, int, int]) -> Tensor:
    kind, _, num_sequences, size = sizes
    return torch.empty(functions().sf_sequence_scratch(kind, num_sequences, size))


def through_sequences(cell: nn.Module, x: Tensor, state: Tensor, resets: Tensor) -> tuple[Tensor, Tensor]:
    """A GRU or LSTM cell through sequences.

    Args:
        cell: `torch.nn.GRUCell` or `torch.nn.LSTMCell` on the CPU.
        x: [T·B, num_inputs] in the order of time.
        state: [B, size] before the first step; [B, 2·size] of an LSTM, its output first.
        resets: [T, B] bool, whether the state is 0 before the step.

    Returns:
        [T·B, size], and the state after the last step.
    """
    assert isinstance(cell, (nn.GRUCell, nn.LSTMCell))
    kind = GRU if isinstance(cell, nn.GRUCell) else LSTM
    products = functional.linear(x, cell.weight_ih, cell.bias_ih)
    found: tuple[Tensor, Tensor] = _Sequence.apply(kind, products, cell.weight_hh, cell.bias_hh, state, resets)  # type: ignore[no-untyped-call]
    return found


def remember_in_c(policy: ActorCritic) -> None:
    """Has the recurrent layers of a policy go through sequences in C, where they can; else it is told once."""
    memories = [memory for memory in (policy.memory, policy.value_memory) if memory is not None]
    if not memories or policy.flat.device.type != "cpu" or policy.config.rnn_size > WIDEST_MEMORY:
        return
    try:
        functions()
    except NoCompilerError as error:
        log.info("Recurrent layers train with torch alone, which takes several times as long: %s.", error)
        return
    for memory in memories:
        memory.through_sequences = through_sequences
