"""Distributions of actions as functions of the numbers that the policy head puts out.

All kinds have the same methods: `draw` and `best` give actions, `sample` and `mode` the same ones and their
log-probabilities. `sample` and `evaluate` use the same formula for the log-probability, so that the ratio of an action
under unchanged weights is 1 up to rounding. Randomness comes from `noise`, and everything else is a function of
tensors.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sf.config import ModelConfig
from sf.nets.categorical import Categorical, EpsilonGreedy
from sf.nets.columns import Columns
from sf.nets.gaussian import DiagonalGaussian, NoisyAction
from sf.spaces import ActionSpec


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
