"""Carts with poles, thousands at once, in torch: the equations and limits of CartPole-v1.

Barto, Sutton and Anderson (1983), "Neuronlike adaptive elements that can solve difficult learning control problems".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

GRAVITY, CART, POLE, HALF_LENGTH, FORCE, STEP_S = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
FARTHEST, STEEPEST = 2.4, 12 * math.pi / 180


class Carts:
    """A `sf.envs.tensors.TensorEnv`: each step of a copy pays 1 until its pole falls, its cart leaves or time is up."""

    def __init__(self, num_envs: int, max_episode_steps: int = 500, device: str = "cpu") -> None:
        self.num_envs, self.max_episode_steps = num_envs, max_episode_steps
        limits = np.array([2 * FARTHEST, np.inf, 2 * STEEPEST, np.inf], np.float32)
        self.observation_space: gymnasium.Space[Any] = spaces.Box(-limits, limits)
        self.action_space: gymnasium.Space[Any] = spaces.Discrete(2)
        self._device = torch.device(device)
        self._random = torch.Generator(self._device)
        self._state = torch.zeros(4, num_envs, device=self._device)
        """Place, speed, angle and its speed."""
        self._steps = torch.zeros(num_envs, dtype=torch.int64, device=self._device)
        self._one = torch.ones(num_envs, device=self._device)

    def reset(self, seed: int | None) -> Tensor:
        """Begins every episode, [num_envs, 4]."""
        if seed is not None:
            self._random.manual_seed(seed)
        self._state = self._first(self.num_envs)
        self._steps.zero_()
        return self._state.T.contiguous()

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Mapping[str, Any]]:
        """One step of 0.02 s by Euler's method."""
        x, speed, angle, turn = self._state
        force = actions.to(torch.float32) * (2 * FORCE) - FORCE
        sine, cosine = torch.sin(angle), torch.cos(angle)
        pull = (force + POLE * HALF_LENGTH * turn.square() * sine) / (CART + POLE)
        swing = (GRAVITY * sine - cosine * pull) / (HALF_LENGTH * (4 / 3 - POLE * cosine.square() / (CART + POLE)))
        push = pull - POLE * HALF_LENGTH * swing * cosine / (CART + POLE)
        moved = torch.stack((x + STEP_S * speed, speed + STEP_S * push, angle + STEP_S * turn, turn + STEP_S * swing))
        self._steps += 1
        terminated = (moved[0].abs() > FARTHEST) | (moved[2].abs() > STEEPEST)
        truncated = (self._steps >= self.max_episode_steps) & ~terminated
        over = (terminated | truncated).nonzero()[:, 0]
        final = moved.T.clone(memory_format=torch.contiguous_format)  # of one copy, contiguous() would be no copy
        seen = final
        if len(over):
            moved[:, over] = self._first(len(over))
            self._steps[over] = 0
            seen = moved.T.contiguous()
        self._state = moved
        return seen, self._one, terminated, truncated, {"final_observations": final}

    def save_state(self) -> Mapping[str, Tensor]:
        """Carts, poles, steps and the state of the random numbers."""
        return {"carts": self._state, "steps": self._steps, "random": self._random.get_state()}

    def restore_state(self, state: Mapping[str, Tensor]) -> None:
        """Goes on from there."""
        self._state = state["carts"].to(self._device, copy=True)
        self._steps = state["steps"].to(self._device, copy=True)
        self._random.set_state(state["random"])

    def _first(self, number: int) -> Tensor:
        return torch.rand(4, number, generator=self._random, device=self._device) * 0.1 - 0.05
