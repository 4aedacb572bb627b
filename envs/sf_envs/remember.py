"""A task that needs a recurrent policy."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

Vector = npt.NDArray[np.float32]


class Remember(gymnasium.Env[Vector, Any]):
    """Shows one of some cues in the first observation, then nothing, and at last asks which one it was.

    The reward is 1 for the right answer in the last step and 0 otherwise, so the best return is 1. At the question all
    observations are alike, hence no policy without recurrent layers can expect more than 1 / num_cues.

    Observations are [num_cues + 1]: the cue, one-hot, in the first one; a 1 at the end of the one that asks.

    Args:
        num_cues: cues and answers.
        delay: observations between the cue and the question.
    """

    def __init__(self, num_cues: int = 4, delay: int = 8) -> None:
        self.num_cues, self.delay = num_cues, delay
        self.observation_space = spaces.Box(0, 1, (num_cues + 1,), np.float32)
        self.action_space = spaces.Discrete(num_cues)
        self.cue, self.steps = 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Vector, dict[str, Any]]:
        """Draws a cue and shows it."""
        super().reset(seed=seed)
        self.cue, self.steps = int(self.np_random.integers(self.num_cues)), 0
        observation = np.zeros(self.num_cues + 1, np.float32)
        observation[self.cue] = 1
        return observation, {}

    def step(self, action: Any) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        """Only the answer to the question counts."""
        asked = self.steps == self.delay + 1
        self.steps += 1
        observation = np.zeros(self.num_cues + 1, np.float32)
        observation[-1] = self.steps == self.delay + 1
        return observation, float(asked and action == self.cue), asked, False, {}
