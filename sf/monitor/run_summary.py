"""`summary.json`: how a run ended, for scripts and for later."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sf import __version__
from sf.config import Config
from sf.monitor.snapshot import Snapshot
from sf.monitor.time_shares import Seconds
from sf.storage.objects import write_object


def run_summary(
    first: Snapshot,
    last: Snapshot,
    config: Config,
    rewards: Mapping[int, float],
    counts: Sequence[int],
    seconds: Seconds,
) -> dict[str, Any]:
    """The facts about a run between its first and its last snapshot, in plain JSON types.

    Args:
        first: when it began.
        last: when it ended.
        config: of the run.
        rewards: policy to its mean return at the end.
        counts: episodes of each policy.
        seconds: of each role, by what it did.
    """
    wall_time_s = last.time_s - first.time_s
    return {
        "frames": last.frames,
        "env_steps": last.frames // config.rollout.frames_per_step,
        "new_frames": sum(policy.new_frames for policy in last.policies),
        "wall_time_s": round(wall_time_s, 3),
        "fps": round((last.frames - first.frames) / wall_time_s, 1) if wall_time_s > 0 else 0.0,
        "policies": [
            {
                "frames": policy.frames,
                "samples": policy.samples,
                "policy_version": policy.version,
                "lag": policy.lag._asdict(),
                "too_old": policy.left_out,
                "cut_short": policy.cut_short,
                "lag_of_run": policy.lag_counted.to_json(),
                "reward": rewards.get(index),
                "episodes": counts[index],
            }
            for index, policy in enumerate(last.policies)
        ],
        **({} if config.rollout.reward_clip is None else {"clipped_rewards": last.clipped_rewards}),
        "seconds": {name: dict(activities) for name, activities in seconds.items()},
    }


def flags_of(config: Config) -> dict[str, str | float | bool]:
    """The flags that have a value, by name; what is no number and no truth value is text."""
    fields = {name: value for role in config.to_json().values() for name, value in role.items()}
    return {
        name: value if isinstance(value, (bool, int, float, str)) else json.dumps(value)
        for name, value in fields.items()
        if value is not None
    }


def versions() -> dict[str, str]:
    """Versions of what decides how a run comes out, for those that repeat it."""
    found = {"sf": __version__, "python": platform.python_version()}
    for package in "torch", "numpy", "gymnasium":
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # it is there under another name
            continue
    return found


def write_run_summary(experiment_dir: Path, summary: Mapping[str, Any]) -> None:
    """Writes the file in one step, so that a reader never sees half of it."""
    write_object(experiment_dir / "summary.json", summary)
