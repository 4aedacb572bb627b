"""Adam on one flat vector of parameters."""

from __future__ import annotations

import torch
from torch import Tensor

from sf.config import LearnerConfig
from sf.learner.small_steps import is_small, small_steps
from sf.nets.private import adam_step
from sf.policy import ActorCritic


class Adam:
    """Adam (Kingma and Ba 2015, arXiv:1412.6980, algorithm 1) for one vector of parameters.

    The operation of `torch.optim.Adam(fused=True)`, which passes over the vectors once. The class itself is left out,
    because its constructor imports 800 modules of the compiler: 1.9 s and 78 MB.
    """

    def __init__(
        self, parameters: Tensor, gradient: Tensor, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8
    ) -> None:
        self._parameters, self._gradient = parameters, gradient
        self.beta1, self.beta2, self.eps = beta1, beta2, eps
        self.num_steps = 0
        self._step_number = torch.zeros((), device=self._gradient.device)
        self.exp_avg = torch.zeros_like(self._gradient)
        """First moment."""
        self.exp_avg_sq = torch.zeros_like(self._gradient)
        """Second moment."""

    def begin_anew(self) -> None:
        """Forgets the moments, for parameters that are others now."""
        self.num_steps = 0
        self.exp_avg.zero_()
        self.exp_avg_sq.zero_()

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Changes the parameters by the flat gradient."""
        self.num_steps += 1
        self._step_number.fill_(self.num_steps)  # the operation does not count by itself
        adam_step(
            self._parameters, self._gradient, self.exp_avg, self.exp_avg_sq, self._step_number,
            lr, self.beta1, self.beta2, self.eps,
        )  # fmt: skip


class FlatAdam(Adam):
    """Adam for the parameters of a policy, with the settings of the learner."""

    def __init__(self, policy: ActorCritic, config: LearnerConfig) -> None:
        super().__init__(
            policy.flat_parameters, policy.flat_gradient, config.adam_beta1, config.adam_beta2, config.adam_eps
        )
        self._small = small_steps(config) if is_small(policy.flat_parameters) else None
        self._max_grad_norm = config.max_grad_norm

    def reconfigure(self, config: LearnerConfig) -> None:
        """Goes on with other decays, another epsilon and another limit of the norm."""
        self.beta1, self.beta2, self.eps = config.adam_beta1, config.adam_beta2, config.adam_eps
        self._max_grad_norm = config.max_grad_norm

    def clip(self) -> float:
        """Limits the norm of the gradient, see `clip_gradient`; returns the norm before."""
        if self._small is None:
            return clip_gradient(self._gradient, self._max_grad_norm).item()
        return self._small.clip(self._gradient, self._max_grad_norm)

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """See `Adam.step`."""
        if self._small is None:
            super().step(lr)
            return
        self.num_steps += 1
        self._small.adam(
            self.num_steps, lr, self.beta1, self.beta2, self.eps,
            self._parameters, self._gradient, self.exp_avg, self.exp_avg_sq,
        )  # fmt: skip


def clip_gradient(gradient: Tensor, max_norm: float) -> Tensor:
    """Scales a gradient in place so that its L2 norm is at most `max_norm`, 0 for no limit; returns the norm before."""
    norm: Tensor = torch.linalg.vector_norm(gradient)
    if max_norm > 0:
        gradient.mul_((max_norm / (norm + 1e-6)).clamp_(max=1.0))
    return norm
