"""Whether an environment counts its episodes itself."""

from __future__ import annotations

from typing import Any


def counts_episodes(env: Any) -> bool:
    """Whether Gymnasium's RecordEpisodeStatistics is among the wrappers, so that info["episode"] has the raw scores.

    An environment without that wrapper can say so with the attribute `counts_episodes`.
    """
    while env is not None:
        if type(env).__name__ == "RecordEpisodeStatistics" or getattr(type(env), "counts_episodes", False):
            return True
        env = getattr(env, "env", None)
    return False
