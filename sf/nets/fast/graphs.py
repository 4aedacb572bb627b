"""Acting as CUDA graphs: one launch for a whole forward pass.

Launching the hundred or so operations of a small forward pass takes longer than the device needs for them. A graph
holds them all, for one batch size and fixed places in memory. So there is one for each power of two, made when it is
first needed: what comes in is copied to its places, and rows that are missing are left as they were. The graph reads
the weights where they are, so it follows when they change in place.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sf.nets.actor_critic import ActorCritic
from sf.nets.fast.tracing import Acting, Program, check

Replay = Callable[[], tuple[Tensor, ...]]
"""Computes with what its places hold now; what it gives back is good until the next replay of any graph."""
Capture = Callable[[Program, tuple[Tensor, ...]], Replay]
"""From a program, and the places of its inputs."""

FEWEST_ROWS = 8
WARM_UP = 3
"""Runs before a capture, in which libraries choose their kernels and take their memory."""
ROUNDING, ROUNDING_OF_BFLOAT16 = 2e-5, 2e-2
"""Batches of other sizes may be summed in another order."""


def graphed(network: ActorCritic) -> Program:
    """What the network does in acting, replayed; to be called in the inference mode.

    Raises:
        Exception: it cannot be captured, or gives other numbers.
    """
    run = Bucketed(Acting(network), CaptureOnCuda())
    rounding = ROUNDING_OF_BFLOAT16 if network.bf16 else ROUNDING
    try:
        check(run, network, rounding)
    except ValueError:
        check(run, network, rounding, seed=1)  # rounding may decide a tie of two choices, but not again
    return run


class Bucketed:
    """A program for any number of rows, by captures for powers of two."""

    def __init__(self, program: Program, capture: Capture) -> None:
        """Captures nothing yet.

        Args:
            program: from tensors [B, ...] to tensors [B, ...], each row for itself.
            capture: makes a replay for one batch size.
        """
        self._program, self._capture = program, capture
        self._replays: dict[int, tuple[tuple[Tensor, ...], Replay]] = {}

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Results for these rows; they have to be read before the next call."""
        num_rows = len(inputs[0])
        if not num_rows:
            return self._program(*inputs)
        size = bucket_of(num_rows)
        if size not in self._replays:
            self._replays[size] = self._captured(inputs, size)
        places, replay = self._replays[size]
        for place, given in zip(places, inputs, strict=True):
            place[:num_rows].copy_(given)
        return tuple([result[:num_rows] for result in replay()])

    def _captured(self, inputs: tuple[Tensor, ...], size: int) -> tuple[tuple[Tensor, ...], Replay]:
        # Full of the first row: zeros need not be what a program can take, such as categories that begin with 1.
        places = tuple([given[:1].expand(size, *given.shape[1:]).clone() for given in inputs])
        return places, self._capture(self._program, places)


def bucket_of(num_rows: int) -> int:
    """The batch size that takes so many rows."""
    return max(FEWEST_ROWS, 1 << (num_rows - 1).bit_length())


class CaptureOnCuda:
    """Captures graphs that take turns, and so share the memory of what they compute in between."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, program: Program, places: tuple[Tensor, ...]) -> Replay:
        """See `Capture`."""
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_UP):
                program(*places)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            results = program(*places)

        def replay() -> tuple[Tensor, ...]:
            graph.replay()
            return results

        return replay
