"""A word about rewards that `--reward_clip` has limited."""

from __future__ import annotations

from sf.monitor.hints import Seen


class ClippedRewards:
    """Says once that some were limited."""

    def __init__(self, reward_clip: float | None) -> None:
        self._reward_clip, self._has_told = reward_clip, False

    def look(self, seen: Seen) -> str | None:
        """See `Hint`."""
        if self._has_told or seen.now.clipped_rewards == 0:
            return None
        self._has_told = True
        return (
            f"Warning: --reward_clip={self._reward_clip:g} has limited "
            f"{100 * seen.now.clipped_rewards:.2g} % of the rewards so far; shown returns are not limited. The share "
            "at each moment is the curve stats/clipped_rewards."
        )
