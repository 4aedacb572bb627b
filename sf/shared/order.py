"""How a word in shared memory hands data over, also where a processor reorders stores and loads.

    publish    data is written, fence, word is written    by the process that hands over
    observe    word is read, fence, data is read          by the process that takes over

Memory that is written again while another process may read it needs the same fences the other way round, as in the
sequence locks of Boehm (2012, "Can seqlocks get along with programming language memory models?", section 5):

    withdraw   word is written, fence, data is written    before the writer changes the data
    recheck    data is read, fence, word is read          by a reader, whose data is good if the word is the same

The data may also be loads: a learner has read a slot before it publishes that the slot is free. A word that hands over
nothing but itself, such as an order to stop, takes a plain store and a plain load. A look at a word that is followed by
`observe` may be plain as well.

On x86-64 no store becomes visible before an older store or load, and no load comes before an older load (Intel 64 and
IA-32 Architectures Software Developer's Manual, volume 3A, "Memory Ordering"). There the four operations are a plain
store and a plain load. Elsewhere the fence is `atomic_thread_fence(memory_order_acq_rel)` of C11, section 7.17.4,
compiled once for the machine. Where there is no compiler, a semaphore of the C library stands in for it. Raising it is
a release and taking it an acquire, and neither x86 nor ARM moves a later acquire before a release (Pulte et al. 2018,
"Simplifying ARM Concurrency", section 4). A semaphore can be used by several threads and signal handlers at once.

A word has 64 bits and is aligned, so 64-bit processors store and load it as a whole (`sf.machine.limits`). A model in
`tests/shared/test_order.py` goes through all orders that weaker processors may choose.
"""

from __future__ import annotations

import ctypes
import operator
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

IN_STORE_ORDER = "x86_64", "AMD64"
"""Names of the processors that need no fence."""
SOURCE = Path(__file__).with_name("fence.c")
SEMAPHORE_BYTES = 64
"""No C library has a larger `sem_t`."""

Fence = Callable[[], object]


class Operations(NamedTuple):
    """The four operations of a processor. Words are an array or a view of memory, and an index names some of them."""

    publish: Callable[[Any, Any, Any], None]
    observe: Callable[[Any, Any], Any]
    withdraw: Callable[[Any, Any, Any], None]
    recheck: Callable[[Any, Any], Any]


PLAIN = Operations(operator.setitem, operator.getitem, operator.setitem, operator.getitem)


def fenced(fence: Fence) -> Operations:
    """The operations where stores and loads may be reordered."""
    array = np.ndarray

    def publish(words: Any, index: Any, value: Any) -> None:
        fence()
        words[index] = value

    def observe(words: Any, index: Any) -> Any:
        seen = words[index]
        if type(seen) is array:  # in a quarter of the time of isinstance
            seen = seen.copy()  # a view would be read after the fence
        fence()
        return seen

    def withdraw(words: Any, index: Any, value: Any) -> None:
        words[index] = value
        fence()

    def recheck(words: Any, index: Any) -> Any:
        fence()
        return words[index]

    return Operations(publish, observe, withdraw, recheck)


def compiled_fence() -> Fence:
    """The fence of C11.

    Raises:
        NoCompilerError: it cannot be compiled.
    """
    from sf.machine.compiled import library

    path = library(SOURCE)._name
    fence = ctypes.PyDLL(path).fence  # other libraries let another thread run meanwhile, which takes longer
    fence.argtypes, fence.restype = (), None
    return fence


def semaphore_fence() -> Fence:
    """Raises and takes a semaphore of this process."""
    libc = ctypes.PyDLL(None)
    semaphore = ctypes.create_string_buffer(SEMAPHORE_BYTES)
    if libc.sem_init(semaphore, 0, 0):
        raise OSError("sem_init failed")
    place, release, acquire = ctypes.addressof(semaphore), libc.sem_post, libc.sem_trywait
    for function in (release, acquire):
        function.argtypes, function.restype = (ctypes.c_void_p,), None

    def fence(_keep: object = semaphore) -> None:
        release(place)
        acquire(place)

    return fence


def _chosen() -> tuple[Operations, str]:
    """The operations for this processor, and a few words about them."""
    if platform.machine() in IN_STORE_ORDER:
        return PLAIN, "stores in order"
    from sf.machine.compiled import NoCompilerError

    try:
        return fenced(compiled_fence()), "fences"
    except NoCompilerError:
        return fenced(semaphore_fence()), "fences by a semaphore"


OPERATIONS, DESCRIPTION = _chosen()
publish, observe, withdraw, recheck = OPERATIONS
