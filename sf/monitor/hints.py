"""What one may want to know about a run while it lasts: each hint says its sentence when it is time for it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from sf.monitor.episodes import EpisodeWindows
from sf.monitor.settled import SettledEpisodes
from sf.monitor.snapshot import Snapshot


class Seen(NamedTuple):
    """What hints look at."""

    first: Snapshot
    """At the beginning of this start."""
    now: Snapshot
    ended: EpisodeWindows
    """All episodes that have ended."""
    settled: SettledEpisodes
    """Those of them that decide."""


class Hint(Protocol):
    """Keeps what it has seen and said."""

    def look(self, seen: Seen) -> str | None:
        """A sentence if it is time for one."""
