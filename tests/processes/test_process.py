"""What processes of sf ask of the operating system."""

from __future__ import annotations

import ctypes
import pickle
import subprocess
import sys

import pytest

from sf.processes.failures import failure_of
from sf.processes.simulators import Subreaper

FAULTS_OF_64_MB = """
import resource
import numpy as np
from sf.machine.memory import keep_freed_memory

def touch():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(8_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_freed_memory()
print(touch(), touch())
"""


def test_freed_memory_is_used_again_without_the_kernel() -> None:
    finished = subprocess.run([sys.executable, "-c", FAULTS_OF_64_MB], capture_output=True, text=True, check=True)
    first, second = map(int, finished.stdout.split())
    assert second < 50 < first


def test_orphans_are_adopted_only_while_somebody_wants_them() -> None:
    libc, found = ctypes.CDLL(None), ctypes.c_int()
    first, second = Subreaper(), Subreaper()
    first.close()
    libc.prctl(37, ctypes.byref(found), 0, 0, 0)
    assert found.value == 1
    second.close()
    libc.prctl(37, ctypes.byref(found), 0, 0, 0)
    assert found.value == 0


@pytest.mark.parametrize("character", ["x", "ü", "𐀀", "\ud800"])
def test_fault_a4_failure_is_written_in_one_piece_whatever_its_text(character: str) -> None:
    failure = failure_of(ValueError(character * 2**20))
    assert "bytes are left out" in failure.message
    assert len(pickle.dumps(failure)) < 16_384, "from there on a pipe gets the length first"
    short = failure_of(ValueError(character * 100))
    assert short.message == character * 100
