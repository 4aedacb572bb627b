"""The parts of a Dict observation that the policy reads, and those that the critic reads in training.

Without keys each network reads everything. The mask of legal actions always belongs to the policy.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from sf.config.model import ModelConfig
from sf.plugins import ENCODERS

if TYPE_CHECKING:
    from sf.config.whole import Config
    from sf.spaces import EnvInfo, LeafSpec

ACTION_MASK = "action_mask"
ONE_NETWORK = ("dqn", "drqn", "pqn")
"""Algorithms whose policy is the network of the values."""


def group_problems(config: Config) -> list[str]:
    """A sentence for everything that is wrong with the groups, whatever the environment is."""
    model, problems = config.model, []
    for flag, keys in _groups(model).items():
        if keys == ():
            problems.append(f"{flag} is an empty list: a network reads at least one key. Name one, or leave it out.")
        twice = [key for key, count in Counter(keys or ()).items() if count > 1]
        if twice:
            problems.append(f"{flag}={_shown(keys)} names {', '.join(twice)} twice. Name each key once.")
    if model.actor_critic_share_weights and model.has_own_critic:
        given = ", ".join(f"{flag}={_shown(value)}" for flag, value in _of_critic(model).items() if value is not None)
        problems.append(
            f"actor_critic_share_weights=True with {given}: one network reads one group of keys and has one size. Use "
            "--actor_critic_share_weights=False, or leave the others out."
        )
    if model.has_own_critic and config.learner.algorithm in ONE_NETWORK:
        problems.append(
            f"algorithm={config.learner.algorithm} chooses actions by the network of the values, so there is no other "
            "critic. Leave keys and sizes of a critic out, or use --algorithm=ppo."
        )
    return problems


def key_problems(model: ModelConfig, info: EnvInfo) -> list[str]:
    """A sentence for each group with keys that the observations of the environment do not have."""
    problems, known = [], keys_of(info)
    for flag, keys in _groups(model).items():
        if keys is None:
            continue
        if not known:
            problems.append(
                f"{flag}={_shown(keys)} names keys of a Dict, but {info.env_id} observes {_kind(info)}. Leave it out, "
                "or return a Dict."
            )
        elif unknown := [key for key in keys if key not in known]:
            own = f" ({ACTION_MASK} always belongs to the policy)" if ACTION_MASK in unknown else ""
            problems.append(
                f"{flag}={_shown(keys)}: {info.env_id} has no key {', '.join(unknown)} for a network to read{own}. "
                f"Use some of {', '.join(known)}."
            )
    return problems


def keys_of(info: EnvInfo) -> list[str]:
    """The keys of a Dict observation, without that of the mask; empty if it is no Dict."""
    firsts = [leaf.path[0] for name, leaf in info.observations.items() if leaf.path and name != ACTION_MASK]
    return list(dict.fromkeys(first for first in firsts if isinstance(first, str)))


def policy_leaves(model: ModelConfig, info: EnvInfo) -> dict[str, LeafSpec]:
    """The leaves that acting needs: those that the policy reads, and the mask."""
    leaves = _leaves(model.policy_keys, info)
    return {name: leaf for name, leaf in info.observations.items() if name in leaves or name == ACTION_MASK}


def read_by_policy(model: ModelConfig, info: EnvInfo) -> dict[str, LeafSpec]:
    """The leaves that the network of the policy reads."""
    return _leaves(model.policy_keys, info)


def read_by_critic(model: ModelConfig, info: EnvInfo) -> dict[str, LeafSpec]:
    """The leaves that the network of the values reads."""
    return _leaves(model.critic_keys, info)


def _leaves(keys: tuple[str, ...] | None, info: EnvInfo) -> dict[str, LeafSpec]:
    readable = {name: leaf for name, leaf in info.observations.items() if name != ACTION_MASK}
    if keys is None:
        return readable
    return {name: leaf for name, leaf in readable.items() if leaf.path and leaf.path[0] in keys}


def critic_model(model: ModelConfig) -> ModelConfig:
    """The configuration that the network of the values is built from."""
    from dataclasses import replace

    own = model.critic_encoder
    return replace(
        model,
        encoder_mlp_layers=model.critic_mlp_layers or model.encoder_mlp_layers,
        encoder=own or model.encoder,
        encoder_kwargs="{}" if own not in (None, model.encoder) else model.encoder_kwargs,
    )


def encoders_of(model: ModelConfig) -> list[str]:
    """The names of all encoders that a policy has."""
    return list(dict.fromkeys([model.encoder, model.critic_encoder or model.encoder]))


def has_only_our_encoders(model: ModelConfig) -> bool:
    """Whether no encoder is a plugin."""
    return encoders_of(model) == [ENCODERS.default]


def _groups(model: ModelConfig) -> dict[str, tuple[str, ...] | None]:
    return {"policy_keys": model.policy_keys, "critic_keys": model.critic_keys}


def _of_critic(model: ModelConfig) -> dict[str, object]:
    own = {"critic_mlp_layers": model.critic_mlp_layers, "critic_encoder": model.critic_encoder}
    return {**_groups(model), **own}


def _shown(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _kind(info: EnvInfo) -> str:
    return "one array" if all(not leaf.path for leaf in info.observations.values()) else "a Tuple"
