"""An environment that does not return from one of its calls."""

from __future__ import annotations

import time
from typing import Any

from tests.environments.toys import Toy


class Hanging(Toy):
    def __init__(self, where: str, **returned: Any) -> None:
        super().__init__(**returned)
        self.where = where
        self.hang_in("constructor")

    def hang_in(self, call: str) -> None:
        if self.where == call:
            time.sleep(10_000)

    def reset(self, **arguments: Any) -> Any:
        self.hang_in("reset")
        return super().reset(**arguments)

    def step(self, action: Any) -> Any:
        self.hang_in("step")
        return super().step(action)

    def close(self) -> None:
        self.hang_in("close")
