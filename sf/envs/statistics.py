"""Whether an environment counts its episodes itself."""

from __future__ import annotations

from typing import Any


def counts_episodes(env: Any) -> bool:
    """Whether Gymnasium's RecordEpisodeStatistics is among the wrappers, so that info["episode"] has the raw scores."""
    while env is not None:
        if type(env).__name__ == "RecordEpisodeStatistics":
            return True
        env = getattr(env, "env", None)
    return False
