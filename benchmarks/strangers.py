"""Tasks of the kind that people bring along, for `suite.py`; this file needs Gymnasium and NumPy, and not sf.

    sf-train --env=strangers:Follow-v0        with this folder on the PYTHONPATH

Each of them has something that well-known tasks lack: a Dict of goals, costs in the thousands, illegal actions,
pictures beside numbers, a step that waits. Observations of MiniGrid and MinAtar become plain vectors here, so that all
libraries can take them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Observation = dict[str, NDArray[Any]]


class Arm(gymnasium.Env[Any, Any]):
    """Two links reach for a point with the torques of two joints; the reward is minus the distance of the tip."""

    LENGTH, MAX_SPEED, DT, STEPS = 0.5, 2.0, 0.05, 100

    def __init__(self) -> None:
        anywhere = spaces.Box(-1.0, 1.0, (2,), np.float64)
        joints = spaces.Box(-np.inf, np.inf, (4,), np.float64)
        self.observation_space = spaces.Dict({"joints": joints, "tip": anywhere, "goal": anywhere})
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self.angles, self.speeds = self.np_random.uniform(-0.1, 0.1, 2), np.zeros(2)
        self.goal, self.num_steps = self.np_random.uniform(-0.6, 0.6, 2), 0
        return self._observation(), {}

    def step(self, action: Floats) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self.speeds = np.clip(self.speeds + 0.25 * action, -self.MAX_SPEED, self.MAX_SPEED)
        self.angles = self.angles + self.speeds * self.DT
        self.num_steps += 1
        distance = float(np.linalg.norm(self._tip() - self.goal))
        return self._observation(), -distance, distance < 0.05, self.num_steps >= self.STEPS, {}

    def _tip(self) -> Floats:
        directions = np.cumsum(self.angles)
        return self.LENGTH * np.array([np.cos(directions).sum(), np.sin(directions).sum()])

    def _observation(self) -> Observation:
        return {"joints": np.concatenate([self.angles, self.speeds]), "tip": self._tip(), "goal": self.goal.copy()}


class Follow(gymnasium.Env[Any, Any]):
    """A joint with friction follows a target that wanders; one torque turns it, another one holds the target back."""

    DT, STEPS = 0.1, 100

    def __init__(self) -> None:
        state = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.observation_space = spaces.Dict({"joint": state, "target": state})
        self.action_space = spaces.Box(-2.0, 2.0, (2,), np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self.joint = np.array([self.np_random.uniform(-3, 3), 0.0])
        self.target = np.array([self.np_random.uniform(-3, 3), self.np_random.uniform(-1, 1)])
        self.num_steps = 0
        return self._observation(), {}

    def step(self, action: Floats) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self.joint[1] += self.DT * (3.0 * action[0] - 0.5 * self.joint[1])
        self.target[1] += self.DT * (0.3 * action[1] - 0.2 * self.target[1] + self.np_random.normal())
        for body in (self.joint, self.target):
            body[0] += self.DT * body[1]
        self.num_steps += 1
        error = float(self.joint[0] - self.target[0])
        reward = -min(error * error, 9.0) - 0.01 * float(action @ action)
        return self._observation(), reward, False, self.num_steps >= self.STEPS, {}

    def _observation(self) -> Observation:
        return {"joint": self.joint.copy(), "target": self.target.copy()}


class Stock(gymnasium.Env[Any, Any]):
    """A shop orders 0 to 4,000 pieces of one of its goods each day; sales earn, storage and lost customers cost.

    Orders arrive after two days, demand goes with the weekday, and rewards are sums of money in the hundreds.
    """

    STEPS, PRICE, COST, STORAGE, LOST = 100, 2.0, 1.0, 0.05, 0.5

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, np.inf, (5,), np.float32)
        self.action_space = spaces.Box(0.0, 4000.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self.stock, self.on_the_way, self.day = 500.0, [0.0, 0.0], int(self.np_random.integers(7))
        self.num_steps = 0
        return self._observation(), {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        order = float(action[0])
        self.stock += self.on_the_way.pop(0)
        self.on_the_way.append(order)
        demand = float(self.np_random.poisson(300 + 150 * np.sin(2 * np.pi * self.day / 7)))
        sold = min(demand, self.stock)
        self.stock -= sold
        self.day, self.num_steps = (self.day + 1) % 7, self.num_steps + 1
        money = self.PRICE * sold - self.COST * order - self.STORAGE * self.stock - self.LOST * (demand - sold)
        return self._observation(), money, False, self.num_steps >= self.STEPS, {}

    def _observation(self) -> NDArray[np.float32]:
        angle = 2 * np.pi * self.day / 7
        return np.array([self.stock, *self.on_the_way, 1 + np.sin(angle), 1 + np.cos(angle)], np.float32)


class TicTacToe(gymnasium.Env[Any, Any]):
    """Noughts and crosses against an opponent that mostly wins or blocks where it can; a taken field loses the game.

    `action_masks` says which fields are free, for libraries that ask.
    """

    LINES = np.array([[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]])

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (9,), np.float32)
        self.action_space = spaces.Discrete(9)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self.board = np.zeros(9, np.float32)
        if self.np_random.random() < 0.5:
            self._answer()
        return self.board.copy(), {}

    def action_masks(self) -> NDArray[np.bool_]:
        free: NDArray[np.bool_] = self.board == 0
        return free

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        if self.board[action] != 0:
            return self.board.copy(), -1.0, True, False, {}
        self.board[action] = 1
        if self._has_won(1):
            return self.board.copy(), 1.0, True, False, {}
        if self.board.all():
            return self.board.copy(), 0.0, True, False, {}
        self._answer()
        lost = self._has_won(-1)
        return self.board.copy(), -1.0 if lost else 0.0, lost or bool(self.board.all()), False, {}

    def _has_won(self, player: int) -> bool:
        return bool((self.board[self.LINES].sum(1) == 3 * player).any())

    def _answer(self) -> None:
        free = np.flatnonzero(self.board == 0)
        for player in (-1, 1) if self.np_random.random() < 0.7 else ():
            for line in self.LINES:
                row = self.board[line]
                if row.sum() == 2 * player and (row == 0).any():
                    self.board[line[int(np.argmax(row == 0))]] = -1
                    return
        self.board[self.np_random.choice(free)] = -1


class Parcels(gymnasium.Env[Any, Any]):
    """A robot sees a small yard from above and reads which of three parcels is wanted; it fetches that one.

    A Dict of a picture of 16 x 16 and a vector of three numbers.
    """

    SIDE, STEPS = 8, 40

    def __init__(self) -> None:
        picture = spaces.Box(0, 255, (2 * self.SIDE, 2 * self.SIDE, 3), np.uint8)
        self.observation_space = spaces.Dict({"yard": picture, "wanted": spaces.Box(0.0, 1.0, (3,), np.float32)})
        self.action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        fields = self.np_random.choice(self.SIDE * self.SIDE, 4, replace=False)
        self.places = np.stack(np.divmod(fields, self.SIDE), 1)
        self.wanted, self.num_steps = int(self.np_random.integers(3)), 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        moves = np.array([[-1, 0], [1, 0], [0, -1], [0, 1]])
        self.places[3] = np.clip(self.places[3] + moves[action], 0, self.SIDE - 1)
        self.num_steps += 1
        found = [parcel for parcel in range(3) if (self.places[parcel] == self.places[3]).all()]
        reward = -0.01 if not found else 1.0 if found[0] == self.wanted else -1.0
        return self._observation(), reward, bool(found), self.num_steps >= self.STEPS, {}

    def _observation(self) -> Observation:
        yard = np.zeros((self.SIDE, self.SIDE, 3), np.uint8)
        for parcel in range(3):
            yard[tuple(self.places[parcel])][parcel] = 255
        yard[tuple(self.places[3])] = 255
        wanted = np.eye(3, dtype=np.float32)[self.wanted]
        return {"yard": yard.repeat(2, 0).repeat(2, 1), "wanted": wanted}


class Waiting(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The same environment, each step of which also waits."""

    def __init__(self, env: gymnasium.Env[Any, Any], milliseconds: float) -> None:
        super().__init__(env)
        self.wait_s = milliseconds / 1000

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        time.sleep(self.wait_s)
        return self.env.step(action)


def waiting(env_id: str, milliseconds: float) -> gymnasium.Env[Any, Any]:
    """An environment with a step that waits."""
    return Waiting(gymnasium.make(env_id), milliseconds)


def minigrid(env_id: str) -> gymnasium.Env[Any, Any]:
    """An environment of MiniGrid with what the agent sees as a vector, without the text."""
    from minigrid.wrappers import ImgObsWrapper

    return gymnasium.wrappers.FlattenObservation(ImgObsWrapper(gymnasium.make(env_id)))


def without_velocities(env_id: str, seen: list[int]) -> gymnasium.Env[Any, Any]:
    """An environment of which only those numbers of the observation are seen that are no velocities."""
    env = gymnasium.make(env_id)
    space = cast("spaces.Box", env.observation_space)
    left = spaces.Box(space.low[seen], space.high[seen], dtype=np.float32)
    return gymnasium.wrappers.TransformObservation(env, lambda state: state[seen], left)


class Booleans(gymnasium.ObservationWrapper[NDArray[np.float32], int, NDArray[np.bool_]]):
    """Planes of zeros and ones, as a vector of numbers."""

    def __init__(self, env: gymnasium.Env[NDArray[np.bool_], int]) -> None:
        super().__init__(env)
        shape = env.observation_space.shape
        assert shape is not None
        self.observation_space = spaces.Box(0.0, 1.0, (int(np.prod(shape)),), np.float32)

    def observation(self, observation: NDArray[np.bool_]) -> NDArray[np.float32]:
        return observation.ravel().astype(np.float32)


def minatar(game: str, sticky_action_prob: float = 0.1, max_steps: int = 5000) -> gymnasium.Env[Any, Any]:
    """A game of MinAtar with its 10 x 10 grid as a vector, and those actions that do something.

    Gymnax has the same games without actions that stick, and with at most 1,000 steps.
    """
    from minatar.gym import BaseEnv  # type: ignore[import-untyped]

    env = Booleans(BaseEnv(game, use_minimal_action_set=True, sticky_action_prob=sticky_action_prob))
    return gymnasium.wrappers.TimeLimit(env, max_steps)


WAITS_MS = (1, 5, 20)
"""In each step of the tasks that wait."""


def register(task_id: str, make: Callable[..., Any], **keywords: Any) -> None:
    """One task for Gymnasium, whose types ask for a protocol that classes do not fulfil."""
    gymnasium.register(task_id, cast("Any", make), kwargs=keywords)


for task in (Arm, Follow, Stock, TicTacToe, Parcels):
    register(f"{task.__name__}-v0", task)
for name, seen in (("CartPole-v1", [0, 2]), ("Pendulum-v1", [0, 1]), ("MountainCarContinuous-v0", [0])):
    register(f"{name.split('-')[0]}NoVel-v0", without_velocities, env_id=name, seen=seen)
for name in ("DoorKey-5x5", "Unlock", "KeyCorridorS3R1"):
    register(f"Vector{name}-v0", minigrid, env_id=f"MiniGrid-{name}-v0")
for name, game in (("Breakout", "breakout"), ("Asterix", "asterix"), ("SpaceInvaders", "space_invaders")):
    register(f"MinAtar{name}-v0", minatar, game=game)
for name in ("CartPole-v1", "Pendulum-v1", "Follow-v0"):
    for wait_ms in WAITS_MS:
        register(f"{name.split('-')[0]}{wait_ms}ms-v0", waiting, env_id=name, milliseconds=wait_ms)
