"""The counters of all processes at one moment."""

from __future__ import annotations

from statistics import fmean

from sf.monitor import Lag, PolicySnapshot, Snapshot
from sf.monitor.lag_sight import LagCounted
from sf.run.run_records import RunRecords
from sf.shared.progress import Phase, phase_of

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


def run_snapshot(records: RunRecords, now: float, limits_rewards: bool) -> Snapshot:
    """The counters of all processes at this moment.

    Args:
        records: of the run.
        now: by the monotonic clock.
        limits_rewards: whether there is a `reward_clip`.
    """
    inferences = [{name: record.read() for name, record in own.items()} for own in records.inferences]
    learners = [record.read() for record in records.first_learners]
    phases = [phase_of(record.progress.word[0])[0] for record in records.first_learners]
    policies = tuple(
        policy_snapshot(learner, list(own.values()), phase is Phase.WAIT, records.lag_counted(policy_id))
        for policy_id, (learner, own, phase) in enumerate(zip(learners, inferences, phases, strict=True))
    )
    rollouts = records.rollouts.values()
    collected = sum(int(record.read()["env_steps"]) for record in rollouts)
    resetting = sum(phase_of(record.progress.word[0])[0] is Phase.RESET for record in rollouts)
    return Snapshot(now, policies, _clipped_rewards(records) if limits_rewards else 0.0, collected, resetting)


def _clipped_rewards(records: RunRecords) -> float:
    """The share of all rewards."""
    rollouts = [record.read() for record in records.rollouts.values()]
    return sum(own["clipped"] for own in rollouts) / max(1.0, sum(own["env_steps"] for own in rollouts))
