"""Weights beside the policy that nothing trains, and optimizers that train the policy once more: told before a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sf.learner.algorithm import Algorithm
from sf.learner.algorithm_state import Part, parts_of, parts_unchanged
from sf.learner.trained_network import TrainedNetwork
from sf.learner.trial import tried
from sf.policy import ActorCritic

TAKE_STEPS = "after_step", "after_batch"
"""Methods in which the networks beside the acting one are stepped."""


def note_on_untrained(algorithm: Algorithm, policy: ActorCritic) -> str:
    """A sentence if the loss depends on weights beside the policy that nothing will train; else nothing."""
    takes_steps = any(not getattr(type(algorithm), name).__module__.startswith("sf.") for name in TAKE_STEPS)
    with parts_unchanged(algorithm):
        total, weights = tried(algorithm, policy).total, _untrained(parts_of(algorithm), policy, takes_steps)
        found: Sequence[Tensor | None] = ()
        if weights:
            found = torch.autograd.grad(total, list(weights.values()), allow_unused=True)
    reached = [name for name, gradient in zip(weights, found, strict=True) if gradient is not None]
    if not reached:
        return ""
    why = "optimizer in its attributes trains" if takes_steps else "method after_step or after_batch takes steps of"
    return (
        f"Warning: the loss of algorithm={type(algorithm).__name__} depends on {', '.join(reached)}, which no "
        f"{why}. Make it a TrainedNetwork and call its step in after_step, give it an optimizer, or freeze it with "
        "requires_grad_(False)."
    )


def note_on_policy_twice(algorithm: Algorithm, policy: ActorCritic) -> str:
    """A sentence if an optimizer of the algorithm trains what the run trains already; else nothing."""
    own = {id(each) for each in [policy.flat, *policy.parameters()]}
    twice = [
        name
        for name, part in parts_of(algorithm).items()
        if isinstance(part, Optimizer) and own & {id(each) for group in part.param_groups for each in group["params"]}
    ]
    if not twice:
        return ""
    return (
        f"Warning: {', '.join(twice)} of algorithm={type(algorithm).__name__} has parameters of the policy, which the "
        "run trains with --learning_rate. Its steps come on top of those."
    )


def _untrained(parts: Mapping[str, Part], policy: ActorCritic, takes_steps: bool) -> dict[str, Tensor]:
    """Weights beside the policy that could have a gradient and have no optimizer, or none that takes steps."""
    weights: dict[str, Tensor] = {}
    trained = {id(each) for each in policy.parameters()}
    for name, part in parts.items():
        if isinstance(part, Optimizer):
            trained |= {id(each) for group in part.param_groups for each in group["params"] if takes_steps}
        elif isinstance(part, nn.Parameter):
            weights[name] = part
        else:
            weights |= {f"{name}.{key}": each for key, each in part.named_parameters()}
            networks = [module for module in part.modules() if isinstance(module, TrainedNetwork)]
            trained |= {id(each) for network in networks for each in network.trained if takes_steps}
    return {name: each for name, each in weights.items() if each.requires_grad and id(each) not in trained}
