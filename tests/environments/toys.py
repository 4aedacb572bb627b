"""Environments that break their contract, or are odd, in one way each, for the tests of everything that must notice.

Without torch, since every process that has one of them imports this module.
"""

from __future__ import annotations

import random
import signal
import time
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


gymnasium.register("Fickle-v0", entry_point="tests.environments.toys:Fickle")
gymnasium.register("Wordy-v0", entry_point="tests.environments.toys:Toy", kwargs={"action_space": spaces.Text(5)})


class GlobalRandom(Toy):
    """Draws from the generators that everybody shares."""

    def reset(self, **_: Any) -> Any:
        return self._drawn(), {}

    def step(self, action: Any) -> Any:
        return self._drawn(), random.random(), random.random() < 0.1, False, {}

    def _drawn(self) -> Any:
        return np.random.random(2).astype(np.float32)


gymnasium.register("GlobalRandom-v0", entry_point="tests.environments.toys:GlobalRandom")


class Grabbing(Toy):
    """Takes the handlers of stop signals for itself when it begins."""

    def reset(self, **arguments: Any) -> Any:
        if not hasattr(self, "has_begun"):
            self.has_begun = True
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: None)
        return super().reset(**arguments)


gymnasium.register("Grabbing-v0", entry_point="tests.environments.toys:Grabbing")


BAD = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf, "large": 3e38}


class Leaky(gymnasium.Env[Any, Any]):
    """Counts its steps; one reward, observation or final observation is no number. Episodes of `length` steps."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, where: str = "reward", bad: str = "nan", every: int = 37, length: int = 20):
        self.where, self.bad, self.every, self.length = where, BAD[bad], every, length
        self.steps = self.total = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.total += 1
        leaks = self.total % self.every == 0
        cut = self.steps == self.length or (leaks and self.where == "final")
        seen = np.full(2, self.bad if leaks and self.where != "reward" else self.steps, np.float32)
        return seen, self.bad if leaks and self.where == "reward" else 1.0, False, cut, {}


gymnasium.register("Leaky-v0", entry_point="tests.environments.toys:Leaky")


class Steady(gymnasium.Env[Any, Any]):
    """Sees the number and its negative, whose sum is zero, after some steps; the reward is the number."""

    action_space = spaces.Discrete(2)

    def __init__(self, number: float = 1.0, dtype: str = "float32", after: int = 0):
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.dtype(dtype).type)
        self.number, self.seen, self.steps = number, np.array([number, -number], dtype), -after

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros_like(self.seen), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.seen * (self.steps > 0), min(self.number, 1e17), False, False, {}


gymnasium.register("Steady-v0", entry_point="tests.environments.toys:Steady")


class Drowsy(gymnasium.Env[Any, Any]):
    """Takes its time for a step; an episode has 20 of them."""

    observation_space = spaces.Box(0, 20, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        time.sleep(0.002)
        self.steps += 1
        return np.array([self.steps], np.float32), 1.0, self.steps == 20, False, {}


gymnasium.register("Drowsy-v0", entry_point="tests.environments.toys:Drowsy")


class Moody(gymnasium.Env[Any, Any]):
    """Does not repeat itself."""

    observation_space = spaces.Box(-10, 10, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return np.random.default_rng().random(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.random.default_rng().random(2, np.float32), 1.0, self.steps == 30, False, {}


gymnasium.register("Moody-v0", entry_point="tests.environments.toys:Moody")
