"""Acting in NumPy with the default network: for a few rows, operations of torch take longer than the arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import nn

from sf.plans.actor_critic import predicted_values
from sf.plans.distributions import TorchCategorical
from sf.plans.models import TorchModel
from sf.plans.torch_policy import TorchPolicy
from sf.shared.arena import Array

SMALLEST = np.finfo(np.float32).tiny

Layers = list[tuple[Array, Array]]
"""Weights [in, out] and biases [out], which share the memory of the parameters."""


def act_in_numpy(policy: Any, random: np.random.Generator) -> Callable[[Array], tuple[Array, dict[str, Array]]] | None:
    """A function from observations [n, ...] to actions [n] and extra columns, as the policy gives them.

    None where the policy has another network or another way to act. The function follows the weights of the policy.

    Args:
        policy: of a plan.
        random: numbers for the actions.
    """
    if not (isinstance(policy, TorchPolicy) and type(policy).compute_actions is TorchPolicy.compute_actions):
        return None
    if "compute_actions" in vars(policy):
        return None
    hooks, model = policy.hooks, policy.model
    is_plain = type(model) is TorchModel and not model.num_choices and policy.dist_class is TorchCategorical
    replaced = hooks.action_sampler_fn or hooks.action_distribution_fn
    if not is_plain or replaced or hooks.extra_action_out_fn not in (None, predicted_values):
        return None
    if not policy.config.get("explore", True) or policy.config.get("model", {}).get("activation", "tanh") != "tanh":
        return None
    outputs, values = _layers(model.outputs), _layers(model.values)
    with_values = hooks.extra_action_out_fn is predicted_values

    def act(observations: Array) -> tuple[Array, dict[str, Array]]:
        rows = observations.reshape(len(observations), -1).astype(np.float32, copy=False)
        logits = _forward(outputs, rows)
        # The largest of logits plus Gumbel noise is a draw from their softmax (Gumbel 1954).
        noise = np.maximum(random.standard_exponential(logits.shape, np.float32), SMALLEST)
        actions = (logits - np.log(noise)).argmax(1)
        largest = logits.max(1, keepdims=True)
        log_sums = np.log(np.exp(logits - largest).sum(1)) + largest[:, 0]
        log_probs = logits[np.arange(len(rows)), actions] - log_sums
        extra = {"action_dist_inputs": logits, "action_logp": log_probs}
        if with_values:
            extra["vf_preds"] = _forward(values, rows)[:, 0]
        return actions, extra

    return act


def _layers(network: nn.Sequential) -> Layers:
    linear = [layer for layer in network if isinstance(layer, nn.Linear)]
    return [(layer.weight.detach().numpy().T, layer.bias.detach().numpy()) for layer in linear]


def _forward(layers: Layers, rows: Array) -> Array:
    for weight, bias in layers[:-1]:
        rows = np.tanh(rows @ weight + bias)
    weight, bias = layers[-1]
    outputs: Array = rows @ weight + bias
    return outputs
