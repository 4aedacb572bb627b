"""Adam on the flat parameter vector."""

from __future__ import annotations

import torch
from torch import Tensor

from sf.config import LearnerConfig
from sf.policy import Policy


def flat_adam(policy: Policy, config: LearnerConfig) -> torch.optim.Adam:
    """Adam that sees one parameter: the trainable part of `policy.flat`.

    Its state exists from the start, not only from the first step, so that saving and loading need no special case.
    """
    parameters = policy.flat_parameters
    optimizer = torch.optim.Adam(
        [parameters],
        lr=config.learning_rate,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_eps,
        fused=True,
    )
    optimizer.state[parameters] = {
        "step": torch.zeros((), device=parameters.device),
        "exp_avg": torch.zeros_like(parameters, requires_grad=False),
        "exp_avg_sq": torch.zeros_like(parameters, requires_grad=False),
    }
    return optimizer


def clip_gradient(gradient: Tensor, max_norm: float) -> Tensor:
    """Scales a gradient in place so that its L2 norm is at most `max_norm`, 0 for no limit; returns the norm before."""
    norm: Tensor = torch.linalg.vector_norm(gradient)
    if max_norm > 0:
        gradient.mul_((max_norm / (norm + 1e-6)).clamp_(max=1.0))
    return norm
