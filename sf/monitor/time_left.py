"""How much of a run is done, and how long the rest may take."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sf.config import RunConfig
from sf.console import clock


def time_left(run: RunConfig, frames: int, elapsed_s: float, fps: Sequence[float]) -> str:
    """A few words about the end of a run.

    Args:
        run: has the limits.
        frames: trained on so far, the history included.
        elapsed_s: since this start.
        fps: frames per second over 10, 60 and 300 seconds; nan where that is not known yet.
    """
    done = max(frames / run.frame_limit, elapsed_s / run.time_limit_s)
    if math.inf in (run.frame_limit, run.time_limit_s) and done == 0 and run.frame_limit == run.time_limit_s:
        return "no limit" if run.stop_at_reward is None else f"until a return of {run.stop_at_reward:g}"
    rate = next((rate for rate in (*fps[1::-1], 0.0) if not math.isnan(rate)), 0.0)
    frames_left_s = max(0.0, run.frame_limit - frames) / rate if rate > 0 else math.inf
    left_s = min(frames_left_s, max(0.0, run.time_limit_s - elapsed_s))
    percent = f"{100 * min(done, 1.0):.0f} %"
    return percent if math.isinf(left_s) else f"{percent}, about {clock(left_s)} left"
