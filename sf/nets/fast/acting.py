"""Acting on small batches in inference workers, with as little as possible around the arithmetic."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from sf.config.observation_groups import has_only_our_encoders
from sf.config.written_out import MOST_PRODUCTS, is_written_out
from sf.errors import InternalError
from sf.nets.actor_critic import ActorCritic, Observations
from sf.nets.fast.numpy_network import SmallNetwork
from sf.nets.outputs import CollectInfo, PolicyStep

Program = Callable[[Tensor, Tensor], tuple[Tensor, ...]]
"""From random numbers and one leaf, [B, ...], to actions, log-probabilities, values, parameters of the actions."""

log = logging.getLogger(__name__)

CHECKED_ROWS = (1, 3, 16)
ROUNDING = 2e-5
"""NumPy sums in another order: differences stay below this share of the largest number, and other mistakes do not."""
NOISE_ROWS = 1024
"""Random numbers for so many rows are drawn at once, unless they are too many."""
MOST_NOISE = 2**16
"""Random numbers drawn at once, if that is enough for a batch."""


class FastAct:
    """Called like `network.act`: computed in NumPy where that is faster, else by the network as it is written.

    Small things count here. The network takes 180 us for a batch of 64. Entering the inference mode by a decorator
    takes 11 us, and drawing two random numbers for each row 19 us. Even taking a slice of a tensor takes 8 us.
    """

    def __init__(self, network: ActorCritic) -> None:
        """Compares NumPy with the network where both could act.

        Args:
            network: shared, not copied; changes of its weights in place count here as well.
        """
        self._network, self._device = network, network.flat.device
        self._draw, self._noise_size = network.distribution.noise, network.distribution.noise_size
        self._noise: dict[tuple[torch.Generator | None, int], list[Tensor]] = {}
        self._inference_mode = torch.inference_mode()
        is_ours = network.flat.is_cpu and has_only_our_encoders(network.config)
        self._rows_ahead = NOISE_ROWS if is_ours else 0  # the others draw what `network.act` draws
        self._small = _checked_small_program(network)
        self.most_small_rows = 0 if self._small is None else most_rows(network)
        """Larger batches are left to torch."""

    def __call__(
        self,
        observations: Observations,
        state: Any,
        generator: torch.Generator | None = None,
        noise: Tensor | None = None,
    ) -> PolicyStep:
        """Draws from the generator for many batches of the same size at once.

        Args:
            observations: [B, *shape] per leaf.
            state: [B, S] memory before the step; a network without one hands on what it is given, such as ().
            generator: of the random numbers.
            noise: [B, n] random numbers in place of those of the generator.
        """
        first = next(iter(observations.values()))
        num_rows = first.shape[0]
        if noise is None:
            noise = self._next_noise(num_rows, generator)
        if self._small is not None and num_rows <= self.most_small_rows:
            actions, log_probs, values, params = self._small(noise, first)
            return PolicyStep(actions, state, CollectInfo(log_probs, values, params))
        with self._inference_mode:
            return self._network.act_with(observations, state, noise)

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
            rows = min(self._rows_ahead, MOST_NOISE // self._noise_size)
            batches = max(1, rows // max(1, num_rows))
            noise = self._draw(batches * num_rows, generator, self._device)
            waiting.extend(torch.split(noise, max(1, num_rows)))
        return waiting.pop()


def most_rows(network: ActorCritic) -> int:
    """The largest batch for which a network that is written out in NumPy is the faster one."""
    return MOST_PRODUCTS // network.flat.numel()


def small_program(network: ActorCritic) -> Program | None:
    """The network in NumPy, from tensors to tensors; None if it has parts that are not written out there."""
    if not network.flat.is_cpu or not is_written_out(network.info, network.config):
        return None
    act = SmallNetwork(network.info, network.config, network.flat.numpy())

    def program(noise: Tensor, observations: Tensor) -> tuple[Tensor, ...]:
        return tuple([torch.from_numpy(array) for array in act(noise.numpy(), observations.numpy())])

    return program


def compare_with_numpy(network: ActorCritic) -> None:
    """Before rollout workers act with what is written out.

    Raises:
        InternalError: it gives other numbers than the network.
    """
    with torch.random.fork_rng([]), torch.no_grad():
        on_host = ActorCritic(network.info, network.config)
        on_host.flat.copy_(network.flat)
    program = small_program(on_host)
    assert program is not None, "the configuration was checked"
    try:
        check(program, on_host)
    except ValueError:
        try:
            check(program, on_host, seed=1)  # rounding may decide a tie of two choices, but not again
        except ValueError as error:
            raise InternalError(
                f"The network acts differently in NumPy than in torch: {error}. Use --policy_workers_per_policy=1."
            ) from None


@torch.inference_mode()
def check(program: Program, network: ActorCritic, seed: int = 0) -> None:
    """Compares a program with the network, also under other weights, which are then as they were.

    Args:
        program: which stands for the network.
        network: with one leaf of numbers as the observation, and without recurrent layers.
        seed: of the observations, the random numbers and the weights.

    Raises:
        ValueError: there is a difference.
    """
    ((name, leaf),) = network.info.observations.items()
    random, flat = torch.Generator().manual_seed(seed), network.flat
    before = flat.clone()
    try:
        for rows in CHECKED_ROWS:
            noise = network.distribution.noise(rows, random)
            observations = (2 * torch.rand(rows, *leaf.shape, generator=random)).to(getattr(torch, leaf.dtype))
            step = network.act_with({name: observations}, None, noise)
            right = step.action, *step.info[:3]
            atol = 1e-6 + ROUNDING * max(float(x.abs().max()) for x in right if x.numel())
            for found, expected in zip(program(noise, observations), right, strict=True):
                # Not torch.testing, which imports sympy.
                if found.dtype != expected.dtype or not torch.allclose(found, expected, rtol=1e-5, atol=atol):
                    raise ValueError(f"the program gives {found.tolist()} where {expected.tolist()} is right")
            flat.add_(torch.rand(flat.shape, generator=random), alpha=0.1)  # and no deviation becomes negative
    finally:
        flat.copy_(before)


def _checked_small_program(network: ActorCritic) -> Program | None:
    program = small_program(network) if most_rows(network) else None
    try:
        if program is not None:
            check(program, network)
    except ValueError as error:
        log.warning("The network does not act in NumPy and takes longer: %s", error)
        return None
    return program
