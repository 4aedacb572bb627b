"""Numbers of its own that an environment reports at the end of an episode.

    info["metrics"] = {"keys": 3, "fuel": 0.2}

Those of other steps are brought down to one number before, see `sf.envs.step_metrics`. `info["is_success"]`, as
Gymnasium-Robotics has it, is the metric ``success``, and the dict `info["episode_extra_stats"]` of Sample Factory is
read in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sf.console import Console
from sf.envs.numbers import number_of
from sf.envs.statistics import EXTRA_STATS, METRICS, SUCCESS
from sf.shared.records import NAME_BYTES


class EpisodeMetrics:
    """Reads them; what is no number is left out, and told once for each name."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told: set[str] = set()

    def read(self, info: Mapping[str, Any]) -> dict[str, float]:
        """Name to number, of the info of the last step of an episode; empty if it has none."""
        if SUCCESS not in info and METRICS not in info and EXTRA_STATS not in info:
            return {}
        found: dict[str, float] = {}
        for source in (EXTRA_STATS, METRICS):
            values = info.get(source, {})
            if isinstance(values, Mapping):
                for name, value in values.items():
                    self._take(found, f"info[{source!r}][{name!r}]", name, value)
            elif values is not None:
                self._tell(f"info[{source!r}] is a {type(values).__name__}, expected a dict of numbers.")
        if SUCCESS in info:
            self._take(found, f"info[{SUCCESS!r}]", "success", info[SUCCESS])
        return found

    def _take(self, found: dict[str, float], place: str, name: Any, value: Any) -> None:
        if not isinstance(name, str) or "\0" in name or not 0 < len(name.encode(errors="surrogatepass")) <= NAME_BYTES:
            self._tell(f"{place} has a name that is no text of at most {NAME_BYTES} bytes.")
            return
        number = number_of(value)
        if number is None:
            self._tell(f"{place} is a {type(value).__name__}, expected a number.")
        elif math.isinf(number):
            self._tell(f"{place} is {number}, expected a finite number.")
        elif not math.isnan(number):
            found[name] = number

    def _tell(self, what: str) -> None:
        if what not in self._told and len(self._told) < 100:
            self._told.add(what)
            self._console.line_once(f"Warning: {what} It is left out of the metrics.")
