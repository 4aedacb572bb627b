"""The arena: one nameless block, seen by every process without a message (row S2)."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import resource
import signal
import time
from multiprocessing.connection import Connection

import numpy as np
import pytest

from sf.errors import ResourceError
from sf.shared.arena import Arena, Field, SharedBlock
from sf.shared.doorbell import Doorbell
from tests.helpers.commands import expect_no_shared_memory_but, shared_memory


def _write_through_another_view(arena: Arena, bell: Doorbell, reply: Doorbell) -> None:
    arena["numbers"][2] = 7
    bell.ring()
    assert reply.wait(30)
    arena["numbers"][3] = arena["numbers"][0] + 1
    bell.ring()


def test_s2_write_in_one_process_is_read_in_another() -> None:
    arena, bell, reply = Arena({"numbers": Field((4,), "int64", -1)}), Doorbell(), Doorbell()
    process = multiprocessing.get_context("spawn").Process(
        target=_write_through_another_view, args=(arena, bell, reply), daemon=True
    )
    process.start()
    assert bell.wait(30)
    assert arena["numbers"].tolist() == [-1, -1, 7, -1]
    arena["numbers"][0] = 41
    reply.ring()
    assert bell.wait(30)
    assert arena["numbers"].tolist() == [41, -1, 7, 42]
    process.join()
    assert process.exitcode == 0


def test_arrays_do_not_overlap() -> None:
    arena = Arena({"a": Field((3,), "float32", float("nan")), "b": Field((2, 2), "int64"), "c": Field((0,), "bool")})
    arena["b"][:] = 5
    assert np.isnan(arena["a"]).all()
    arena["a"][:] = 1
    assert (arena["b"] == 5).all()


def test_memory_has_no_name() -> None:
    before = shared_memory()
    arena = Arena({"big": Field((1 << 20,), "float32")})
    arena["big"][:] = 1
    expect_no_shared_memory_but(before)


def test_too_much_memory_is_refused_with_advice() -> None:
    with pytest.raises(ResourceError, match="Use a smaller --rollout"):
        SharedBlock().allocate(1 << 50)


def test_fault_c1_memory_is_there_before_anybody_touches_it() -> None:
    """Else a full machine would be a bus error in the middle of the run."""
    block = SharedBlock()
    block.allocate(10 * 2**20)
    assert os.fstat(block.fd).st_blocks * 512 >= block.num_bytes == 10 * 2**20


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOMEM])
def test_fault_c1_memory_that_somebody_else_was_faster_to_take(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(ResourceError, match=r"Shared memory needs 10 MiB.* Use a smaller --rollout"):
        SharedBlock().allocate(10 * 2**20)


def test_ring_before_the_wait_is_remembered() -> None:
    bell = Doorbell()
    bell.ring()
    bell.ring()
    assert bell.wait(0)
    assert not bell.wait(0)


def test_bell_may_have_a_descriptor_beyond_1024() -> None:
    """As in a run with many workers, for which the limit is raised."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    try:
        low = os.eventfd(0, os.EFD_NONBLOCK)
        bell = Doorbell(fcntl.fcntl(low, fcntl.F_DUPFD, 2000))
        os.close(low)
        assert bell.fd >= 2000
        assert not bell.wait(0.001)
        bell.ring()
        assert bell.wait(1.0)
        del bell
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _hold(arena: Arena, up: Connection) -> None:
    up.send(os.getpid())
    time.sleep(60)


def test_killed_process_leaves_nothing_behind() -> None:
    before = shared_memory()
    context = multiprocessing.get_context("spawn")
    parent, child = context.Pipe(duplex=False)
    process = context.Process(target=_hold, args=(Arena({"x": Field((1000,), "int64")}), child), daemon=True)
    process.start()
    os.kill(parent.recv(), signal.SIGKILL)
    process.join()
    expect_no_shared_memory_but(before)
