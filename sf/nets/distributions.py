"""Distributions of actions as functions of the numbers that the policy head puts out.

All kinds have the same methods: `draw` and `best` give actions, `sample` and `mode` the same ones and their
log-probabilities. `sample` and `evaluate` use the same formula for the log-probability, so that the ratio of an action
under unchanged weights is 1 up to rounding. Randomness comes from `noise`, and everything else is a function of
tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sf.config import ModelConfig
from sf.spaces import ActionSpec

MASKED_LOGIT = -1e8
"""A finite stand-in for minus infinity: probability exactly 0, and 0·log 0 without nan in the entropy."""

HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
Columns = list[tuple[Tensor, ...]]
"""Distribution of each number or choice of an action: logits [N, n], or mean and deviation [N]."""
GradientOfParams = Callable[[Tensor, Tensor], Tensor]
"""From the derivatives [B] with respect to log-probabilities and entropies to those with respect to the parameters."""


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


class DiagonalGaussian(nn.Module):
    """One normal distribution for each of d numbers; the parameters are means, or means and log-deviations.

    With `adaptive_stddev` both are parameters. Without it the log-deviations are free, the same for all observations.
    """

    def __init__(self, size: int, config: ModelConfig) -> None:
        super().__init__()
        self.size = self.noise_size = size
        self.num_logits = 0
        self.num_params = 2 * size if config.adaptive_stddev else size
        self.initial_log_std, self._limits = math.log(config.initial_stddev), config.log_stddev_limits
        free = torch.full((size,), self.initial_log_std)
        self.log_std = None if config.adaptive_stddev else nn.Parameter(free)
        self._free_log_std = (self.log_std,)

    def noise(self, num_rows: int, generator: torch.Generator | None, device: torch.device | None = None) -> Tensor:
        """[B, d] standard normal numbers."""
        return torch.empty(num_rows, self.size, dtype=torch.float32, device=device).normal_(generator=generator)

    def draw(self, params: Tensor, noise: Tensor) -> Tensor:
        """Actions [B, d]."""
        mean, log_std = self.moments(params)
        return torch.addcmul(mean, noise, log_std.exp())

    def sample(self, params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [B, d] and their joint log-probabilities [B]."""
        actions = self.draw(params, noise)
        return actions, self._log_probs(*self.moments(params), actions)

    def best(self, params: Tensor) -> Tensor:
        """The means [B, d]."""
        return self.moments(params)[0]

    def mode(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """The means [B, d] and their joint log-probabilities [B]."""
        mean, log_std = self.moments(params)
        return mean, self._log_probs(mean, log_std, mean)

    def evaluate(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Joint log-probabilities of actions [B, d] and joint entropies, both [B]."""
        mean, log_std = self.moments(params)
        return self._log_probs(mean, log_std, actions), self._entropy(params, log_std)

    def evaluate_by_hand(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, GradientOfParams]:
        """The result of `evaluate`, and its gradient; that of free deviations is added to theirs.

        With z = (action - mean) / std, d log p / d mean = z / std and d log p / d log_std = z² - 1.
        """
        mean, log_std = self.moments(params)
        inverse = torch.exp(-log_std)
        distances = (actions - mean) * inverse

        def gradient(d_log_probs: Tensor, d_entropy: Tensor) -> Tensor:
            d_log_probs, d_entropy = d_log_probs.unsqueeze(-1), d_entropy.unsqueeze(-1)
            d_mean = distances * d_log_probs
            d_log_std = (d_mean * distances).sub_(d_log_probs).add_(d_entropy)
            d_mean.mul_(inverse)
            if self.log_std is None:
                shifted = params[..., self.size :] + self.initial_log_std
                low, high = self._limits
                d_log_std.masked_fill_((shifted < low) | (shifted > high), 0.0)
                return torch.cat([d_mean, d_log_std], -1)
            assert self.log_std.grad is not None
            self.log_std.grad.add_(d_log_std.sum(0))
            return d_mean

        return self._densities(distances, log_std), self._entropy(params, log_std), gradient

    def limit_stddev(self) -> None:
        """Brings free deviations back into their limits; an entropy bonus widens those that matter for no reward."""
        if self.log_std is not None:
            self.log_std.detach().clamp_(*self._limits)

    def stddev(self, params: Tensor) -> Tensor:
        """Standard deviations, [d] or [B, d]."""
        return self.moments(params)[1].exp()

    def columns(self, params: Tensor) -> Columns:
        """Mean and standard deviation [B] of each number."""
        mean, log_std = self.moments(params)
        return list(zip(mean.unbind(-1), log_std.exp().expand_as(mean).unbind(-1), strict=True))

    def moments(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """Means [B, d] and logarithms of the deviations, [d] or [B, d]."""
        (log_std,) = self._free_log_std
        if log_std is not None:
            return params, log_std
        # The head starts near 0, hence the shift; the limits keep exp and its gradient finite.
        adaptive = (params[..., self.size :] + self.initial_log_std).clamp(*self._limits)
        return params[..., : self.size], adaptive

    def _log_probs(self, mean: Tensor, log_std: Tensor, actions: Tensor) -> Tensor:
        return self._densities((actions - mean) * torch.exp(-log_std), log_std)

    def _densities(self, distances: Tensor, log_std: Tensor) -> Tensor:
        """[B] logarithms, from the distances to the mean in standard deviations."""
        log_densities = -0.5 * distances.square() - log_std
        return log_densities.sum(-1) - self.size * HALF_LOG_TWO_PI

    def _entropy(self, params: Tensor, log_std: Tensor) -> Tensor:
        entropy = log_std.sum(-1) + self.size * (0.5 + HALF_LOG_TWO_PI)
        return entropy.expand(len(params))


class NoisyAction(DiagonalGaussian):
    """Numbers in [-1, 1] that the network gives, with noise of one deviation for all of them.

    The deviation is a buffer, so it is published and saved with the weights. The environment limits the sum.
    """

    log_noise: Tensor

    def __init__(self, size: int, config: ModelConfig) -> None:
        super().__init__(size, replace(config, adaptive_stddev=False))
        self.log_std, self._free_log_std = None, (None,)
        self.register_buffer("log_noise", torch.full((), math.log(0.1)))

    def moments(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """See `DiagonalGaussian`."""
        return params.tanh(), self.log_noise.expand(self.size)


class Mixed(nn.Module):
    """Choices and numbers in one action, [B, D] floats; the parameters are those of the choices, then the others."""

    def __init__(self, action: ActionSpec, config: ModelConfig) -> None:
        super().__init__()
        is_choice = torch.tensor([column.num_choices > 0 for column in action.columns])
        self._choice_columns, self._number_columns = is_choice.nonzero()[:, 0], (~is_choice).nonzero()[:, 0]
        self._order = torch.cat([self._choice_columns, self._number_columns]).argsort()
        self.choices = Categorical(action.choices, is_scalar=False)
        self.numbers = DiagonalGaussian(len(self._number_columns), config)
        self.num_logits = self.choices.num_logits
        self.num_params = self.num_logits + self.numbers.num_params
        self._noise_sizes = [self.choices.noise_size, self.numbers.noise_size]
        self.noise_size = sum(self._noise_sizes)

    def noise(self, num_rows: int, generator: torch.Generator | None, device: torch.device | None = None) -> Tensor:
        """[B, n] numbers, those for the choices first."""
        return torch.cat([part.noise(num_rows, generator, device) for part in (self.choices, self.numbers)], -1)

    def draw(self, params: Tensor, noise: Tensor) -> Tensor:
        """Actions [B, D]."""
        choices, numbers = self._split(params)
        of_choices, of_numbers = torch.split(noise, self._noise_sizes, -1)
        return self._side_by_side(self.choices.draw(choices, of_choices), self.numbers.draw(numbers, of_numbers))

    def best(self, params: Tensor) -> Tensor:
        """The most probable choices and the means [B, D]."""
        choices, numbers = self._split(params)
        return self._side_by_side(self.choices.best(choices), self.numbers.best(numbers))

    def sample(self, params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [B, D] and their joint log-probabilities [B]."""
        choices, numbers = self._split(params)
        of_choices, of_numbers = torch.split(noise, self._noise_sizes, -1)
        return self._join(self.choices.sample(choices, of_choices), self.numbers.sample(numbers, of_numbers))

    def mode(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """The most probable choices and the means [B, D] and their joint log-probabilities [B]."""
        choices, numbers = self._split(params)
        return self._join(self.choices.mode(choices), self.numbers.mode(numbers))

    def evaluate(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Joint log-probabilities of actions [B, D] and joint entropies, both [B]."""
        choices, numbers = self._split(params)
        of_choices = self.choices.evaluate(choices, actions[:, self._choice_columns].to(torch.int64))
        of_numbers = self.numbers.evaluate(numbers, actions[:, self._number_columns])
        return of_choices[0] + of_numbers[0], of_choices[1] + of_numbers[1]

    def limit_stddev(self) -> None:
        """See `DiagonalGaussian`."""
        self.numbers.limit_stddev()

    def stddev(self, params: Tensor) -> Tensor:
        """Standard deviations of the numbers, [d] or [B, d]."""
        return self.numbers.stddev(self._split(params)[1])

    def columns(self, params: Tensor) -> Columns:
        """Logits of each choice, mean and deviation of each number, in the order of the action."""
        choices, numbers = self._split(params)
        columns = self.choices.columns(choices) + self.numbers.columns(numbers)
        return [columns[place] for place in self._order.cpu().tolist()]

    def _split(self, params: Tensor) -> tuple[Tensor, Tensor]:
        return params[..., : self.num_logits], params[..., self.num_logits :]

    def _join(self, choices: tuple[Tensor, Tensor], numbers: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return self._side_by_side(choices[0], numbers[0]), choices[1] + numbers[1]

    def _side_by_side(self, choices: Tensor, numbers: Tensor) -> Tensor:
        return torch.cat([choices.to(torch.float32), numbers], -1)[:, self._order]


ActionDistribution = Categorical | DiagonalGaussian | Mixed


def action_distribution(action: ActionSpec, config: ModelConfig) -> ActionDistribution:
    """The distribution that fits an action space."""
    num_choices = len(action.choices)
    if num_choices == len(action.columns):
        kind = EpsilonGreedy if config.exploration == "epsilon_greedy" else Categorical
        return kind(action.choices, action.is_scalar)
    if num_choices == 0:
        return (NoisyAction if config.exploration == "noise" else DiagonalGaussian)(len(action.columns), config)
    return Mixed(action, config)


def kl_divergence(before: Columns, now: Columns) -> Tensor:
    """[N] KL divergence of the actions under distributions from those under earlier ones."""
    total = torch.zeros(len(now[0][0]), device=now[0][0].device)
    for old, new in zip(before, now, strict=True):
        if len(old) == 1:
            old_logs, new_logs = (functional.log_softmax(logits, -1) for (logits,) in (old, new))
            total = total + (old_logs.exp() * (old_logs - new_logs)).sum(-1)
        else:
            (old_mean, old_std), (new_mean, new_std) = old, new
            squares = (old_std.square() + (old_mean - new_mean).square()) / (2 * new_std.square())
            total = total + (new_std / old_std).log() + squares - 0.5
    return total
