"""What the counters of a policy's processes say at one moment."""

from __future__ import annotations

from statistics import fmean

from sf.monitor import Lag, PolicySnapshot
from sf.monitor.lag_sight import LagCounted

Counters = dict[str, float]


def policy_snapshot(
    learner: Counters, inferences: list[Counters], waits: bool, lag_counted: LagCounted
) -> PolicySnapshot:
    total = {name: sum(counters[name] for counters in inferences) for name in inferences[0]}
    newest = max(inferences, key=lambda counters: counters["refreshes"])
    return PolicySnapshot(
        frames=int(learner["env_steps"]),
        new_frames=int(learner["env_steps"] - learner["first_env_steps"]),
        version=int(learner["version"]),
        iterations=int(learner["iterations"]),
        waits=waits,
        lag=Lag(learner["lag_min"], learner["lag_avg"], learner["lag_max"]),
        left_out=int(learner["left_out"]),
        cut_short=int(learner["cut_short"]),
        lag_counted=lag_counted,
        samples=int(total["samples"]),
        requests=int(total["requests"]),
        forwards=int(total["forwards"]),
        forward_s=total["forward"],
        wait_s=total["wait"],
        refreshes=int(newest["refreshes"]),
        weights_version=int(newest["weights_version"]),
        refresh_s=newest["refresh_seconds"] / max(1.0, newest["refreshes"]),
        stats=_memory_of_accelerators(learner, inferences),
    )


def _memory_of_accelerators(learner: Counters, inferences: list[Counters]) -> dict[str, float]:
    """In MiB, the mean of all inference workers; empty where nothing runs on accelerators."""
    if not learner["gpu_cache"]:
        return {}
    return {
        f"{name}_{role}": fmean(counters[name] for counters in group)
        for role, group in (("learner", [learner]), ("policy_worker", inferences))
        if any(counters["gpu_cache"] for counters in group)  # none where rollout workers act, without torch
        for name in ("gpu_mem", "gpu_cache")
    }
