"""An image environment that a small CNN solves in minutes: catch the falling ball."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

Image = npt.NDArray[np.uint8]

GRID = 9
PIXELS_PER_CELL = 4
LEFT, STAY, RIGHT = 0, 1, 2


class CatchPixels(gymnasium.Env[Image, np.int64]):
    """A ball falls one row per step from a random column; a paddle in the lowest row moves left, stays or moves right.

    Observations: uint8 [1, 36, 36], ball and paddle in white. The episode ends after 8 steps with reward 1 if the
    paddle is under the ball and -1 if not. The optimum is 1; a random policy reaches about -0.7.
    """

    def __init__(self) -> None:
        side = GRID * PIXELS_PER_CELL
        self.observation_space = spaces.Box(0, 255, (1, side, side), np.uint8)
        self.action_space = spaces.Discrete(3)
        self.ball, self.row, self.paddle = 0, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Image, dict[str, Any]]:
        """Drops a new ball."""
        super().reset(seed=seed)
        self.ball, self.paddle = (int(column) for column in self.np_random.integers(GRID, size=2))
        self.row = 0
        return self._image(), {}

    def step(self, action: np.int64) -> tuple[Image, float, bool, bool, dict[str, Any]]:
        """Moves the paddle, then the ball."""
        self.paddle = min(max(self.paddle + int(action) - STAY, 0), GRID - 1)
        self.row += 1
        landed = self.row == GRID - 1
        reward = 0.0 if not landed else 1.0 if self.ball == self.paddle else -1.0
        return self._image(), reward, landed, False, {}

    def _image(self) -> Image:
        cells = np.zeros((GRID, GRID), np.uint8)
        cells[self.row, self.ball] = 255
        cells[GRID - 1, self.paddle] = 255
        image: Image = cells.repeat(PIXELS_PER_CELL, 0).repeat(PIXELS_PER_CELL, 1)[None]
        return image
