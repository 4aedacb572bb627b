"""Directories of runs as a run leaves them, for the tests of reports."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from sf.config import Config, RunConfig

NOTHING: Mapping[str, Any] = {}
BEGAN = datetime(2026, 11, 26, 8, 0, 0)
SECONDS = {
    "rollout-0": {"step": 4.0, "act": 3.0, "write": 1.0, "wait": 2.0},
    "rollout-1": {"step": 6.0, "act": 1.0, "write": 1.0, "wait": 2.0},
    "learner-0": {"update": 5.0, "batch": 2.0, "publish": 0.5, "save": 0.5, "wait": 2.0},
}


def point(
    frames: int, time_s: float, reward: float, policy_id: int = 0, more: Mapping[str, Any] = NOTHING
) -> dict[str, Any]:
    """A line of metrics.jsonl with what a report draws; the time is since the beginning."""
    return {
        "time_s": BEGAN.timestamp() + time_s,
        "policy_id": policy_id,
        "frames": frames,
        "reward/reward": reward,
        "reward/reward_min": reward - 10,
        "reward/reward_max": reward + 10,
        "perf/_fps": 1000.0,
        "train/version_diff_min": 1.0,
        "train/version_diff_avg": 2.0,
        "train/version_diff_max": 4.0,
        "lag/acting": 0.5,
        "lag/queued": 0.25,
        "lag/epochs": 1.25,
        "lag/histogram": [1, 2, 3, 4],
        "train/ESS_at_lag/0": 1.0,
        "train/ESS_at_lag/2-3": 0.9,
        "train/ratio_at_lag/0": 1.0,
        "train/clipped_at_lag/0": 0.1,
        "faults/restarts": 0.0,
        **more,
    }


def rising(last: float = 100.0, number: int = 50, policy_id: int = 0) -> list[dict[str, Any]]:
    """Points of a run that gets better until it has this score."""
    places = range(1, number + 1)
    return [point(1000 * place, float(place), last * place / number, policy_id) for place in places]


def write_run(
    path: Path,
    points: Sequence[dict[str, Any]] | None = None,
    *,
    env: str = "CartPole-v1",
    seed: int = 1,
    learning_rate: float = 1e-3,
    ended: bool = True,
    starts: Sequence[float] = (0.0,),
    faults: dict[str, float] | None = None,
    num_policies: int = 1,
    flags: Mapping[str, Any] = NOTHING,
) -> Path:
    """Writes the directory; `starts` are seconds since the beginning, `flags` those of the role run."""
    path.mkdir(parents=True)
    points = rising() if points is None else points
    run = RunConfig(env=env, seed=seed, experiment=path.name, train_dir=str(path.parent), num_policies=num_policies)
    plain = dataclasses.asdict(Config(run))
    plain["learner"] |= {"learning_rate": learning_rate, "batch_size": 256}
    plain["run"] |= flags
    times = [datetime.fromtimestamp(BEGAN.timestamp() + start).isoformat(timespec="seconds") for start in starts]
    (path / ".sf-experiment").write_text("".join(f"pid 12 on host, started {time}\n" for time in times))
    (path / "config.json").write_text(json.dumps(plain))
    (path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in points))
    if ended:
        last = {each["policy_id"]: each for each in points}
        summary = {
            "wall_time_s": 51.5,
            "fps": 970.9,
            "policies": [{"frames": last[one]["frames"], "reward": last[one]["reward/reward"]} for one in sorted(last)],
            "seconds": SECONDS,
            "exit_reason": "train_for_env_steps reached",
            "faults": {"faults/restarts": 0.0, "faults/discarded_not_learned": 3.0, **(faults or {})},
            "versions": {"sf": "0.1.0", "torch": "2.13.0"},
        }
        (path / "summary.json").write_text(json.dumps(summary))
    return path
