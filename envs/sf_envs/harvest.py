"""A cooperative task in which most of what the team is paid depends on what no agent sees."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from sf.errors import EnvError

Array = npt.NDArray[Any]


class Harvest:
    """Farmers on a row of fields each walk to their own crop, and a new one grows elsewhere.

    An action is left, stay or right. Each crop pays 1 to all farmers, and each step pays the weather of the episode,
    which no farmer sees. So a critic that reads the state can tell good steps from a good year. The best policy takes
    the shortest way to every crop.

    An observation, [3], has the own field, the own crop and the time, 0 to 1. The state, [2 · num_agents + 2], has all
    fields and crops, the time and the weather, -1 to 1. The metric `harvested` counts the crops of an episode
    that the farmer has taken.

    Args:
        num_agents: farmers.
        num_fields: fields of a row.
        steps: of an episode.
        weather: of an episode, uniform between minus and plus this.
    """

    def __init__(self, num_agents: int = 3, num_fields: int = 9, steps: int = 25, weather: float = 2.0) -> None:
        if num_fields < 2:
            raise EnvError(f"num_fields={num_fields}, expected at least 2: another crop grows elsewhere.")
        self.num_agents, self.size, self.steps, self.most = num_agents, num_fields, steps, weather
        self.observation_space: spaces.Space[Any] = spaces.Box(0.0, 1.0, (3,), np.float32)
        self.action_space: spaces.Space[Any] = spaces.Discrete(3)
        self.state_space = spaces.Box(-1.0, 1.0, (2 * num_agents + 2,), np.float32)
        self.random = np.random.default_rng(0)
        self.fields, self.crops, self.harvested = (np.zeros(num_agents, np.int64) for _ in range(3))
        self.weather, self.time = 0.0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[list[Array], list[Any]]:
        """Draws the weather, fields and crops."""
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.weather = float(self.random.uniform(-self.most, self.most))
        self.fields = self.random.integers(self.size, size=self.num_agents)
        self.crops = self._elsewhere(self.fields)
        self.harvested, self.time = np.zeros(self.num_agents, np.int64), 0
        return self._seen(), [{} for _ in range(self.num_agents)]

    def step(self, actions: list[Any]) -> tuple[list[Array], list[float], list[bool], list[bool], list[Any]]:
        """Moves all farmers at once."""
        self.fields = np.clip(self.fields + np.asarray(actions) - 1, 0, self.size - 1)
        self.time += 1
        is_there = self.fields == self.crops
        self.harvested += is_there
        self.crops = np.where(is_there, self._elsewhere(self.fields), self.crops)
        reward, is_over = int(is_there.sum()) + self.weather, self.time == self.steps
        infos = [{"metrics": {"harvested": float(count)}} if is_over else {} for count in self.harvested]
        over = [is_over] * self.num_agents
        return self._seen(), [reward] * self.num_agents, over, [False] * self.num_agents, infos

    def state(self) -> Array:
        """Fields and crops of all farmers, the time, and the weather."""
        places = np.concatenate([self.fields, self.crops]) / (self.size - 1)
        return np.array([*places, self.time / self.steps, self.weather / (self.most or 1.0)], np.float32)

    def close(self) -> None:
        """Nothing to close."""

    def _elsewhere(self, fields: Array) -> Array:
        """A field of each farmer that is not its own."""
        return (fields + self.random.integers(1, self.size, size=self.num_agents)) % self.size

    def _seen(self) -> list[Array]:
        last = self.size - 1
        rows = zip(self.fields.tolist(), self.crops.tolist(), strict=True)
        return [np.array([field / last, crop / last, self.time / self.steps], np.float32) for field, crop in rows]
