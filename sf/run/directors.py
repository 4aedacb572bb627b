"""Chooses what decides about the policies of a run."""

from __future__ import annotations

from pathlib import Path

from sf.config import Config
from sf.config.pbt_space import env_arguments
from sf.population.director import Director, NoDirector
from sf.population.pbt_director import PbtDirector
from sf.population.pool import Pool
from sf.population.self_play import SelfPlay
from sf.run.wiring import Shared
from sf.shared.env_arguments import ENV_ARGUMENTS
from sf.shared.matches import MatchRing


def director_of(config: Config, shared: Shared, directory: Path) -> Director:
    """The director that the flags ask for.

    Args:
        config: resolved.
        shared: by all roles.
        directory: of the experiment.

    Raises:
        ExperimentError: the file of the director is damaged, or cannot be written.
    """
    if config.population.with_pbt:
        return PbtDirector(config, directory, shared.arena[ENV_ARGUMENTS] if env_arguments(config) else None)
    if not config.self_play.self_play:
        return NoDirector()
    workers = range(shared.topology.num_workers)
    rings = [MatchRing(shared.arena, worker) for worker in workers]
    pool = Pool(config.self_play, config.run.seed or 0)
    return SelfPlay(pool, config.seats, config.self_play.self_play_games, directory, rings, config.run.frozen)
