"""An environment that waits until a test lets it go on. Without torch."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gymnasium

from tests.environments.toys import Toy

LONGEST_S = 60.0


class Waiting(Toy):
    """Each step ends an episode; the second one waits for a file."""

    def __init__(self, gate: str) -> None:
        super().__init__(terminated=True)
        self.gate, self.steps = Path(gate), 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        end_s = time.monotonic() + LONGEST_S
        while self.steps == 2 and not self.gate.exists():
            assert time.monotonic() < end_s, f"nothing has made {self.gate}"
            time.sleep(0.001)
        return super().step(action)


gymnasium.register("Waiting-v0", entry_point="tests.environments.waiting:Waiting")
