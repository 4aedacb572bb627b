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


for name in DRAWS:
    gymnasium.register(f"Luck-{name}", entry_point="tests.environments.luck:Luck", kwargs={"kind": name})
