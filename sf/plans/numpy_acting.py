"""Acting in NumPy with the default network: for a few rows, operations of torch take longer than the arithmetic.

The formulas are those with which rollout workers of `sf-train` act, see `sf.nets.fast.numpy_network`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import nn

from sf.config import ModelConfig
from sf.nets.fast.numpy_network import SmallNetwork, noise_source
from sf.plans.actor_critic import predicted_values
from sf.plans.distributions import TorchCategorical, TorchDiagGaussian
from sf.plans.models import TorchModel
from sf.plans.torch_policy import TorchPolicy
from sf.shared.arena import Array
from sf.spaces import EnvInfo, action_spec, observation_leaves


def act_in_numpy(policy: Any, random: np.random.Generator) -> Callable[[Array], tuple[Array, dict[str, Array]]] | None:
    """A function from observations [n, ...] to actions [n, ...] and extra columns, as the policy gives them.

    None where the policy has another network or another way to act. The function follows the weights of the policy.

    Args:
        policy: of a plan.
        random: numbers for the actions.
    """
    if not (isinstance(policy, TorchPolicy) and type(policy).compute_actions is TorchPolicy.compute_actions):
        return None
    if "compute_actions" in vars(policy) or not policy.config.get("explore", True):
        return None
    hooks, model = policy.hooks, policy.model
    is_plain = type(model) is TorchModel and policy.dist_class in (TorchCategorical, TorchDiagGaussian)
    replaced = hooks.action_sampler_fn or hooks.action_distribution_fn
    if not is_plain or model.num_choices or replaced or hooks.extra_action_out_fn not in (None, predicted_values):
        return None
    info = EnvInfo("", 1, observation_leaves(policy.observation_space), action_spec(policy.action_space))
    config = ModelConfig(normalize_input=False, adaptive_stddev=True, nonlinearity=model.activation)
    with_values = hooks.extra_action_out_fn is predicted_values
    variables = _variables(model.outputs, "encoder", "policy_head")
    if with_values:
        variables |= _variables(model.values, "value_encoder", "value_head")
    else:  # a head that costs next to nothing
        zeros = np.zeros_like(variables["policy_head.weight"][:1])
        variables |= {"value_head.weight": zeros, "value_head.bias": zeros[:, 0]}
    network, noise = SmallNetwork(info, config, variables), noise_source(info, random)

    def act(observations: Array) -> tuple[Array, dict[str, Array]]:
        actions, log_probs, values, params = network(noise(len(observations)), observations)
        extra = {"action_dist_inputs": params, "action_logp": log_probs}
        return actions, extra | {"vf_preds": values} if with_values else extra

    return act


def _variables(tower: nn.Sequential, encoder: str, head: str) -> dict[str, Array]:
    """The parameters, whose memory they share, with the names that they have in `sf.nets`."""
    *hidden, last = [layer for layer in tower if isinstance(layer, nn.Linear)]
    layers = {f"{encoder}.mlp.layers.{index}": layer for index, layer in enumerate(hidden)} | {head: last}
    return {
        f"{name}.{kind}": variable.numpy()
        for name, layer in layers.items()
        for kind, variable in (("weight", layer.weight.detach()), ("bias", layer.bias.detach()))
    }
