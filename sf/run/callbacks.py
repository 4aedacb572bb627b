"""Callbacks: the reports that a program gets while its run goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from sf.console import Console
from sf.errors import UsageError
from sf.monitor import Lag
from sf.shared.episodes import Episode
from sf.shared.messages import CheckpointSaved


class Iteration(NamedTuple):
    """Where the training of one policy stands."""

    policy_id: int
    iterations: int
    """Datasets trained on in this run."""
    frames: int
    policy_version: int
    """Optimizer steps done."""
    mean_reward: float | None
    """Mean of the last 100 episodes that no older one can join any more; None before there are as many."""
    lag: Lag
    """Policy lag of the last minibatch, in optimizer steps."""


@dataclass
class Callbacks:
    """Functions that are called in the main process, never from a handler or a thread.

    At most ten times a second, or after each iteration of a serial run with `stop_at_reward`. One that returns True
    stops the run in order. One that returns a dict of numbers by name writes the curves ``user/<name>`` of the policy
    that it was told about. Any other answer but None and False has no effect, and is told once. An exception in one
    ends the run and is raised by `train`.
    """

    on_iteration: Callable[[Iteration], object] | None = None
    """After new iterations; with several of them since the last call it is called once."""
    on_episode: Callable[[Episode], object] | None = None
    """For each finished episode."""
    on_checkpoint: Callable[[CheckpointSaved], object] | None = None
    """For each checkpoint that is complete on disk."""
    wants_stop: bool = False
    numbers: list[tuple[int, Mapping[Any, Any]]] = field(default_factory=list)
    """Policy id and numbers that were returned and not taken yet."""
    told: set[str] = field(default_factory=set)
    """Callbacks whose answers have no effect."""

    def __post_init__(self) -> None:
        for name in ("on_iteration", "on_episode", "on_checkpoint"):
            if not ((function := getattr(self, name)) is None or callable(function)):
                raise UsageError(f"The callback {name} is {function!r}, expected a function.")

    def iteration(self, iteration: Iteration) -> None:
        self._call("on_iteration", iteration)

    def episode(self, episode: Episode) -> None:
        self._call("on_episode", episode)

    def checkpoint(self, saved: CheckpointSaved) -> None:
        if not saved.error:
            self._call("on_checkpoint", saved)

    def take_numbers(self) -> list[tuple[int, Mapping[Any, Any]]]:
        """Policy id and numbers that were returned since the last call."""
        taken, self.numbers = self.numbers, []
        return taken

    def _call(self, name: str, news: Iteration | Episode | CheckpointSaved) -> None:
        function = getattr(self, name)
        if function is None:
            return
        answer = function(news)
        if isinstance(answer, Mapping):
            self.numbers.append((news.policy_id, answer))
        elif isinstance(answer, (bool, np.bool_)):
            self.wants_stop |= bool(answer)
        elif answer is not None and name not in self.told:
            self.told.add(name)
            Console().line(
                f"Warning: the answer of the callback {name}, of type {type(answer).__name__}, has no effect. "
                "Return True to stop the run, a dict of numbers for curves, or None."
            )
