"""Returns and lengths of episodes, as they are reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

from sf.console import Console
from sf.envs.metrics import EpisodeMetrics
from sf.envs.statistics import EPISODE, EPISODE_CONTINUES, TRUE_OBJECTIVE
from sf.envs.stepping import Ended
from sf.errors import EnvError
from sf.shared.arena import Array

Number = TypeVar("Number", int, float)
Score = tuple[float, int, float, dict[str, float]]
"""Return, length, true objective and metrics of an episode."""


class Scores:
    """Sums up the rewards of each row from one end of an episode to the next.

    Every end counts once, unless info["episode_continues"] says that the game goes on, as after a lost life. The values
    that Gymnasium's RecordEpisodeStatistics puts into info["episode"] at that end replace the sum, because it may lie
    below wrappers that change rewards. Where it is missing, as below a time limit, the sum counts.

    A wrapper that ends an episode at each lost life may lie above RecordEpisodeStatistics and set no
    info["episode_continues"]. Then info["episode"] of the last life holds the whole game, whose first lives have
    counted already. Two signs show this: an earlier end of the row came without info["episode"], and the reported
    length is too long for the steps since then. In that case the sum counts, and a warning names the remedy.
    """

    def __init__(self, rows: int, place: Callable[[int], str] = "row {}".format):
        """Starts at zero with `rows` agents that advance together; `place` says in messages where one of them is."""
        self._place = place
        self.console = Console()
        self._metrics = EpisodeMetrics(self.console)
        self.steps = 0
        self.returns, self.started_at = np.zeros(rows), np.zeros(rows, np.int64)
        self.reported_at = np.zeros(rows, np.int64)
        """Step of each row in which the last end with info["episode"] came."""
        self.has_unreported = [False] * rows
        """Whether an end of the row since then had no info["episode"]."""
        self.unit = 1.0
        """Largest reported length per step, of ends without an unreported one before: RecordEpisodeStatistics below a
        frame skip counts frames."""
        self.spans = 0
        """Reported episodes that spanned several ends."""

    def add(self, rewards: Array) -> None:
        """Takes in one step: [rows] float64 rewards, because sums of float32 lose digits."""
        self.returns += rewards
        self.steps += 1

    def skip(self, rows: Array) -> None:
        """The last step was none of these rows."""
        self.started_at[rows] += 1
        self.reported_at[rows] += 1

    def forget(self, rows: range) -> None:
        """New episodes begin in these rows, and the rewards before count for none."""
        for row in rows:
            self.returns[row], self.started_at[row] = 0, self.steps
            self.has_unreported[row] = True

    def state(self) -> dict[str, Any]:
        """In plain JSON types."""
        names = ("steps", "has_unreported", "unit", "spans")
        arrays = {name: getattr(self, name).tolist() for name in ("returns", "started_at", "reported_at")}
        return arrays | {name: getattr(self, name) for name in names}

    def load_state(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        self.steps, self.unit, self.spans = state["steps"], state["unit"], state["spans"]
        self.started_at, self.reported_at = (np.array(state[name]) for name in ("started_at", "reported_at"))
        self.returns, self.has_unreported = np.array(state["returns"]), list(state["has_unreported"])

    def end(self, end: Ended) -> Score | None:
        """Return, length, true objective and metrics of the episode of a row that has ended; None if it goes on.

        Raises:
            EnvError: its info has something else in place of a number.
        """
        if end.info.get(EPISODE_CONTINUES):
            return None
        row = end.row
        reward, length = float(self.returns[row]), self.steps - int(self.started_at[row])
        self.returns[row], self.started_at[row] = 0, self.steps
        episode = end.info.get(EPISODE)
        if isinstance(episode, Mapping) and {"r", "l"} <= episode.keys():
            reported = self._number(float, episode, "r", row), self._number(int, episode, "l", row)
            if not self._spans_several(row, length, reported[1]):
                reward, length = reported
            self.reported_at[row], self.has_unreported[row] = self.steps, False
        else:
            self.has_unreported[row] = True
        return reward, length, self._number(float, end.info, TRUE_OBJECTIVE, row, reward), self._metrics.read(end.info)

    def _spans_several(self, row: int, length: int, reported: int) -> bool:
        """Whether the reported length holds ends of the row that have counted already; says so, ever more rarely."""
        if not self.has_unreported[row]:
            self.unit = max(self.unit, reported / max(length, 1))
            return False
        # A length in frames exceeds the steps as well, so it must also cover all steps since the last report.
        if reported <= self.unit * length or reported < self.steps - self.reported_at[row]:
            return False
        self.spans += 1
        if self.spans.bit_count() == 1:
            self.console.line(
                f"Warning: info['episode'] of length {reported} spans several ends, and the earlier ones have counted "
                f"already. The {length} steps since the last end count in its place (episode {self.spans} of this kind "
                "in its group). If an end such as a lost life is not the end of the game, set "
                "info['episode_continues'] = True there."
            )
        return True

    def _number(
        self, kind: Callable[[Any], Number], info: Mapping[str, Any], key: str, row: int, default: float | None = None
    ) -> Number:
        value = info.get(key, default)
        with suppress(Exception):
            return kind(value)
        with suppress(Exception):
            return kind(np.asarray(value).item())  # an array that holds one
        raise EnvError(
            f"{self._place(row)}: the info of the last step of an episode has a {type(value).__name__} as {key}, "
            "expected a number. Correct it, or leave it out."
        )
