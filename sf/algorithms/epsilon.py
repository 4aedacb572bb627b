"""The share of random actions in the course of a run."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from sf.algorithms.settings import expect_in_range
from sf.config.ranges import UNIT
from sf.errors import ConfigError
from sf.learner.acting_network import ActingNetwork
from sf.nets.categorical import EpsilonGreedy


class EpsilonSchedule(NamedTuple):
    """It falls linearly, and then stays."""

    start: float
    """At the start of the run."""
    end: float
    """At its end."""
    fraction: float
    """The part of the run in which it falls from one to the other."""

    @classmethod
    def checked(cls, algorithm: str, start: float, end: float, fraction: float) -> EpsilonSchedule:
        """A schedule of the settings of an algorithm.

        Raises:
            ConfigError: one is not from 0 to 1.
        """
        expect_in_range(
            algorithm, epsilon_start=(start, UNIT), epsilon_end=(end, UNIT), epsilon_fraction=(fraction, UNIT)
        )
        return cls(start, end, fraction)

    def at(self, progress: float) -> float:
        """The share where this part of the run, from 0 to 1, lies behind."""
        done = min(1.0, progress / self.fraction) if self.fraction > 0 else 1.0
        return self.start + done * (self.end - self.start)


def epsilon_of(acting: ActingNetwork, algorithm: str) -> Tensor:
    """The share, a scalar that travels with the weights.

    Raises:
        ConfigError: the policy does not act by it.
    """
    distribution, columns = acting.policy.distribution, acting.policy.info.action.columns
    if isinstance(distribution, EpsilonGreedy):
        return distribution.epsilon
    if len(columns) == 1 and columns[0].num_choices:
        raise ConfigError(
            [
                f"algorithm={algorithm} chooses the best of several actions. Set --exploration=epsilon_greedy, or "
                "--algorithm_defaults=dqn, which gives all flags the defaults that they have with dqn."
            ]
        )
    raise ConfigError(
        [
            f"algorithm={algorithm} chooses the best of several actions (exploration=epsilon_greedy, with a Discrete "
            f"action space); found {acting.policy.info.action}. Use --algorithm=sac or ppo for numbers."
        ]
    )
