"""Random numbers of actions that stay alike for some steps (`--noise_correlation`).

Noise that is drawn anew in each step averages out before something heavy has moved: a car in a valley never leaves it
by chance. Here each number has a correlation with the one of the step before, and is standard normal by itself
(Hollenstein et al. 2024, "Colored Noise in PPO", arXiv:2312.11091; the sequence is that of Uhlenbeck and Ornstein).

Log-probabilities are those of the distribution. That is an approximation: what the policy sees tells something of the
noise before, and so of the present one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sf.config import Config
from sf.shared.arena import Array
from sf.shared.context import RunContext

LASTING = 0x6C617374
"""The last word of the entropy: no other stream is like one of these."""


def lasting_noise(config: Config, context: RunContext, entropy: Sequence[int]) -> LastingNoise | None:
    """That of a process, if the run has any; all its actions are numbers then, see `check`."""
    correlation = config.inference.noise_correlation
    size = len(context.info.action.columns)
    return LastingNoise(correlation, context.topology.rows, size, entropy) if correlation else None


def following(before: Any, fresh: Any, correlation: float) -> Any:
    """Standard normal numbers, arrays or tensors, that have this correlation with those before."""
    return correlation * before + math.sqrt(1.0 - correlation**2) * fresh


class LastingNoise:
    """The numbers of all groups that a process acts for; each group has a stream of its own."""

    def __init__(self, correlation: float, rows: int, size: int, entropy: Sequence[int]) -> None:
        """Draws nothing yet.

        Args:
            correlation: of a number with that of the step before, from 0 to less than 1.
            rows: of a group.
            size: numbers in an action.
            entropy: of the random numbers of this process.
        """
        self._correlation, self._shape, self._entropy = correlation, (rows, size), list(entropy)
        self._randoms: dict[int, np.random.Generator] = {}
        self._last: dict[int, Array] = {}
        """[rows, size] float32 by group, of the last step."""

    def draw(self, group: int, is_step: bool) -> Array:
        """Numbers [rows, size] float32 for a group.

        Args:
            group: that asks.
            is_step: whether it takes a step; else it has its last observation valued, and the last numbers are kept.
        """
        if group not in self._randoms:
            self._randoms[group] = self._random(group)
            self._last[group] = self._randoms[group].standard_normal(self._shape, np.float32)
        elif is_step:
            fresh = self._randoms[group].standard_normal(self._shape, np.float32)
            self._last[group] = following(self._last[group], fresh, self._correlation)
        return self._last[group]

    def state(self) -> dict[str, Any]:
        """In plain JSON types."""
        return {
            str(group): {"random": random.bit_generator.state, "last": self._last[group].tolist()}
            for group, random in self._randoms.items()
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        for group, saved in state.items():
            self._randoms[int(group)] = self._random(int(group))
            self._randoms[int(group)].bit_generator.state = saved["random"]
            self._last[int(group)] = np.array(saved["last"], np.float32)

    def _random(self, group: int) -> np.random.Generator:
        return np.random.default_rng([*self._entropy, group, LASTING])
