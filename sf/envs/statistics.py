"""What an environment may say in `info` about its episodes. Episodes are counted here, whatever it says."""

from __future__ import annotations

EPISODE_CONTINUES = "episode_continues"
"""True at the end of a trajectory that is not the end of the episode, as at a lost life: the next reset goes on with
the same game. If the game ends within that reset, no step reports it, so the info of that reset has False here."""
EPISODE = "episode"
"""Raw return ``r`` and length ``l`` of an episode that is over, as Gymnasium's RecordEpisodeStatistics gives them."""
