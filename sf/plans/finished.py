"""A plan that has nothing left to learn says so before anything is started."""

from __future__ import annotations

from pathlib import Path

from sf.config.plan import PlanConfig
from sf.errors import ExitCode
from sf.plans.saved_state import CHECKPOINTS, are_there
from sf.run.finished import SUMMARY, nothing_left
from sf.storage.objects import json_object


def note_on_finished_plan(limits: PlanConfig) -> str | None:
    """A sentence where an earlier start has ended well with all the frames that this one is to have, else None."""
    if limits.restart_behavior != "resume" or limits.train_for_env_steps is None:
        return None
    directory = Path(limits.train_dir).absolute() / limits.experiment
    summary = json_object(directory / SUMMARY)
    frames = summary.get("frames")
    if summary.get("exit_code") != ExitCode.FINISHED or not isinstance(frames, int):
        return None
    if (directory / "plan.pt").exists():  # of an earlier version, which is refused
        return None
    if frames < limits.train_for_env_steps or not are_there(directory / CHECKPOINTS):
        return None
    return nothing_left(frames, directory, limits.train_for_env_steps)
