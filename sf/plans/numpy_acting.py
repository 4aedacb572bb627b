"""Acting without torch with the networks of plans: for a few rows, its operations take longer than the arithmetic.

It is in C where a network can, else in NumPy, as in rollout workers of `sf-train`; see `sf.nets.fast.numpy_network`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from sf.config.written_out import is_written_out
from sf.machine.compiled import NoCompilerError
from sf.nets.actor_critic import ActorCritic
from sf.nets.fast.native_acting import NativeChoice, has_native_acting
from sf.nets.fast.numpy_network import SmallNetwork, noise_source
from sf.plans.actor_critic import predicted_values
from sf.plans.distributions import TorchCategorical, TorchDiagGaussian
from sf.plans.models import TorchModel
from sf.plans.q_learning import QModel, mostly_best
from sf.plans.torch_policy import TorchPolicy
from sf.shared.arena import Array
from sf.spaces.from_gymnasium import action_spec


def network_in_numpy(policy: Any) -> ActorCritic | None:
    """The network of a policy, where NumPy can act as the policy does; None where it acts in another way."""
    if not (isinstance(policy, TorchPolicy) and type(policy).compute_actions is TorchPolicy.compute_actions):
        return None
    if "compute_actions" in vars(policy) or not policy.config.get("explore", True):
        return None
    hooks, model = policy.hooks, policy.model
    is_q = type(model) is QModel and hooks.action_sampler_fn is mostly_best
    is_plain = type(model) is TorchModel and policy.dist_class in (TorchCategorical, TorchDiagGaussian)
    if not (is_q or (is_plain and not hooks.action_sampler_fn)) or hooks.action_distribution_fn:
        return None
    if hooks.extra_action_out_fn not in (None, predicted_values):
        return None
    network: ActorCritic = model.network
    return network


def act_in_numpy(policy: Any, random: np.random.Generator) -> Callable[[Array], tuple[Array, dict[str, Array]]] | None:
    """A function from observations [n, ...] to actions [n, ...] and extra columns, as the policy gives them.

    None where there is no `network_in_numpy`. The function follows the weights of the policy.

    Args:
        policy: of a plan.
        random: numbers for the actions.
    """
    if (own := network_in_numpy(policy)) is None:
        return None
    info = replace(own.info, action=action_spec(policy.action_space))  # the network knows how many numbers they need
    if not is_written_out(info, own.config):
        return None
    is_q, with_values = isinstance(policy.model, QModel), policy.hooks.extra_action_out_fn is predicted_values
    variables = {
        name: variable.numpy()
        for name, variable in own.variables().items()
        if with_values or not name.startswith("value_encoder.")  # the head alone costs next to nothing
    }
    network: SmallNetwork | NativeChoice = SmallNetwork(info, own.config, variables)
    if has_native_acting(info, own.config):
        with contextlib.suppress(NoCompilerError):
            network = NativeChoice(info, own.config, own.flat.detach().numpy())
    noise = noise_source(info, random)

    def act(observations: Array) -> tuple[Array, dict[str, Array]]:
        actions, log_probs, values, params = network(noise(len(observations)), observations)
        extra = {} if is_q else {"action_dist_inputs": params, "action_logp": log_probs}
        return actions, extra | {"vf_preds": values} if with_values else extra

    return act
