"""Returns and lengths of episodes, as they are reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

from sf.arena import Array
from sf.errors import EnvError
from sf.rollout.env_batch import Ended

Number = TypeVar("Number", int, float)


class Scores:
    """Sums up the rewards of each row from one end of an episode to the next.

    Environments that count their episodes themselves, with Gymnasium's RecordEpisodeStatistics below wrappers that
    change rewards or end episodes early, are believed: what they call an episode counts, with its raw return, and a
    mere end of a trajectory, such as a lost life, does not.
    """

    def __init__(self, rows: int, from_info: bool):
        """Starts at zero.

        Args:
            rows: agents that advance together.
            from_info: whether the environments count by themselves.
        """
        self.from_info = from_info
        self.steps = 0
        self.returns, self.started_at = np.zeros(rows), [0] * rows

    def add(self, rewards: Array) -> None:
        """Takes in one step: [rows] rewards."""
        self.returns += rewards
        self.steps += 1

    def skip(self, rows: Array) -> None:
        """The last step was none of these rows."""
        for row in rows.tolist():
            self.started_at[row] += 1

    def forget(self, rows: range) -> None:
        """New episodes begin in these rows, and what was before counts as none."""
        for row in rows:
            self.returns[row], self.started_at[row] = 0, self.steps

    def state(self) -> dict[str, Any]:
        """In plain JSON types."""
        return {"steps": self.steps, "returns": self.returns.tolist(), "started_at": self.started_at}

    def load_state(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        self.steps, self.started_at = state["steps"], list(state["started_at"])
        self.returns = np.array(state["returns"])

    def end(self, end: Ended) -> tuple[float, int, float] | None:
        """Return, length and true objective of the episode of a row that has ended; None if it does not count.

        Raises:
            EnvError: its info has something else in place of a number.
        """
        reward, length = float(self.returns[end.row]), self.steps - self.started_at[end.row]
        self.returns[end.row], self.started_at[end.row] = 0, self.steps
        if self.from_info:
            episode = end.info.get("episode")
            if episode is None:
                return None
            reward, length = _number(float, episode, "r"), _number(int, episode, "l")
        return reward, length, _number(float, end.info, "true_objective", reward)


def _number(kind: Callable[[Any], Number], info: Any, key: str, default: float | None = None) -> Number:
    value = info.get(key, default) if isinstance(info, Mapping) else info
    with suppress(Exception):
        return kind(value)
    with suppress(Exception):
        return kind(np.asarray(value).item())  # an array that holds one
    raise EnvError(
        f"The info of the last step of an episode has a {type(value).__name__} as {key}, expected a number. Correct "
        "it, or leave it out."
    )
