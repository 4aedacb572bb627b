"""Flags of population-based training; `sf.config.pbt_space` reads and checks the space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from sf.config.ranges import AT_LEAST_0, AT_LEAST_1, UNIT, Range

MOST_REPLACED = Range(0, 0.5, open_low=True)
"""The best and the worst policies are never the same ones."""
FACTOR = Range(1)
DEFAULT_SPACE = '{"learning_rate": {"min": 1e-5, "max": 1e-2}, "exploration_loss_coeff": {"min": 1e-4, "max": 0.1}}'


@dataclass(frozen=True)
class PopulationConfig:
    """Population-based training: worse policies of a run go on from better ones, with other hyperparameters."""

    with_pbt: bool = False
    """Train num_policies policies as a population: the better ones replace the worse ones, and flags mutate."""
    pbt_space: str = DEFAULT_SPACE
    """Flags of the learner that mutate, and arguments of the environment as env.NAME, with their ranges, as JSON:
    {"gamma": {"min": 0.9, "max": 0.999}}. With "scale": "linear" first values are drawn evenly, else by their
    logarithm."""
    pbt_period_env_steps: Annotated[int, AT_LEAST_1] = 5_000_000
    """Frames of a policy between two decisions about it."""
    pbt_start_mutation: Annotated[int, AT_LEAST_0] = 20_000_000
    """Frames of a policy before the first decision about it."""
    pbt_replace_fraction: Annotated[float, MOST_REPLACED] = 0.3
    """Share of the policies that counts as the best, which stay as they are, and as the worst, which are replaced."""
    pbt_mutation_rate: Annotated[float, UNIT] = 0.15
    """Probability with which each value changes in a mutation."""
    pbt_replace_reward_gap: Annotated[float, AT_LEAST_0] = 0.1
    """A policy is replaced only where it is worse by more than this share of the other one's score."""
    pbt_replace_reward_gap_absolute: Annotated[float, AT_LEAST_0] = 1e-6
    """A policy is replaced only where its score is lower by more than this."""
    pbt_perturb_min: Annotated[float, FACTOR] = 1.1
    """Smallest factor by which a mutation multiplies or divides a value."""
    pbt_perturb_max: Annotated[float, FACTOR] = 1.5
    """Largest factor by which a mutation multiplies or divides a value."""
    pbt_draw_initial: bool = False
    """Begin each policy with values drawn from pbt_space instead of those of the flags."""
