"""Returns and lengths of episodes, as they are reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

from sf.arena import Array
from sf.envs.statistics import EPISODE, EPISODE_CONTINUES
from sf.errors import EnvError
from sf.rollout.env_batch import Ended

Number = TypeVar("Number", int, float)


class Scores:
    """Sums up the rewards of each row from one end of an episode to the next.

    Every end counts once, unless info["episode_continues"] says that the game goes on, as after a lost life. What
    Gymnasium's RecordEpisodeStatistics puts into info["episode"] at that end replaces the sum, because it may lie below
    wrappers that change rewards. Where it is missing, as below a time limit, the sum counts.
    """

    def __init__(self, rows: int):
        """Starts at zero with `rows` agents that advance together."""
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
        """Return, length and true objective of the episode of a row whose trajectory has ended; None if it goes on.

        Raises:
            EnvError: its info has something else in place of a number.
        """
        if end.info.get(EPISODE_CONTINUES):
            return None
        reward, length = float(self.returns[end.row]), self.steps - self.started_at[end.row]
        self.returns[end.row], self.started_at[end.row] = 0, self.steps
        episode = end.info.get(EPISODE)
        if isinstance(episode, Mapping) and {"r", "l"} <= episode.keys():
            reward, length = _number(float, episode, "r"), _number(int, episode, "l")
        return reward, length, _number(float, end.info, "true_objective", reward)


def _number(kind: Callable[[Any], Number], info: Mapping[str, Any], key: str, default: float | None = None) -> Number:
    value = info.get(key, default)
    with suppress(Exception):
        return kind(value)
    with suppress(Exception):
        return kind(np.asarray(value).item())  # an array that holds one
    raise EnvError(
        f"The info of the last step of an episode has a {type(value).__name__} as {key}, expected a number. Correct "
        "it, or leave it out."
    )
