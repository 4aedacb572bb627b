"""A task with several choices at once, not all of them legal."""

from __future__ import annotations

from typing import Any, TypeAlias

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

Observation: TypeAlias = dict[str, npt.NDArray[Any]]

MOVES = np.array([(0, 0), (-1, 0), (0, 1), (1, 0), (0, -1)])
"""Stay, up, right, down, left, in rows and columns."""
COST = 0.02
MAX_STEPS = 40


class Couriers(gymnasium.Env[Observation, Any]):
    """Couriers on a square grid each walk to their own destination; all of them move in every step.

    An action is a MultiDiscrete with one of five moves for each courier. Moves off the grid are illegal, and so is
    everything but staying once a courier has arrived. The observation ``action_mask``, [5 · num_couriers], has a 1 for
    each legal move, courier after courier. Every arrival is worth 1 and every step costs 0.02. So the best return of an
    episode is num_couriers - 0.02 · (the longest of the distances, in rows plus columns), 1.90 on average for two. An
    episode is cut after 40 steps.

    The observation ``positions``, [4 · num_couriers], has row and column of each courier and its destination, 0 to 1.

    Args:
        num_couriers: couriers.
        size: rows and columns of the grid.
    """

    def __init__(self, num_couriers: int = 2, size: int = 6) -> None:
        self.num_couriers, self.size = num_couriers, size
        parts: dict[str, Any] = {
            "positions": spaces.Box(0, 1, (4 * num_couriers,), np.float32),
            "action_mask": spaces.MultiBinary(5 * num_couriers),
        }
        self.observation_space: spaces.Space[Any] = spaces.Dict(parts)
        self.action_space = spaces.MultiDiscrete([5] * num_couriers)
        self.places = self.destinations = np.zeros((num_couriers, 2), np.int64)
        self.steps = 0

    @property
    def best_return(self) -> float:
        """The best return of the present episode, from its present state."""
        distances = np.abs(self.places - self.destinations).sum(1)
        return float(np.count_nonzero(distances) - COST * distances.max())

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Draws places and destinations; no courier begins at its destination."""
        super().reset(seed=seed)
        self.places = self.np_random.integers(self.size, size=(self.num_couriers, 2))
        shift = self.np_random.integers(1, self.size**2, self.num_couriers)
        cells = (self.places @ (self.size, 1) + shift) % self.size**2
        self.destinations = np.stack(np.divmod(cells, self.size), axis=1)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Moves every courier.

        Raises:
            ValueError: a move is illegal.
        """
        legal = self._legal_moves()
        if not legal[np.arange(self.num_couriers), action].all():
            raise ValueError(f"The moves {np.asarray(action).tolist()} are not legal; legal are {legal.tolist()}.")
        had_arrived = self._arrived()
        self.places = self.places + MOVES[action]
        arrived = self._arrived()
        self.steps += 1
        over = bool(arrived.all())
        reward = float(np.count_nonzero(arrived & ~had_arrived)) - COST
        return self._observe(), reward, over, not over and self.steps == MAX_STEPS, {}

    def _arrived(self) -> npt.NDArray[np.bool_]:
        return np.asarray((self.places == self.destinations).all(1))

    def _legal_moves(self) -> npt.NDArray[np.bool_]:
        """[num_couriers, 5]."""
        after = self.places[:, None] + MOVES
        legal = np.asarray(((after >= 0) & (after < self.size)).all(2))
        legal[self._arrived(), 1:] = False
        return legal

    def _observe(self) -> Observation:
        places = np.concatenate([self.places, self.destinations], axis=1)
        return {
            "positions": (places.reshape(-1) / (self.size - 1)).astype(np.float32),
            "action_mask": self._legal_moves().reshape(-1).astype(np.int8),
        }
