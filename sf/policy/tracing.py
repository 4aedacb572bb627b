"""Acting as a recorded sequence of operations, without the Python between them.

The network acts on small batches, where calling an operation from Python costs as much as the operation. A recording
by `torch.jit.trace` takes two thirds of the time. It holds references to the weights, so it follows when they change
in place. It would also hold decisions that were taken from the shapes of its example, so only networks of our own are
recorded, and the recording must give the same numbers for other batch sizes and other weights.

torch 2.13 calls `torch.jit` deprecated in favour of `torch.compile`, which needs a C++ compiler and two seconds and
80 MB more per process. Where there is no `torch.jit` any more, the network acts as it is written.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sf.models import AUTO
from sf.policy.actor_critic import ActorCritic, Observations
from sf.policy.steps import CollectInfo, PolicyStep
from sf.spaces import LeafSpec

Act = Callable[[Observations, Tensor, torch.Generator | None], PolicyStep]

log = logging.getLogger(__name__)

EXAMPLE_ROWS = 5
CHECKED_ROWS = (1, 3, 16)
NOISE_ROWS = 1024
"""Random numbers for so many rows are drawn at once."""


def fastest_act(network: ActorCritic) -> Act:
    """Like `network.act`, but faster where it can be; the network is then for acting only, and has no gradients."""
    if network.config.encoder != AUTO:
        return network.act
    network.requires_grad_(False)
    try:
        return RecordedAct(network)
    except Exception as error:  # whatever torch says; the network itself can always act
        log.warning("The forward pass is not recorded and takes longer: %s", error)
        return network.act


class RecordedAct:
    """Called like `network.act`, without the choice of the mode.

    Small things count here. For a batch of 64, where the recording takes 70 us, entering the inference mode by a
    decorator takes 11 us, drawing two random numbers for each row 19 us, and even taking a slice of a tensor 8.
    """

    def __init__(self, network: ActorCritic) -> None:
        """Records.

        Raises:
            Exception: it cannot be recorded, or the recording gives other numbers.
        """
        self._names, self._has_state = tuple(network.info.observations), network.state_size > 0
        self._draw, self._device = network.distribution.noise, network.flat.device
        self._noise: dict[tuple[torch.Generator | None, int], list[Tensor]] = {}
        self._inference_mode = torch.inference_mode()
        program = _Program(network)
        with warnings.catch_warnings(), self._inference_mode:
            warnings.simplefilter("ignore")  # of deprecation, and that decisions are frozen, which is checked below
            example = program.example(EXAMPLE_ROWS)
            traced = torch.jit.trace(program, example, check_trace=False)  # type: ignore[no-untyped-call]
            self._run = traced.forward
            _check(self._run, program)

    def __call__(
        self, observations: Observations, state: Tensor, generator: torch.Generator | None = None
    ) -> PolicyStep:
        """Draws from the generator for many batches of the same size at once."""
        leaves = [observations[name] for name in self._names]
        with self._inference_mode:
            noise = self._next_noise(leaves[0].shape[0], generator)
            if self._has_state:
                actions, log_probs, values, params, state = self._run(noise, *leaves, state)
            else:
                actions, log_probs, values, params = self._run(noise, *leaves)
        return PolicyStep(actions, state, CollectInfo(log_probs, values, params))

    def state(self) -> dict[str, Any]:
        """The random numbers that are drawn and not used, in plain JSON types."""
        return {str(rows): torch.stack(waiting).tolist() for (_, rows), waiting in self._noise.items() if waiting}

    def load_state(self, state: Mapping[str, Any], generator: torch.Generator) -> None:
        """The inverse of `state`, where all calls had the same generator."""
        noise = {int(rows): torch.tensor(waiting, device=self._device) for rows, waiting in state.items()}
        self._noise = {(generator, rows): list(waiting) for rows, waiting in noise.items()}

    def _next_noise(self, num_rows: int, generator: torch.Generator | None) -> Tensor:
        """Random numbers for one batch, from some that are drawn for several batches of this size."""
        waiting = self._noise.setdefault((generator, num_rows), [])
        if not waiting:
            batches = max(1, NOISE_ROWS // max(1, num_rows))
            noise = self._draw(batches * num_rows, generator, self._device)
            waiting.extend(torch.split(noise, max(1, num_rows)))
        return waiting.pop()


class _Program(nn.Module):
    """Acting from tensors to tensors."""

    def __init__(self, network: ActorCritic) -> None:
        super().__init__()
        self.network, self._generator = network, torch.Generator(network.flat.device).manual_seed(0)

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


def _check(run: Callable[..., tuple[Tensor, ...]], program: _Program) -> None:
    """Raises where a recording and its program differ; the weights are then as they were."""
    flat = program.network.flat
    before = flat.clone()
    try:
        for rows in CHECKED_ROWS:
            example = program.example(rows)
            for found, expected in zip(run(*example), program(*example), strict=True):  # torch.testing imports sympy
                if found.dtype != expected.dtype or not torch.allclose(found, expected, rtol=1e-5, atol=1e-6):
                    raise ValueError(f"the recording gives {found.tolist()} where {expected.tolist()} is right")
            program.change_weights()
    finally:
        flat.copy_(before)
