"""Environments that ask for their place, exist once per process, take long to make, or hold two agents."""

from __future__ import annotations

import functools
import time
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from sf_envs.counter import Counter


class TupleOfBits(gymnasium.Env[Any, Any]):
    """Two agents in one environment: Tuple spaces, a list of rewards, one flag; agent i earns its bit.

    Args:
        flags: whether they come one per agent as well.
        shared: whether one reward counts for all.
        odd: whether the second agent has another action space.
    """

    def __init__(self, flags: bool = False, shared: bool = False, odd: bool = False) -> None:
        self.flags, self.shared = flags, shared
        self.observation_space = spaces.Tuple([spaces.Discrete(2)] * 2)
        self.action_space = spaces.Tuple(
            [spaces.Discrete(2), spaces.Box(0.0, 1.0, (1,)) if odd else spaces.Discrete(2)]
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return (0, 1), {}

    def step(self, actions: Any) -> Any:
        assert isinstance(actions, tuple)
        assert self.action_space.contains(actions)
        self.steps += 1
        over = self.steps == 4
        rewards = 1.0 if self.shared else [0.0, 1]
        return (0, 1), rewards, False, [over] * 2 if self.flags else over, {}


gymnasium.register("TupleOfBits-v0", entry_point="tests.environments.first_contact:TupleOfBits")


class Placed(Counter):
    """Shows the two numbers that it has asked for."""

    def __init__(self, sf_worker: int, sf_index: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.place = sf_worker, sf_index

    def _observe(self) -> Any:
        return np.array([*self.place, self.steps], np.float32)


def placed(sf_index: int, **arguments: Any) -> Placed:
    """Asks for one of them only."""
    return Placed(-1, sf_index, **arguments)


def many_placed(num_envs: int, sf_worker: int, sf_index: int) -> SyncVectorEnv:
    make = [functools.partial(Placed, sf_worker, sf_index + index) for index in range(num_envs)]
    return SyncVectorEnv(make, autoreset_mode=AutoresetMode.NEXT_STEP)


class PlacedPair(TupleOfBits):
    """Two agents that share a place."""

    def __init__(self, sf_worker: int, sf_index: int) -> None:
        super().__init__()
        self.place = sf_worker, sf_index
        self.observation_space = spaces.Tuple([spaces.Box(-9, 99, (3,))] * 2)

    def reset(self, **arguments: Any) -> Any:
        super().reset(**arguments)
        return (np.array([*self.place, 0], np.float32),) * 2, {}

    def step(self, actions: Any) -> Any:
        return (np.array([*self.place, 0], np.float32),) * 2, *super().step(actions)[1:]


gymnasium.register(
    "Placed-v0",
    entry_point="tests.environments.first_contact:Placed",
    vector_entry_point="tests.environments.first_contact:many_placed",
)
gymnasium.register("PlacedPair-v0", entry_point="tests.environments.first_contact:PlacedPair")


class Once(Counter):
    """An emulator that exists once per process.

    Args:
        by_reset: whether the reset of a second one raises, in place of its constructor.
    """

    alive = 0

    def __init__(self, by_reset: bool = False) -> None:
        super().__init__(episode_steps=4)
        self.by_reset, self.counts = by_reset, False
        if not by_reset:
            self.begin()

    def begin(self) -> None:
        if Once.alive and not self.counts:
            raise RuntimeError("only one instance per process")
        if not self.counts:
            Once.alive, self.counts = 1, True

    def reset(self, **arguments: Any) -> Any:
        self.begin()
        return super().reset(**arguments)

    def close(self) -> None:
        if self.counts:
            Once.alive, self.counts = 0, False


class SlowlyMade(Counter):
    """The first one of a process takes 0.2 s to be made, as if it imported something, and each later one 0.02 s.

    Args:
        second_raises: the method that raises, of an environment with another index than 0.
    """

    places: ClassVar[list[tuple[int, int]]] = []
    num_open = 0

    def __init__(self, sf_worker: int, sf_index: int, second_raises: str = "") -> None:
        super().__init__()
        time.sleep(0.02 if self.places else 0.2)
        self.places.append((sf_worker, sf_index))
        self.raises = second_raises if sf_index else ""
        SlowlyMade.num_open += 1

    def reset(self, **arguments: Any) -> Any:
        if self.raises == "reset":
            raise RuntimeError("no second reset")
        return super().reset(**arguments)

    def close(self) -> None:
        SlowlyMade.num_open -= 1
        if self.raises == "close":
            raise RuntimeError("no second close")


gymnasium.register("SlowlyMade-v0", entry_point="tests.environments.first_contact:SlowlyMade")
