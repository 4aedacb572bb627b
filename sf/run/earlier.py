"""What a run that goes on takes over from its earlier start, where the user has left it open."""

from __future__ import annotations

from dataclasses import replace

from sf.config import Config
from sf.run.finished import CONFIG
from sf.storage.objects import json_object


def with_earlier_network(config: Config) -> Config:
    """The number of networks that the run began with; another one would be another policy."""
    is_settled = config.model.actor_critic_share_weights is not None or config.model.has_own_critic
    if config.run.restart_behavior != "resume" or is_settled:
        return config
    earlier = json_object(config.run.experiment_dir / CONFIG)
    run, model = earlier.get("run"), earlier.get("model")
    is_same = isinstance(run, dict) and run.get("env") == config.run.env
    shares = model.get("actor_critic_share_weights") if isinstance(model, dict) else None
    if not is_same or not isinstance(shares, bool):
        return config
    return replace(config, model=replace(config.model, actor_critic_share_weights=shares))
