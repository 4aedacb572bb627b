"""Returns that no policy can change, drawn from the global generators of Python, NumPy and torch."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch

from tests.environments.toys import Toy

DRAWS: dict[str, Callable[[], float]] = {
    "python": random.random,
    "numpy": np.random.random,
    "torch": lambda: float(torch.rand(())),
}


class Luck(Toy):
    """Pays in every step what it draws at a reset, and in its constructor."""

    length = 4

    def __init__(self, kind: str, **_: Any) -> None:
        super().__init__()
        self.draw = DRAWS[kind]
        self.charm = self.draw()

    def reset(self, **_: Any) -> Any:
        self.t, self.luck = 0, self.draw()
        return super().reset()

    def step(self, action: Any) -> Any:
        self.t += 1
        observation, _, terminated, _, info = super().step(action)
        return observation, self.luck + self.charm, terminated, self.t == self.length, info


class Lottery(Toy):
    """A quarter of the episodes lasts 2,000 steps and pays nothing, the others last one step and pay 1."""

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.random = np.random.default_rng()

    def reset(self, *, seed: int | None = None, **_: Any) -> Any:
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.t, self.is_long = 0, self.random.random() < 0.25
        return super().reset()

    def step(self, action: Any) -> Any:
        self.t += 1
        observation, _, _, _, info = super().step(action)
        return observation, float(not self.is_long), not self.is_long or self.t == 2000, False, info


gymnasium.register("Lottery-v0", entry_point="tests.environments.luck:Lottery")
for name in DRAWS:
    gymnasium.register(f"Luck-{name}", entry_point="tests.environments.luck:Luck", kwargs={"kind": name})
