"""Acting on small batches with as little as possible around the arithmetic: what inference workers run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from sf.config.written_out import MOST_PRODUCTS, is_written_out
from sf.errors import InternalError
from sf.nets.actor_critic import ActorCritic, Observations
from sf.nets.fast.graphs import graphed
from sf.nets.fast.numpy_network import SmallNetwork
from sf.nets.fast.tracing import Program, check, recorded
from sf.nets.outputs import CollectInfo, PolicyStep
from sf.plugins import ENCODERS

Act = Callable[[Observations, Tensor, torch.Generator | None], PolicyStep]

log = logging.getLogger(__name__)

ROUNDING = 2e-5
"""NumPy sums in another order: differences stay below this share of the largest number, and other mistakes do not."""
NOISE_ROWS = 1024
"""Random numbers for so many rows are drawn at once, unless they are too many."""
MOST_NOISE = 2**16
"""Random numbers drawn at once, if that is enough for a batch."""


def fastest_act(network: ActorCritic, cuda_graphs: bool = False) -> Act:
    """Like `network.act`, but faster where it can be; the network is then for acting only, and has no gradients.

    Args:
        network: that acts.
        cuda_graphs: replay CUDA graphs if it is on an accelerator; results have to be read before the next ones.
    """
    if network.config.encoder != ENCODERS.default or not (network.flat.is_cpu or cuda_graphs):
        return network.act
    network.requires_grad_(False)
    try:
        return FastAct(network) if network.flat.is_cpu else FastAct(network, graphed(network))
    except Exception as error:  # whatever torch says; the network itself can always act
        log.warning("The forward pass is not recorded and takes longer: %s", error)
        return network.act


class FastAct:
    """Called like `network.act`, without the choice of the mode: in NumPy if that is faster, else as a program.

    Small things count here. For a batch of 64, where the recording takes 70 us, entering the inference mode by a
    decorator takes 11 us, drawing two random numbers for each row 19 us, and even taking a slice of a tensor 8.
    """

    def __init__(self, network: ActorCritic, program: Program | None = None) -> None:
        """Records, unless there is a program already.

        Raises:
            Exception: it cannot be recorded, or the recording gives other numbers.
        """
        self._names, self._has_state = tuple(network.info.observations), network.state_size > 0
        self._draw, self._device = network.distribution.noise, network.flat.device
        self._noise_size = network.distribution.noise_size
        self._noise: dict[tuple[torch.Generator | None, int], list[Tensor]] = {}
        self._inference_mode = torch.inference_mode()
        self._recording = recorded(network) if program is None else program
        self._small = _checked_small_program(network) if program is None else None
        self.most_small_rows = 0 if self._small is None else most_rows(network)
        """Larger batches are left to the recording."""

    def __call__(
        self, observations: Observations, state: Tensor, generator: torch.Generator | None = None
    ) -> PolicyStep:
        """Draws from the generator for many batches of the same size at once."""
        leaves = [observations[name] for name in self._names]
        num_rows = leaves[0].shape[0]
        noise = self._next_noise(num_rows, generator)
        if self._small is not None and num_rows <= self.most_small_rows:
            actions, log_probs, values, params = self._small(noise, *leaves)
        else:
            with self._inference_mode:
                if self._has_state:
                    actions, log_probs, values, params, state = self._recording(noise, *leaves, state)
                else:
                    actions, log_probs, values, params = self._recording(noise, *leaves)
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
            rows = min(NOISE_ROWS, MOST_NOISE // self._noise_size)
            batches = max(1, rows // max(1, num_rows))
            noise = self._draw(batches * num_rows, generator, self._device)
            waiting.extend(torch.split(noise, max(1, num_rows)))
        return waiting.pop()


def most_rows(network: ActorCritic) -> int:
    """The largest batch for which a network that is written out in NumPy is the faster one."""
    return MOST_PRODUCTS // network.flat.numel()


def small_program(network: ActorCritic) -> Program | None:
    """What the network does, in NumPy, from tensors to tensors; None if it has parts that are not written out there."""
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
        on_host = ActorCritic(network.info, network.config).requires_grad_(False)
        on_host.flat.copy_(network.flat)
    program = small_program(on_host)
    assert program is not None, "the configuration was checked"
    try:
        check(program, on_host, ROUNDING)
    except ValueError:
        try:
            check(program, on_host, ROUNDING, seed=1)  # rounding may decide a tie of two choices, but not again
        except ValueError as error:
            raise InternalError(
                f"The network acts differently in NumPy than in torch: {error}. Use --policy_workers_per_policy=1."
            ) from None


def _checked_small_program(network: ActorCritic) -> Program | None:
    program = small_program(network) if most_rows(network) else None
    try:
        if program is not None:
            check(program, network, ROUNDING)
    except ValueError as error:
        log.warning("The network does not act in NumPy and takes longer: %s", error)
        return None
    return program
