"""What processes of sf ask of the operating system."""

from __future__ import annotations

import ctypes
import subprocess
import sys

from sf.simulators import Subreaper

FAULTS_OF_64_MB = """
import resource
import numpy as np
from sf.process import keep_freed_memory

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
