"""Why a run ends, between the supervisors of several ranks: words that the learners carry from rank to rank."""

from __future__ import annotations

from typing import NamedTuple

from sf.shared.arena import Arena, Array, Field
from sf.shared.order import observe, publish

_NOTHING = 0
_OWN, _OTHERS, _SENDER = 0, 1, 2


class Heard(NamedTuple):
    """Why another rank ends."""

    reason: int
    """A number, not 0, whose meaning the supervisors know."""
    rank: int


class Leaving:
    """Written by the supervisor of this rank, and by the pulses of its learners, see `sf.learner.meeting`."""

    def __init__(self, arena: Arena) -> None:
        self._words: Array = arena["ranks/leaving"]

    @property
    def own(self) -> int:
        """Why this rank ends; 0 while it does not."""
        return int(self._words[_OWN])

    @own.setter
    def own(self, reason: int) -> None:
        self._words[_OWN] = reason

    @property
    def heard(self) -> Heard | None:
        """What another rank has said."""
        reason = int(observe(self._words, _OTHERS))
        return None if reason == _NOTHING else Heard(reason, int(self._words[_SENDER]))

    def hear(self, heard: Heard) -> None:
        """Notes what another rank says."""
        self._words[_SENDER] = heard.rank
        publish(self._words, _OTHERS, heard.reason)


def leaving_fields() -> dict[str, Field]:
    """Present in every run, so that the supervisor need not ask whether there are ranks."""
    return {"ranks/leaving": Field((3,), "int64")}
