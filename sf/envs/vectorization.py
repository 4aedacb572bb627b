"""Whether the environments of a group step one after another or all at once."""

from __future__ import annotations

from typing import Literal

from sf.envs.registry import find_pool
from sf.envs.source import EnvSource
from sf.errors import ConfigError, EnvError
from sf.spaces import EnvInfo

Vectorization = Literal["auto", "none", "native", "envpool", "tensors"]

PAYS_FROM = 16
"""Environments in a group from which Gymnasium's own vectorized CartPole takes less time than single ones."""


class UnknownMode(EnvError):
    """A vector environment does not say which step begins the next episode, see `sf.envs.autoreset`."""


class OtherSpaces(EnvError):
    """Environments that step as one are not like a single one."""


def choose_vectorization(
    wanted: Vectorization, source: EnvSource, info: EnvInfo, envs_per_group: int
) -> tuple[Vectorization, EnvSource]:
    """The way to step, never "auto", and the source that can do it.

    Args:
        wanted: by the user.
        source, info: the environment.
        envs_per_group: that would step at once.

    Raises:
        EnvError: the environment does not offer what is wanted.
        ConfigError: it does not fit the run.
    """
    obstacle = _obstacle(source, info)
    if wanted == "auto":
        is_left = why_left(source, info, envs_per_group) or not source.offers_vector
        return ("none" if is_left else "native"), source
    if wanted == "none":
        return wanted, source
    if obstacle is not None:
        raise ConfigError([f"vectorization={wanted} is not possible for {source.env_id}: {obstacle}. Use none."])
    if wanted == "tensors" and not source.in_tensors:
        raise EnvError(
            f"{source.env_id} is no simulator in tensors (sf.register_env with make_tensors). Leave "
            "--vectorization=tensors out."
        )
    if wanted == "envpool":
        return wanted, find_pool(source)
    if not source.offers_vector:
        raise EnvError(
            f"{source.env_id} offers no form that steps many environments at once (Gymnasium's vector_entry_point, or "
            "make_vec of sf.register_env). Use --vectorization=none, or envpool if EnvPool has it."
        )
    return wanted, source


def why_left(source: EnvSource, info: EnvInfo, envs_per_group: int) -> str:
    """Why environments that could step as one do not where the choice is open, as part of a sentence; "" if they do.

    Args:
        source, info, envs_per_group: as for `choose_vectorization`.
    """
    if not source.offers_vector:
        return ""
    if envs_per_group < PAYS_FROM and not source.in_tensors:
        environments = "1 environment" if envs_per_group == 1 else f"{envs_per_group} environments"
        return f"a group has {environments}, and stepping as one pays from {PAYS_FROM} on"
    return _obstacle(source, info) or ""


def _obstacle(source: EnvSource, info: EnvInfo) -> str | None:
    """The reason why environments cannot step as one, as a sentence without its end."""
    obstacles = {
        f"it has {info.num_agents} agents": info.num_agents > 1,
        "its mask of legal actions comes in info": info.mask_from_info,
        "what makes its vectorized form takes no max_episode_steps": source.offers_vector and not source.limits_vector,
    }
    return next((text for text, is_true in obstacles.items() if is_true), None)
