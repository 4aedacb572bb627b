"""Distributions of choices, by their logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sf.nets.columns import Columns
from sf.nets.outputs import GradientOfParams

MASKED_LOGIT = -1e8
"""A finite stand-in for minus infinity: probability exactly 0, and 0·log 0 without nan in the entropy."""


class Categorical(nn.Module):
    """Independent choices; the parameters are the logits of all of them side by side, [B, total number of choices].

    The actions are [B] for the one choice of a Discrete space and [B, D] for D choices. Log-probabilities and entropies
    of several choices are sums (row C37 of "The 37 implementation details of PPO" by Huang et al. 2022).
    """

    def __init__(self, choices: Sequence[int], is_scalar: bool) -> None:
        super().__init__()
        self.num_params = self.num_logits = sum(choices)
        self._is_scalar = is_scalar
        self._choices = list(choices)
        self._grid = len(choices), max(choices)
        self.noise_size = len(choices) * max(choices)
        self._places = None
        if min(choices) < max(choices):
            # Where in the logits each place of the grid is found; one behind the last where a column has fewer choices.
            starts = torch.tensor([0, *choices[:-1]]).cumsum(0).unsqueeze(-1)
            places = torch.arange(max(choices)).expand(self._grid)
            exists = places < torch.tensor(choices).unsqueeze(-1)
            self._places = torch.where(exists, starts + places, self.num_logits).flatten()

    def noise(self, num_rows: int, generator: torch.Generator | None, device: torch.device | None = None) -> Tensor:
        """[B, noise_size] logarithms of exponential times."""
        times = torch.empty(num_rows, self.noise_size, dtype=torch.float32, device=device)
        return times.exponential_(generator=generator).log_()

    def draw(self, params: Tensor, noise: Tensor) -> Tensor:
        """Actions, int64.

        A race: choice i arrives after an exponential time of rate p_i, so it is the first one with probability p_i. A
        choice of probability 0 never arrives (a time of exactly 0 could let it; that has a probability of 2^-53). With
        logarithms, which turn the division of times by rates into a difference, probabilities need not be computed.
        """
        times = noise if self._is_scalar else noise.reshape(-1, *self._grid)
        return torch.sub(self._logits(params), times).argmax(-1)

    def sample(self, params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions, int64, and their log-probabilities [B]."""
        actions = self.draw(params, noise)
        return actions, self._log_probs(params, actions)

    def best(self, params: Tensor) -> Tensor:
        """The most probable actions, int64."""
        return self._logits(params).argmax(-1)

    def mode(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """The most probable actions, int64, and their log-probabilities [B]."""
        actions = self.best(params)
        return actions, self._log_probs(params, actions)

    def evaluate(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of actions and entropies, both [B]."""
        log_probs, entropy = _CategoricalEvaluation.apply(self._logits(params), actions)  # type: ignore[no-untyped-call]
        return self._sum(log_probs), self._sum(entropy)

    def evaluate_by_hand(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, GradientOfParams]:
        """The result of `evaluate` for one choice, and its gradient."""
        assert self._is_scalar
        log_probs, entropy, kept = _evaluated(params, actions)
        return log_probs, entropy, lambda *gradients: _gradient_of_logits(kept, *gradients)

    def columns(self, params: Tensor) -> Columns:
        """The logits [B, n] of each choice."""
        return [(logits,) for logits in torch.split(params, self._choices, -1)]

    def _logits(self, params: Tensor) -> Tensor:
        """[B, n] of one choice, [B, D, n] of D, padded with choices of probability 0."""
        if self._is_scalar:
            return params
        if self._places is not None:
            params = functional.pad(params, (0, 1), value=MASKED_LOGIT).index_select(-1, self._places)
        return params.view(-1, *self._grid)

    def _log_probs(self, params: Tensor, actions: Tensor) -> Tensor:
        log_probs = self._logits(params).log_softmax(-1)
        return self._sum(log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1))

    def _sum(self, per_choice: Tensor) -> Tensor:
        return per_choice if self._is_scalar else per_choice.sum(-1)


class EpsilonGreedy(Categorical):
    """The best of the choices, but for a share epsilon of the steps any of those that are legal.

    The parameters are values of the choices. Epsilon is a buffer, so it is published and saved with the weights.
    """

    epsilon: Tensor

    def __init__(self, choices: Sequence[int], is_scalar: bool) -> None:
        super().__init__(choices, is_scalar)
        self.register_buffer("epsilon", torch.ones(()))

    def _logits(self, params: Tensor) -> Tensor:
        """Logarithms of the probabilities; those of choices that are not legal are masked as they were."""
        values = super()._logits(params)
        legal = values > MASKED_LOGIT / 2
        # Never 0, whose logarithm would make the entropy no number.
        share = (self.epsilon / legal.sum(-1, keepdim=True)).clamp(min=torch.finfo(torch.float32).tiny)
        explored = share.log().expand_as(values)
        best = values.argmax(-1, keepdim=True)
        logits = explored.scatter(-1, best, (1.0 - self.epsilon + share).log())
        return torch.where(legal, logits, values)

    def columns(self, params: Tensor) -> Columns:
        """Logarithms of the probabilities [B, n] with which the choices are taken."""
        return [(self._logits(params),)] if self._is_scalar else super().columns(params)

    def best(self, params: Tensor) -> Tensor:
        """The choices with the largest values, int64."""
        return super()._logits(params).argmax(-1)


class _CategoricalEvaluation(torch.autograd.Function):
    """Log-probabilities of actions and entropies H along the last axis, with their gradient in one operation.

        d log p_a / d logit_i = [i = a] - p_i            d H / d logit_i = -p_i (log p_i + H)

    Saves half a dozen small steps backwards, a tenth of an optimizer step of 4096 transitions.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        log_probs, entropy, kept = _evaluated(logits, actions)
        ctx.save_for_backward(*kept)
        return log_probs, entropy

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        return _gradient_of_logits(ctx.saved_tensors, *grad_outputs), None


def _evaluated(logits: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Sequence[Tensor]]:
    """Log-probabilities, entropies, and the tensors that their gradient needs."""
    log_probs = logits.log_softmax(-1)
    probs = log_probs.exp()
    entropy = -torch.linalg.vecdot(probs, log_probs)
    columns = actions.unsqueeze(-1)
    return log_probs.gather(-1, columns).squeeze(-1), entropy, (log_probs, probs, entropy, columns)


def _gradient_of_logits(kept: Sequence[Tensor], d_log_probs: Tensor, d_entropy: Tensor) -> Tensor:
    log_probs, probs, entropy, columns = kept
    d_log_probs, d_entropy = d_log_probs.unsqueeze(-1), d_entropy.unsqueeze(-1)
    d_logits = (log_probs + entropy.unsqueeze(-1)).mul_(d_entropy).add_(d_log_probs).mul_(probs).neg_()
    return d_logits.scatter_add_(-1, columns, d_log_probs)
