"""Whether the environments of a group step one after another or all at once."""

from __future__ import annotations

from typing import Literal

from sf.envs.registry import find_pool
from sf.envs.source import EnvSource
from sf.errors import ConfigError, EnvError
from sf.spaces import EnvInfo

Vectorization = Literal["auto", "none", "native", "envpool"]

PAYS_FROM = 16
"""Environments in a group from which Gymnasium's own vectorized CartPole takes less time than single ones."""


def choose_vectorization(
    wanted: Vectorization, source: EnvSource, info: EnvInfo, envs_per_group: int, num_policies: int
) -> tuple[Vectorization, EnvSource]:
    """The way to step, never "auto", and the source that can do it.

    Args:
        wanted: by the user.
        source, info: the environment.
        envs_per_group: that would step at once.
        num_policies: of the run.

    Raises:
        EnvError: the environment does not offer what is wanted.
        ConfigError: it does not fit the run.
    """
    obstacles = {
        f"it has {info.num_agents} agents": info.num_agents > 1,
        "its mask of legal actions comes in info": info.mask_from_info,
        f"num_policies={num_policies}": num_policies > 1,
        "what makes its vectorized form takes no max_episode_steps": source.offers_vector and not source.limits_vector,
    }
    obstacle = next((text for text, is_true in obstacles.items() if is_true), None)
    if wanted == "auto":
        pays = obstacle is None and envs_per_group >= PAYS_FROM and source.offers_vector
        return ("native" if pays else "none"), source
    if wanted == "none":
        return wanted, source
    if obstacle is not None:
        raise ConfigError([f"vectorization={wanted} is not possible for {source.env_id}: {obstacle}. Use none."])
    if wanted == "envpool":
        return wanted, find_pool(source)
    if not source.offers_vector:
        raise EnvError(
            f"{source.env_id} offers no form that steps many environments at once (Gymnasium's vector_entry_point, or "
            "make_vec of sf.register_env). Use --vectorization=none, or envpool if EnvPool has it."
        )
    return wanted, source
