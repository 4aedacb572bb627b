"""Acting as a recorded sequence of operations, without the Python between them.

The network acts on small batches, where calling an operation from Python costs as much as the operation. A recording
by `torch.jit.trace` takes two thirds of the time. It holds references to the weights, so it follows when they change
in place. It would also hold decisions that were taken from the shapes of its example, so only networks of our own are
recorded, and the recording must give the same numbers for other batch sizes and other weights.

torch 2.13 calls `torch.jit` deprecated in favour of `torch.compile`, which needs a C++ compiler and two seconds and
80 MB more per process. Where there is no `torch.jit` any more, the network acts as it is written.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from sf.nets.actor_critic import ActorCritic
from sf.spaces import LeafSpec

Program = Callable[..., tuple[Tensor, ...]]
"""From random numbers and observations, [B, ...], to actions, log-probabilities, values, parameters of the actions."""

EXAMPLE_ROWS = 5
CHECKED_ROWS = (1, 3, 16)


def recorded(network: ActorCritic) -> Program:
    """The recording, from random numbers, leaves of the observation, and the memory if there is one.

    Raises:
        Exception: it cannot be made, or gives other numbers than the network.
    """
    program = Acting(network)
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # of deprecation, and that decisions are frozen, which is checked below
        traced = torch.jit.trace(program, program.example(EXAMPLE_ROWS), check_trace=False)  # type: ignore[no-untyped-call]
    run: Program = traced.forward
    check(run, network)
    return run


@torch.inference_mode()
def check(run: Program, network: ActorCritic, rounding: float = 0.0, seed: int = 0) -> None:
    """Compares with the network, also under other weights, which are then as they were.

    Args:
        run: the program.
        network: what it stands for.
        rounding: by how much, as a share of the largest number in the result, sums in another order may be off.
        seed: of the observations.

    Raises:
        ValueError: there is a difference.
    """
    program, flat = Acting(network, seed), network.flat
    before = flat.clone()
    try:
        for rows in CHECKED_ROWS:
            example = program.example(rows)
            right = program(*example)
            atol = 1e-6 + rounding * max(float(x.abs().max()) for x in right if x.numel())
            for found, expected in zip(run(*example), right, strict=True):  # torch.testing imports sympy
                if found.dtype != expected.dtype or not torch.allclose(found, expected, rtol=1e-5, atol=atol):
                    raise ValueError(f"the program gives {found.tolist()} where {expected.tolist()} is right")
            program.change_weights()
    finally:
        flat.copy_(before)


class Acting(nn.Module):
    """Acting from tensors to tensors."""

    def __init__(self, network: ActorCritic, seed: int = 0) -> None:
        super().__init__()
        self.network, self._generator = network, torch.Generator(network.flat.device).manual_seed(seed)

    def forward(self, noise: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Random numbers, leaves of the observation, and the memory if there is one; to actions, info, memory."""
        names, has_state = self.network.info.observations, self.network.state_size > 0
        observations = dict(zip(names, inputs, strict=False))
        step = self.network.act_with(observations, inputs[-1] if has_state else None, noise)
        return (step.action, *step.info, step.state) if has_state else (step.action, *step.info)

    def example(self, rows: int) -> tuple[Tensor, ...]:
        """Inputs of that many rows."""
        network, generator = self.network, self._generator
        observations = {name: self._leaf(leaf, rows) for name, leaf in network.info.observations.items()}
        tensors = [network.noise(observations, generator), *observations.values()]
        if network.state_size:
            tensors.append(self._random(rows, network.state_size))
        return tuple(tensors)

    def change_weights(self) -> None:
        """A little, and no deviation becomes negative."""
        self.network.flat.add_(self._random(*self.network.flat.shape), alpha=0.1)

    def _leaf(self, leaf: LeafSpec, rows: int) -> Tensor:
        if leaf.categories:
            first = torch.tensor(leaf.starts, device=self._generator.device).reshape(leaf.shape)
            return first.expand(rows, *leaf.shape).to(getattr(torch, leaf.dtype))
        return (2 * self._random(rows, *leaf.shape)).to(getattr(torch, leaf.dtype))

    def _random(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self._generator, device=self._generator.device)
