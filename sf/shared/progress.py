"""The activity of a process, in one word of the arena: a count that grows, a phase, and the environment concerned.

Life is not progress: only the thread that does the work writes the word. The supervisor looks at it ten times a second;
where it stays the same for longer than the phase may take, the process hangs. A process that waits looks around every
second, so one that is stopped is seen in that phase too.
"""

from __future__ import annotations

import enum

import numpy as np

from sf.shared.arena import Array


class Phase(enum.IntEnum):
    START = 0
    """Being started and built, but for environments."""
    INIT = 1
    """An environment is made."""
    RESET = 2
    """In `reset` of an environment."""
    STEP = 3
    """Anything else but waiting. For a rollout worker it is `step` of an environment; the rest, even acting for itself,
    takes no time worth a limit of its own."""
    WAIT = 4
    CLOSE = 5
    """In `close` of an environment, where it is looked at before a run."""
    SAVE = 6
    """A checkpoint is written, which takes as long as the disk does."""


_ENVIRONMENT_BITS, _PHASE_BITS = 16, 3
_ENVIRONMENTS = 1 << _ENVIRONMENT_BITS
_COUNT = 1 << (_ENVIRONMENT_BITS + _PHASE_BITS)


class Progress:
    """Written by one process; its successor counts on."""

    def __init__(self, words: Array, index: int):
        self.word = words[index : index + 1].data
        self._count = self.word[0] // _COUNT

    def enter(self, phase: Phase, environment: int = 0) -> None:
        """Something begins."""
        self.word[0] = self.begin(phase) + environment % _ENVIRONMENTS

    def begin(self, phase: Phase) -> int:
        """The value of `word` for the first environment; one more for each that follows."""
        self._count += 1
        return self._count * _COUNT + phase * _ENVIRONMENTS


def phase_of(word: int) -> tuple[Phase, int]:
    """The phase, and the index of the environment."""
    return Phase(word % _COUNT // _ENVIRONMENTS), word % _ENVIRONMENTS


def unwatched() -> Progress:
    """For environments of a process without a supervisor."""
    return Progress(np.zeros(1, np.int64), 0)
