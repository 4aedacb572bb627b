"""The group `stats` of TensorBoard: the cost of inference, and memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import fmean

import psutil

from sf.monitor.snapshot import PolicySnapshot

MEGABYTE = 2**20


class InferenceStats:
    """Means per forward pass of one policy over the newest `stats_avg` intervals."""

    def __init__(self, stats_avg: int) -> None:
        self._last = PolicySnapshot()
        self._entries: deque[dict[str, float]] = deque(maxlen=stats_avg)

    def record(self, now: PolicySnapshot) -> None:
        """Ends an interval; one without a forward pass is no entry."""
        forwards = now.forwards - self._last.forwards
        if forwards <= 0:
            return
        self._entries.append(
            {
                "stats/avg_request_count": (now.requests - self._last.requests) / forwards,
                "stats/step_policy": (now.forward_s - self._last.forward_s) / forwards,
                "stats/wait_policy": (now.wait_s - self._last.wait_s) / forwards,
            }
        )
        self._last = now

    def scalars(self) -> dict[str, float]:
        """Tag to mean; empty before the first entry. Times are seconds per forward pass."""
        if not self._entries:
            return {}
        return {tag: fmean(entry[tag] for entry in self._entries) for tag in self._entries[0]}


def memory_scalars(pids: Mapping[str, int], policy_id: int) -> dict[str, float]:
    """Resident memory in MB of the main process and of the processes of one policy."""
    inference = [pid for name, pid in pids.items() if name.startswith(f"inference-{policy_id}-")]
    rollout = [pid for name, pid in pids.items() if name.startswith("rollout-")]
    groups = {
        "stats/memory_learner": [pid for name, pid in pids.items() if name == f"learner-{policy_id}"],
        "stats/memory_policy_worker": inference or rollout,  # which act for themselves without inference workers
    }
    scalars = {"stats/master_process_memory_mb": psutil.Process().memory_info().rss / MEGABYTE}
    for tag, group in groups.items():
        sizes = [size for pid in group if (size := _resident(pid)) is not None]
        if sizes:
            scalars[tag] = fmean(sizes)
    return scalars


def _resident(pid: int) -> float | None:
    try:
        return float(psutil.Process(pid).memory_info().rss / MEGABYTE)
    except psutil.Error:  # it has ended meanwhile
        return None
