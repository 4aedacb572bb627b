"""Environments that break their contract in one way each, for the tests of everything that must notice."""

from __future__ import annotations

import random
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

Space = spaces.Space[Any]


class Toy(gymnasium.Env[Any, Any]):
    """A correct environment of two numbers; everything it returns can be replaced."""

    observation_space: Space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space: Space = spaces.Discrete(3)

    def __init__(self, **returned: Any) -> None:
        self.returned = {
            "observation": np.zeros(2, np.float32),
            "reward": 1.0,
            "terminated": False,
            "truncated": False,
        } | returned
        for name in ("observation_space", "action_space", "num_agents"):
            if name in returned:
                setattr(self, name, returned[name])

    def reset(self, **_: Any) -> Any:
        return self.returned.get("reset", (self.returned["observation"], {}))

    def step(self, action: Any) -> Any:
        parts = (*(self.returned[name] for name in ("observation", "reward", "terminated", "truncated")), {})
        return self.returned.get("step", parts)


def named_toy(name: str, **returned: Any) -> Toy:
    """A member of a family."""
    return Toy(name=name, **returned)


class TwoToys(Toy):
    """Two agents, after the multi-agent protocol."""

    num_agents = 2

    def reset(self, **_: Any) -> Any:
        return [self.returned["observation"]] * self.num_agents, [{}, {}]

    def step(self, action: Any) -> Any:
        assert len(action) == self.num_agents
        parts = ([self.returned[name]] * 2 for name in ("observation", "reward", "terminated", "truncated"))
        return self.returned.get("step", (*parts, [{}, {}]))


class Raising(Toy):
    """Raises in one of its calls."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self.fail_in("constructor")

    def reset(self, **_: Any) -> Any:
        self.fail_in("reset")
        return super().reset()

    def step(self, action: Any) -> Any:
        self.fail_in("step")
        return super().step(action)

    def close(self) -> None:
        self.fail_in("close")

    def fail_in(self, call: str) -> None:
        if self.where == call:
            raise Unprintable(call)


class Unprintable(Exception):
    """An exception whose text raises as well."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Fickle(Toy):
    """Has another observation space in every instance."""

    instances = 0  # so far

    def __init__(self) -> None:
        Fickle.instances += 1
        size = 1 + Fickle.instances
        super().__init__(
            observation=np.zeros(size, np.float32), observation_space=spaces.Box(-1.0, 1.0, (size,), np.float32)
        )


class GlobalRandom(Toy):
    """Draws from the generators that everybody shares."""

    def reset(self, **_: Any) -> Any:
        return self._drawn(), {}

    def step(self, action: Any) -> Any:
        return self._drawn(), random.random(), random.random() < 0.1, False, {}

    def _drawn(self) -> Any:
        return np.random.random(2).astype(np.float32)


gymnasium.register("GlobalRandom-v0", entry_point="tests.toy_envs:GlobalRandom")
