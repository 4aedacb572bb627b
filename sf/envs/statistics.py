"""Keys of `info` with which an environment describes its episodes. Every end counts, with or without them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

EPISODE_CONTINUES = "episode_continues"
"""True at the end of a trajectory that is not the end of the episode, as at a lost life. The next reset goes on with
the same game, but a reset with a seed begins a new game. If the game ends within the reset, no step reports it, so the
info of that reset has False here."""
EPISODE = "episode"
"""Raw return ``r`` and length ``l`` of an episode that is over, as Gymnasium's RecordEpisodeStatistics gives them."""
FINAL_KEYS = "final_obs", "final_observation"
"""Last observation of an episode, where many environments reset in the same step: now, and before Gymnasium 1.0."""
TRUE_OBJECTIVE = "true_objective"
"""Another score of an episode that is over; the return where it is missing."""
METRICS, EXTRA_STATS, SUCCESS = "metrics", "episode_extra_stats", "is_success"
"""Numbers of the environment's own about an episode that is over, see `sf.envs.metrics`."""
_READ = EPISODE, EPISODE_CONTINUES, TRUE_OBJECTIVE
_OWN = METRICS, EXTRA_STATS, SUCCESS


def kept(info: Mapping[Any, Any]) -> dict[Any, Any]:
    """The info of a last step, in which a reset can no longer change the numbers of the episode.

    An environment may use one dict, and the dicts and arrays in it, for all of its infos.
    """
    return {
        key: _copied(value) if key in _READ else _copied_if_possible(value) if key in _OWN else value
        for key, value in info.items()
    }


def _copied_if_possible(value: Any) -> Any:
    """Other things than numbers stay as they are, and are told of when they are read."""
    if isinstance(value, Mapping):
        return {key: _copied_if_possible(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return list(value)
    try:
        return _copied(value)
    except Exception:  # of the conversion of some object
        return value


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(part) for key, part in value.items()}
    return np.array(value) if hasattr(value, "__array__") or isinstance(value, (list, tuple)) else value
