"""The memory of orders and calls to workers."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from sf.plans import WorkerSet
from tests.helpers.planned import TEN_STEPS, CountingPolicy


def shared_memory() -> int:
    """Bytes of shared memory that this process has open."""
    found: dict[int, int] = {}
    for path in Path("/proc/self/fd").iterdir():
        try:
            if os.readlink(path).startswith("/memfd:sf"):
                status = os.stat(path)
                found[status.st_ino] = 512 * status.st_blocks
        except FileNotFoundError:
            pass  # that of the directory
    return sum(found.values())


def test_worker_without_orders_takes_no_memory_for_them() -> None:
    before = shared_memory()
    with WorkerSet(CountingPolicy, {"env": TEN_STEPS, "rollout_fragment_length": 15}) as workers:
        workers.local_worker().sample()
        assert shared_memory() - before < 1 << 20  # orders would need 64 MiB


@pytest.mark.more
def test_large_functions_arrive_whole_and_their_memory_is_given_back() -> None:
    large = np.random.default_rng(1).integers(0, 255, 20 << 20, np.uint8)
    total = int(large.sum())
    with WorkerSet(CountingPolicy, {"env": TEN_STEPS, "num_workers": 1}) as workers:
        workers.remote_workers()
        before = shared_memory()
        for _ in range(3):
            assert workers.foreach_worker(lambda worker: int(large.sum())) == [total] * 2
        workers.foreach_worker(lambda worker: None)
        assert shared_memory() - before < 1 << 20
