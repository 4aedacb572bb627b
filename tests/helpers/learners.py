"""Learners of one policy in processes of their own: of one run, or one in each of several ranks."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import TCPStore

from sf.learner.peers import Peers, peers_of
from sf.learner.ranks import Ranks
from sf.machine.rank import Rank
from sf.shared.arena import Arena, Field
from sf.shared.doorbell import Doorbell
from sf.shared.exchange import exchange_fields
from sf.shared.leaving import leaving_fields
from sf.shared.progress import Progress

DEADLINE_S = 60.0


@contextlib.contextmanager
def of_one_run(number: int) -> Iterator[list[Callable[[], Peers]]]:
    """Makers of the learners of one run, each called in a process of its own."""
    arena, bells = Arena(exchange_fields(1, number)), [Doorbell() for _ in range(number)]
    yield [partial(peers_of, 0, index, arena, bells) for index in range(number)]


@contextlib.contextmanager
def of_several_ranks(number: int) -> Iterator[list[Callable[[], Peers]]]:
    """The same for ranks, beside a store as torchrun has it."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    fields = {"run_state": Field((1,), "int64"), "progress": Field((1,), "int64"), **leaving_fields()}
    yield [
        partial(rank_in, Arena(fields), Doorbell(), Rank(index, number, index, number, "127.0.0.1", store.port))
        for index in range(number)
    ]


def rank_in(arena: Arena, bell: Doorbell, rank: Rank, enough: int | None = None) -> Ranks:
    return Ranks(rank, 0, arena, bell, Progress(arena["progress"], 0), enough)


Makers = Callable[[int], contextlib.AbstractContextManager[list[Callable[[], Peers]]]]
EACH_WAY = pytest.mark.parametrize("makers", [of_one_run, of_several_ranks])


def together(makers: Makers, function: Any, *arguments: list[Any]) -> list[Any]:
    """What a function returns in as many processes as there are arguments, each of which is a learner of policy 0."""
    with makers(len(arguments)) as join:
        return called(function, join, arguments)


def called(function: Any, join: list[Callable[[], Peers]], arguments: Sequence[list[Any]]) -> list[Any]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "torch._dynamo", "sf.learner.update"])  # else each learner loads torch
    ends, processes = [], []
    for maker, own in zip(join, arguments, strict=True):
        end, child_end = context.Pipe(duplex=False)
        process = context.Process(target=call, args=(function, maker, pickle.dumps(own), child_end))
        process.start()
        child_end.close()
        ends.append(end)
        processes.append(process)
    try:
        assert all(end.poll(DEADLINE_S) for end in ends), "the learners wait for each other"
        return [pickle.loads(end.recv_bytes()) for end in ends]
    finally:
        for process in processes:
            process.kill()
            process.join()


def call(function: Any, join: Callable[[], Peers], own: bytes, end: Connection) -> None:
    torch.set_num_threads(1)
    answer = function(join(), *pickle.loads(own))
    # Not `send`, which shares the memory of tensors with a process that may be gone by then.
    end.send_bytes(pickle.dumps(answer))
