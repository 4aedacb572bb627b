"""What a run that goes on takes over from its earlier start, where the user has left it open."""

from __future__ import annotations

from dataclasses import replace

from sf.config import Config
from sf.run.finished import CONFIG
from sf.storage.objects import json_object


def with_earlier_start(config: Config) -> Config:
    """With the number of networks and the seed that the run began with.

    Other networks would be another policy, and with another seed evaluations would play other episodes than before.
    """
    if config.run.restart_behavior != "resume":
        return config
    earlier = json_object(config.run.experiment_dir / CONFIG)
    run, model = earlier.get("run"), earlier.get("model")
    if not (isinstance(run, dict) and isinstance(model, dict) and run.get("env") == config.run.env):
        return config
    seed, shares = run.get("seed"), model.get("actor_critic_share_weights")
    if config.run.seed is None and type(seed) is int and seed >= 0:
        config = replace(config, run=replace(config.run, seed=seed))
    is_open = config.model.actor_critic_share_weights is None and not config.model.has_own_critic
    if is_open and isinstance(shares, bool):
        config = replace(config, model=replace(config.model, actor_critic_share_weights=shares))
    return config
