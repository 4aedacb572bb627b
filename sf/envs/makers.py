"""Makers of environments, from a function that makes simulators in tensors: see `sf.envs.tensors`.

They import torch when they are called, and not in processes that only name the environment.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


class Maker:
    """A function whose parameters are those of the function that makes simulators."""

    def __init__(self, make: Callable[..., Any], name: str) -> None:
        """Takes `make(num_envs, **kwargs)`, which returns a `sf.envs.tensors.TensorEnv`, and a name for messages."""
        self.make, self.name = make, name

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.make)


class MakeMany(Maker):
    """Makes as many copies as are asked for, as one vector environment."""

    def __call__(self, num_envs: int, **kwargs: Any) -> Any:
        """A `sf.envs.tensors.ManyTensors`."""
        from sf.envs.tensor_batches import ManyTensors

        return ManyTensors(self.make(num_envs=num_envs, **kwargs), self.name)


class MakeOne(Maker):
    """Makes a single copy, as an ordinary environment."""

    def __call__(self, render_mode: str | None = None, **kwargs: Any) -> Any:
        """A `sf.envs.tensors.OneTensor`. The function gets a seed and the way of drawing if it asks for them."""
        from sf.envs.tensor_batches import OneTensor

        offered = {"seed": 0, "render_mode": render_mode}
        asked = {name: value for name, value in offered.items() if name in inspect.signature(self.make).parameters}
        env = OneTensor(self.make(num_envs=1, **(asked | kwargs)), self.name)
        env.render_mode = render_mode
        return env
