"""Functions of tensors that are recorded once and launched at once: CUDA graphs, and the same elsewhere without one.

A forward pass of a small network is some forty operations that take a microsecond each on the device. To launch them
takes 5 to 10 us each, so the device waits for the host. A CUDA graph (`torch.cuda.CUDAGraph`) is launched as one. It
computes on the same memory each time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from sf.config.observation_groups import has_only_our_encoders
from sf.nets.actor_critic import ActorCritic

log = logging.getLogger(__name__)

WARM_UP = 3
"""Calls before one is recorded, in which libraries choose their kernels."""

_one_recorder = threading.Lock()
"""Held while a thread records."""

Result = TypeVar("Result")
Replay = Callable[[], None]
Record = Callable[[Callable[[], None]], Replay]
"""From a function of tensors that stay in their places to one that computes the same again."""


class Recording(Generic[Result]):
    """A function without arguments whose inputs stay in their places; its result is good until the next call."""

    def __init__(self, compute: Callable[[], Result], record: Record) -> None:
        """Records it; it was warmed up."""
        self._results: list[Result] = []

        @torch.no_grad()
        def compute_once() -> None:
            self._results[:] = [compute()]

        self._replay = record(compute_once)

    def __call__(self) -> Result:
        self._replay()
        return self._results[0]


class GraphRecorder(Protocol):
    """Makes recordings."""

    def warm_up(self, compute: Callable[[], None]) -> None:
        """Computes a few times, so that nothing is made or chosen for the first time in a recording."""

    def capture(self, compute: Callable[[], None]) -> Replay:
        """Records something that was warmed up; on CUDA without computing it."""


class Anew:
    """Records nothing, where launches cost little: computes again each time."""

    def warm_up(self, compute: Callable[[], None]) -> None:
        """See `GraphRecorder`."""
        compute()

    def capture(self, compute: Callable[[], None]) -> Replay:
        """See `GraphRecorder`."""
        compute()
        return compute


class CudaGraphs:
    """Records CUDA graphs that share their memory, because none is launched before the last one has been read."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def warm_up(self, compute: Callable[[], None]) -> None:
        """See `GraphRecorder`."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                compute()
        torch.cuda.current_stream().wait_stream(stream)

    def capture(self, compute: Callable[[], None]) -> Replay:
        """See `GraphRecorder`."""
        graph = torch.cuda.CUDAGraph()
        # Other threads of the process, such as those of a simulator, may allocate memory meanwhile, but not record.
        with _one_recorder, torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            compute()
        replay: Replay = graph.replay
        return replay


def recorded(compute: Callable[[], Result], recorder: GraphRecorder) -> Recording[Result]:
    """Warms up, then records; where that fails, one line says so, and each call computes anew."""

    def without_result() -> None:
        compute()

    with torch.no_grad():
        recorder.warm_up(without_result)
    try:
        return Recording(compute, recorder.capture)
    except RuntimeError as error:
        log.warning("Acting is not recorded and takes longer: %s", " ".join(str(error).split())[:300])
        return Recording(compute, Anew().capture)


def can_record(network: ActorCritic) -> bool:
    """Whether forward passes can be CUDA graphs; encoders of the user may decide in Python what they compute."""
    return network.flat.is_cuda and has_only_our_encoders(network.config)


def recorder_for(network: ActorCritic) -> GraphRecorder:
    """CUDA graphs where they can be."""
    return CudaGraphs() if can_record(network) else Anew()


def random_rows(network: ActorCritic, rows: int) -> Tensor:
    """[rows, n] a place for random numbers of actions."""
    return torch.zeros(rows, network.distribution.noise_size, device=network.flat.device)
