"""Advantages and value targets of one trajectory, one step after the other, as the papers have them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sf.config import LearnerConfig
from tests.helpers.recorded import Trajectory
from tests.helpers.slow_network import SlowNetwork


@dataclass(eq=False)
class Transition:
    """Step t of a trajectory, and what the learner makes of it."""

    trajectory: Trajectory
    t: int
    lag: int
    """When the dataset begins."""
    reward: float = math.nan
    advantage: float = math.nan
    value_target: float = math.nan
    """In units of the reward, as the old value is."""

    @property
    def behavior_log_prob(self) -> float:
        return float(self.trajectory.log_probs[self.t])

    @property
    def old_value(self) -> float:
        return float(self.trajectory.values[self.t])


def gae(column: list[Transition], config: LearnerConfig) -> None:
    """Schulman et al. 2015, section 3."""
    advantage = 0.0
    values = column[0].trajectory.values.tolist()
    for s in reversed(column):
        following, goes_on = _after(s, values, config)
        delta = s.reward + config.gamma * following - values[s.t]
        advantage = delta + config.gamma * config.gae_lambda * (advantage if goes_on else 0.0)
        s.advantage, s.value_target = advantage, advantage + values[s.t]


def vtrace(column: list[Transition], network: SlowNetwork, config: LearnerConfig) -> None:
    """Espeholt et al. 2018, remark 1, under the present weights.

    The advantage lacks the factor rho_s of the paper, for which the ratio in the loss stands.
    """
    target_after = math.nan
    log_probs, values = (numbers.tolist() for numbers in network.speak(column[0].trajectory))
    for s in reversed(column):
        ratio = math.exp(log_probs[s.t] - s.behavior_log_prob)
        rho, c = min(config.vtrace_rho, ratio), min(config.vtrace_c, ratio)
        following, goes_on = _after(s, values, config)
        if not goes_on or s is column[-1]:
            target_after = following
        delta = rho * (s.reward + config.gamma * following - values[s.t])
        s.value_target = values[s.t] + delta + config.gamma * c * (target_after - following)
        s.advantage = s.reward + config.gamma * target_after - values[s.t]
        target_after = s.value_target


def _after(s: Transition, values: list[float], config: LearnerConfig) -> tuple[float, bool]:
    """The value of the observation that a step led to, and whether the episode goes on with it."""
    trajectory, t = s.trajectory, s.t
    if trajectory.terminated[t]:
        return 0.0, False
    if trajectory.truncated[t]:
        return float(trajectory.final_values[t]) if config.value_bootstrap else 0.0, False
    return values[t + 1], True
