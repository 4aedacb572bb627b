"""An environment whose only reward a random policy does not find: a dive to the far corner of a grid."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

Cells = npt.NDArray[np.float32]


class DeepSea(gymnasium.Env[Cells, np.int64]):
    """A square of cells; each step goes one row down, and one column to the right or to the left.

    Which of the two actions goes to the right differs from cell to cell, the same in all episodes and environments. The
    last step has the reward 1 if all steps went to the right, and there is no other one. A random policy finds it
    in one of 2^size episodes. The same problem has a cost for each step to the right in Osband et al. 2020
    (arXiv:1908.03568).

    Observations: float32 [size²], 1 for the present cell. Episodes have `size` steps.
    """

    def __init__(self, size: int = 20) -> None:
        """Makes a square.

        Args:
            size: rows and columns, 2 or more.

        Raises:
            ValueError: there are fewer.
        """
        if size < 2:
            raise ValueError(f"size={size}, but the sea needs 2 rows or more.")
        self.size = size
        self.observation_space = spaces.Box(0.0, 1.0, (size * size,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._goes_right = np.random.default_rng(size).integers(2, size=(size, size))
        self.row = self.column = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Cells, dict[str, Any]]:
        """Begins in the upper left cell."""
        super().reset(seed=seed)
        self.row = self.column = 0
        return self._cells(), {}

    def step(self, action: np.int64) -> tuple[Cells, float, bool, bool, dict[str, Any]]:
        """Goes one row down."""
        goes_right = int(action) == self._goes_right[self.row, self.column]
        self.column = self.column + 1 if goes_right else max(self.column - 1, 0)
        self.row += 1
        has_ended = self.row == self.size
        reward = 1.0 if has_ended and self.column == self.size else 0.0
        return self._cells(), reward, has_ended, False, {}

    def _cells(self) -> Cells:
        cells = np.zeros((self.size, self.size), np.float32)
        cells[min(self.row, self.size - 1), min(self.column, self.size - 1)] = 1.0
        return cells.ravel()
