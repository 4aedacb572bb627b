"""The description of a policy, from which it is built again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sf.config import ModelConfig
from sf.config.observation_groups import encoders_of
from sf.config.storage import load as load_config
from sf.nets.actor_critic import ActorCritic
from sf.plugins import expect_known_encoder
from sf.policy.collecting import CollectPolicy
from sf.policy.greedy import GreedyPolicy
from sf.policy.masks import split_action_mask
from sf.policy.nests import Nest
from sf.policy.policy import Policy
from sf.policy.random import RandomPolicy
from sf.policy.specs import TensorSpec, spec_from_json
from sf.policy.steps import TimeStep
from sf.policy.trained import TrainedPolicy
from sf.spaces import EnvInfo

OPTIONS = ("clip", "emit_log_probability", "automatic_state_reset", "validate_args", "name")


def describe(policy: Policy) -> dict[str, Any]:
    """All that is needed to build a policy again, apart from its variables; for JSON.

    Raises:
        TypeError: a class that could not be built again.
    """
    options = {name: getattr(policy, name) for name in OPTIONS}
    if type(policy) is GreedyPolicy:
        return {"kind": "greedy", "policy": describe(policy.wrapped), "options": {"name": policy.name}}
    if type(policy) is RandomPolicy:
        if policy.observation_and_action_constraint_splitter not in (None, split_action_mask):
            raise TypeError("A RandomPolicy with a splitter of your own cannot be saved, because it is a function.")
        specs = {
            "time_step_spec": _nest_to_json(policy.time_step_spec),
            "action_spec": _nest_to_json(policy.action_spec),
        }
        return {"kind": "random", **specs, "options": options}
    if type(policy) not in (TrainedPolicy, CollectPolicy):
        raise TypeError(
            f"PolicySaver saves TrainedPolicy, CollectPolicy, RandomPolicy and GreedyPolicy of these, but "
            f"{type(policy).__name__} is a class of its own. Save its variables() and build it in your code."
        )
    assert isinstance(policy, (TrainedPolicy, CollectPolicy))
    network = {"env": policy.network.info.to_json(), "model": asdict(policy.network.config)}
    if isinstance(policy, CollectPolicy):
        return {"kind": "collect", **network, "options": options}
    return {"kind": "trained", **network, "action_bounds": policy.action_bounds, "options": options}


def build(description: Mapping[str, Any], options: Mapping[str, Any]) -> Policy:
    """The inverse of `describe`; the options replace those of the description."""
    options = {**description["options"], **options}
    match description["kind"]:
        case "greedy":
            name = options.pop("name")
            return GreedyPolicy(build(description["policy"], options), name)
        case "random":
            specs = _nest_from_json(description["time_step_spec"]), _nest_from_json(description["action_spec"])
            return RandomPolicy(TimeStep(*specs[0]), specs[1], **options)
        case "collect":
            return CollectPolicy(_network(description), **options)
        case "trained":
            return TrainedPolicy(_network(description), description["action_bounds"], **options)
        case kind:
            raise ValueError(f"unknown kind of policy {kind!r}")


def _network(description: Mapping[str, Any]) -> ActorCritic:
    model = load_config(ModelConfig, description["model"])
    for encoder in encoders_of(model):
        expect_known_encoder(encoder)
    return ActorCritic(EnvInfo.from_json(description["env"]), model)


def _nest_to_json(nest: Nest) -> Any:
    if isinstance(nest, TensorSpec):
        return nest.to_json()
    if isinstance(nest, Mapping):
        return {"dict": [[key, _nest_to_json(part)] for key, part in nest.items()]}  # in this order
    return {"list" if isinstance(nest, list) else "tuple": [_nest_to_json(part) for part in nest]}


def _nest_from_json(data: Mapping[str, Any]) -> Nest:
    if "dict" in data:
        return {key: _nest_from_json(part) for key, part in data["dict"]}
    if "list" in data:
        return [_nest_from_json(part) for part in data["list"]]
    if "tuple" in data:
        return tuple(_nest_from_json(part) for part in data["tuple"])
    return spec_from_json(dict(data))
