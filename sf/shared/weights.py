"""Published weights: the flat vector of one policy and the version it belongs to, read together.

    header   latest | begun[0] begun[1]
    data     buffer 0: [size] float32   buffer 1: [size] float32

Version v lives in buffer v % 2. The learner writes `begun`, the data, and last `latest`. A reader takes `latest`,
copies that buffer and accepts the copy if `begun` still names the version. If the learner has come back to this buffer
meanwhile, the reader takes the newer version. Both sides copy straight from and to where they compute, which may be
another device. The words hold the version plus one, so that fresh memory says "nothing yet". Neither side ever waits
for the other, and a label can never disagree with its weights. This rests on the order of stores and loads, for which
`sf.shared.order` has the operations, and on copies that are over when `write` and `take` return.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable

import numpy as np

from sf.shared.arena import Array, SharedBlock
from sf.shared.order import observe, publish, recheck, withdraw

NOTHING_PUBLISHED = -1
_HEADER_WORDS = 8
_LATEST, _BEGUN = 0, 1


class PublishedWeights:
    """Double-buffered weights with a sequence word. One writer (the learner), any number of readers.

    The size is not known before the learner has built its network, so the block is empty until `allocate`.
    """

    def __init__(self, block: SharedBlock | None = None):
        self.block = block or SharedBlock()
        self._memory: mmap.mmap | None = None
        self._header: Array | None = None
        self._buffers: Array | None = None

    def allocate(self, size: int) -> None:
        """Writer: makes room for vectors of `size` float32 numbers."""
        self.block.allocate(_HEADER_WORDS * 8 + 2 * size * 4)

    def publish(self, version: int, write: Callable[[Array], None]) -> None:
        """Writer: commits what `write` puts into [size] float32 as `version`; versions rise by one."""
        header, buffers = self._views()
        index = version % 2
        withdraw(header, _BEGUN + index, version + 1)
        write(buffers[index])
        publish(header, _LATEST, version + 1)

    @property
    def version(self) -> int:
        """The newest published version, or NOTHING_PUBLISHED."""
        if self._header is None:
            if self.block.num_bytes == 0:
                return NOTHING_PUBLISHED
            self._views()
        assert self._header is not None
        return int(self._header[_LATEST]) - 1

    def read(self, take: Callable[[Array], None]) -> int:
        """Reader: has `take` copy the newest weights, [size] float32, and returns their version.

        It is called again if the writer has written to them meanwhile.
        """
        header, buffers = self._views()
        while True:
            word = int(observe(header, _LATEST))
            index = (word - 1) % 2
            take(buffers[index])
            if recheck(header, _BEGUN + index) == word:
                return word - 1

    @property
    def memory(self) -> mmap.mmap:
        """All of it, as bytes; it was allocated before."""
        if self._memory is None:
            self._memory = self.block.map()
        return self._memory

    def _views(self) -> tuple[Array, Array]:
        if self._header is None or self._buffers is None:
            memory = self.memory
            self._header = np.frombuffer(memory, np.int64, _HEADER_WORDS)
            self._buffers = np.frombuffer(memory, np.float32, offset=_HEADER_WORDS * 8).reshape(2, -1)
        return self._header, self._buffers

    def __reduce__(self) -> tuple[type[PublishedWeights], tuple[SharedBlock]]:
        return PublishedWeights, (self.block,)
