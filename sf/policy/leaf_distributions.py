"""Distributions of one leaf of an action, as `torch.distributions` understands them."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Normal, constraints
from torch.nn import functional

from sf.nets.distributions import ActionDistribution

# mypy: disable-error-code="no-untyped-call, no-untyped-def"


class Choices(Categorical):
    """Choices that are counted from `start`, an integer or integers of the batch shape, and have its dtype."""

    def __init__(self, logits: Tensor, start: Any = 0) -> None:
        super().__init__(logits=logits, validate_args=False)
        self.start = torch.as_tensor(start)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        drawn: Tensor = super().sample(torch.Size(sample_shape))
        return (drawn + self.start).to(self.start.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        log_probs: Tensor = super().log_prob(value - self.start)
        return log_probs

    @property
    def mode(self) -> Tensor:
        best: Tensor = super().mode
        return (best + self.start).to(self.start.dtype)


class SquashedNormal(Distribution):
    """A normal distribution squashed into [low, high] by tanh; event dimensions are the last `num_event_dims`.

    The squashed mean counts as its mode: the action of the policy when it does not explore.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, mean: Tensor, std: Tensor, low: Tensor, high: Tensor, num_event_dims: int) -> None:
        self.normal, self.middle, self.half = Normal(mean, std, validate_args=False), (high + low) / 2, (high - low) / 2
        self._drawn: tuple[Tensor, Tensor] | None = None
        num_batch_dims = mean.dim() - num_event_dims
        super().__init__(mean.shape[:num_batch_dims], mean.shape[num_batch_dims:], validate_args=False)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        numbers = self.normal.sample(torch.Size(sample_shape))
        value = self._squash(numbers)
        self._drawn = value, numbers
        return value

    def log_prob(self, value: Tensor) -> Tensor:
        """Exact for what `sample` has just returned; other values at the very bounds count as a little inside."""
        if self._drawn is not None and value is self._drawn[0]:
            numbers = self._drawn[1]  # tanh has rounded away what an inverse would need
        else:
            nearly_one = 1 - torch.finfo(value.dtype).eps
            numbers = ((value - self.middle) / self.half).clamp(-nearly_one, nearly_one).atanh()
        log_slope = 2 * (math.log(2) - numbers - functional.softplus(-2 * numbers)) + self.half.log()
        densities: Tensor = self.normal.log_prob(numbers) - log_slope
        return densities.flatten(densities.dim() - len(self.event_shape)).sum(-1) if self.event_shape else densities

    @property
    def mode(self) -> Tensor:
        return self._squash(self.normal.mean)

    def _squash(self, numbers: Tensor) -> Tensor:
        return self.middle + self.half * numbers.tanh()


class Joint(Distribution):
    """The whole action of a network, with the formulas that training uses."""

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, distribution: ActionDistribution, params: Tensor, event_shape: tuple[int, ...]) -> None:
        self.distribution, self.params = distribution, params
        super().__init__(torch.Size((len(params),)), torch.Size(event_shape), validate_args=False)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        own, params = self.distribution, self.params
        noises = (own.noise(len(params), None, params.device) for _ in range(torch.Size(sample_shape).numel()))
        drawn = [own.draw(params, noise) for noise in noises]
        return torch.stack(drawn).reshape(*sample_shape, *drawn[0].shape)

    def log_prob(self, value: Tensor) -> Tensor:
        return self.distribution.evaluate(self.params, value)[0]

    def entropy(self) -> Tensor:
        return self.distribution.evaluate(self.params, self.mode)[1]

    @property
    def mode(self) -> Tensor:
        return self.distribution.best(self.params)


class Fixed(Distribution):
    """One value with certainty; it has no density."""

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.real

    def __init__(self, value: Tensor, num_outer: int) -> None:
        self.value = value
        super().__init__(value.shape[:num_outer], value.shape[num_outer:], validate_args=False)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return self.value.expand((*sample_shape, *self.value.shape))

    @property
    def mode(self) -> Tensor:
        return self.value

    @property
    def mean(self) -> Tensor:
        return self.value


class UniformInteger(Distribution):
    """Every integer from low to high, both included, with the same probability."""

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, low: Tensor, high: Tensor) -> None:
        self.low, self.high = low, high
        super().__init__(low.shape, validate_args=False)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        low, high = self.low.to(torch.float64), self.high.to(torch.float64)
        points = torch.rand((*sample_shape, *self.low.shape), dtype=torch.float64)
        drawn = torch.minimum((low + (points * (high - low + 1)).floor()), high)
        largest = 2.0**63 - 1024  # the next double is too large for an int64
        return drawn.clamp(max=largest).to(self.low.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        inside = (value >= self.low) & (value <= self.high)
        log_prob = -(self.high.to(torch.float64) - self.low.to(torch.float64) + 1).log().to(torch.float32)
        return torch.where(inside, log_prob, float("-inf"))


class SpreadOut(Distribution):
    """Floats: uniform between two limits, exponential behind one, standard normal without any."""

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, low: Tensor, high: Tensor) -> None:
        self.low, self.high = low, high
        super().__init__(low.shape, validate_args=False)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        shape, dtype = (*sample_shape, *self.low.shape), self.low.dtype
        low, high, has_low, has_high = self._limits()
        tail = torch.empty(shape, dtype=dtype).exponential_()
        uniform = low + (high - low) * torch.rand(shape, dtype=dtype)
        one_sided = torch.where(has_low, low + tail, high - tail)
        inside = torch.where(has_low & has_high, uniform, one_sided)
        return torch.where(has_low | has_high, inside, torch.randn(shape, dtype=dtype))

    def log_prob(self, value: Tensor) -> Tensor:
        low, high, has_low, has_high = self._limits()
        tail = torch.where(has_low, low - value, value - high)
        one_sided = torch.where(has_low & has_high, -(high - low).log(), tail)
        normal = -0.5 * value.square() - 0.5 * math.log(2 * math.pi)
        inside = (value >= self.low) & (value <= self.high)
        return torch.where(inside, torch.where(has_low | has_high, one_sided, normal), float("-inf"))

    def _limits(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Limits, 0 where there is none, and where there is one."""
        has_low, has_high = self.low.isfinite(), self.high.isfinite()
        return torch.where(has_low, self.low, 0.0), torch.where(has_high, self.high, 0.0), has_low, has_high


def mode_of(distribution: Distribution) -> Tensor:
    """The most likely action, for a greedy policy."""
    try:
        return distribution.mode
    except (NotImplementedError, AttributeError):
        raise ValueError(f"{type(distribution).__name__} has no mode, so that there is no greedy action.") from None
