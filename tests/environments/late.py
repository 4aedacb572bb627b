"""Environments that are correct for some steps and odd afterwards: single ones, several agents, many at once."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from sf.envs import EnvSource, probe
from sf.envs.batches import make_env_batch
from sf.envs.stepping import EnvBatch
from sf.envs.vector_stepping import VectorBatch
from sf.errors import EnvCrashed, EnvError
from sf.shared.arena import Array

ROWS = 4


GOOD_STEPS = 10


Values = dict[str, Any]


NO_INFOS: Values = {}


class Late(gym.Env[Any, Any]):
    """Correct for some steps; after them `changes` are what it returns instead."""

    observation_space: Any = spaces.Box(-1, 1, (2,), np.float32)
    action_space: Any = spaces.Discrete(2)

    def __init__(self, observation_space: Any = None, good: Any = None, **changes: Any) -> None:
        if observation_space is not None:
            self.observation_space = observation_space
        self.good = np.zeros(2, np.float32) if good is None else good
        self.changes, self.steps = changes, 0

    def reset(self, **_: Any) -> Any:
        return self.changes["reset"] if "reset" in self.changes and self.steps > GOOD_STEPS else (self.good, {})

    def parts(self) -> Values:
        self.steps += 1
        parts: Values = {"observation": self.good, "reward": 1.0, "terminated": False, "truncated": False, "info": {}}
        return parts | self.changes if self.steps > GOOD_STEPS else parts

    def step(self, action: Any) -> Any:
        parts = self.parts()
        whole = parts.pop("step", None)
        return whole or tuple(parts[name] for name in ("observation", "reward", "terminated", "truncated", "info"))


class LatePair(Late):
    """Two agents; the second one is odd, or both if all of them must be."""

    num_agents = 2

    def reset(self, **_: Any) -> Any:
        first, info = super().reset()
        return [first] * 2, [info] * 2

    def step(self, action: Any) -> Any:
        good, odd = Late(good=self.good).step(0), super().step(action)
        if "step" in self.changes and self.steps > GOOD_STEPS:
            return odd
        alike = isinstance(odd[2], bool) and isinstance(odd[3], bool)  # an episode ends for both
        first = (*good[:2], odd[2], odd[3], good[4]) if alike else good
        return tuple(map(list, zip(first, odd, strict=True)))


class LateMany(VectorEnv[Any, Any, Any]):
    """Many at once, of which the last one is odd."""

    def __init__(
        self, num_envs: int, mode: Any = AutoresetMode.NEXT_STEP, infos: Any = NO_INFOS, **arguments: Any
    ) -> None:
        self.num_envs, self.late, self.infos = num_envs, Late(**arguments), infos
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space, self.single_action_space = self.late.observation_space, self.late.action_space

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return stacked([self.late.good] * self.num_envs), {}

    def step(self, actions: Any) -> Any:
        odd = self.late.step(0)
        if not isinstance(odd, tuple) or len(odd) != 5:
            return odd
        rows = [*[Late(good=self.late.good).step(0)] * (self.num_envs - 1), odd]
        observations, *columns, _ = (list(column) for column in zip(*rows, strict=True))
        if not isinstance(odd[0], dict):
            observations = [odd[0]] * self.num_envs  # numpy would find a type for different ones
        return stacked(observations), *columns, self.infos


def stacked(rows: list[Any]) -> Any:
    """Observations of many environments; whatever cannot be one array stays a list."""
    if isinstance(rows[0], dict):
        return {name: stacked([row.get(name, odd) for row in rows]) for name, odd in rows[-1].items()}
    try:
        return np.stack(rows)
    except ValueError:
        return rows


def make_many(num_envs: int, **arguments: Any) -> LateMany:
    return LateMany(num_envs, **arguments)


class Played:
    """A batch of one kind, with the memory that it writes."""

    def __init__(self, kind: str, **arguments: Any) -> None:
        factory = {"single": Late, "agents": LatePair, "many": Late}[kind]
        own = {name: value for name, value in arguments.items() if name not in ("mode", "infos")}
        source = EnvSource("Late", arguments if kind == "many" else own, factory, vector_factory=make_many)
        info = probe(EnvSource("Late", own, factory))
        self.observations, self.final = (
            {name: np.zeros((ROWS, *leaf.shape), leaf.dtype) for name, leaf in info.observations.items()}
            for _ in range(2)
        )
        self.has_final, self.rewards = np.zeros(ROWS, bool), np.zeros(ROWS, np.float32)
        self.actions: Array = np.zeros(ROWS, np.int64)
        final = self.final, self.has_final, "clip"
        self.batch: EnvBatch
        if kind == "many":
            self.batch = VectorBatch(source, info, range(ROWS), *final)  # type: ignore[arg-type]  # the text is a Literal
        else:
            self.batch = make_env_batch(source, info, range(ROWS // info.num_agents), *final)  # type: ignore[arg-type]
        self.batch.reset(self.observations)

    def step(self, count: int = 1) -> list[Any]:
        """What has ended in the last step."""
        ended: list[Any] = []
        for _ in range(count):
            ended = self.batch.step(self.actions, self.observations, self.rewards)
        return ended


KINDS = pytest.mark.parametrize("kind", ["single", "agents", "many"])


def refusal(kind: str, **arguments: Any) -> str:
    """What is said about the first step that is not correct; no process is replaced because of it."""
    played = Played(kind, **arguments)
    played.step(GOOD_STEPS)
    with pytest.raises(EnvError) as caught:
        played.step()
    assert type(caught.value) is not EnvCrashed
    assert not played.has_final[1:].any()
    return str(caught.value)
