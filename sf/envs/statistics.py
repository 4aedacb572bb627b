"""Keys of `info` with which an environment describes its episodes. Every end counts, with or without them."""

from __future__ import annotations

EPISODE_CONTINUES = "episode_continues"
"""True at the end of a trajectory that is not the end of the episode, as at a lost life. The next reset goes on with
the same game, but a reset with a seed begins a new game. If the game ends within the reset, no step reports it, so the
info of that reset has False here."""
EPISODE = "episode"
"""Raw return ``r`` and length ``l`` of an episode that is over, as Gymnasium's RecordEpisodeStatistics gives them."""
FINAL_KEYS = "final_obs", "final_observation"
"""Last observation of an episode, where many environments reset in the same step: now, and before Gymnasium 1.0."""
