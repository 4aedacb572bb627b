"""A run that has nothing left to learn says so before anything is started."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sf.config import Config
from sf.errors import ExitCode
from sf.storage import sealed
from sf.storage.names import STATE, TENSORS, frames_of, newest_in
from sf.storage.objects import json_object

CONFIG, SUMMARY = "config.json", "summary.json"


def note_on_finished(config: Config) -> str | None:
    """A sentence where an earlier run has ended well with all the frames that this one is to have, else None.

    What cannot be told without torch is left to the run itself: another environment, algorithm or encoder, a damaged
    checkpoint, or a run that was killed after its last frame and has no summary.
    """
    run = config.run
    if run.restart_behavior != "resume" or run.train_for_env_steps is None:
        return None
    directory = run.experiment_dir.absolute()
    earlier = json_object(directory / CONFIG)
    now = {("run", "env"): run.env, ("learner", "algorithm"): config.learner.algorithm}
    now["model", "encoder"] = config.model.encoder
    for (role, flag), value in now.items():
        part = earlier.get(role)
        if not isinstance(part, dict) or part.get(flag) != value:
            return None
    folders = [f"checkpoint_p{policy_id}" for policy_id in range(run.num_policies)]
    return nothing_left(directory, folders, run.train_for_env_steps)


def nothing_left(directory: Path, folders: Sequence[str], wanted: int) -> str | None:
    """A sentence where a run has ended well and its newest checkpoints have so many frames, else None.

    Args:
        directory: of the run.
        folders: in it, with the checkpoints of one policy each.
        wanted: frames.
    """
    if json_object(directory / SUMMARY).get("exit_code") != ExitCode.FINISHED:
        return None
    frames = [_frames(directory / folder) for folder in folders]
    known = [number for number in frames if number is not None]
    if len(known) < len(frames) or sum(known) < wanted:
        return None
    return (
        f"{sum(known)} frames were learned before in {directory}, and --train_for_env_steps={wanted} counts them, so "
        "nothing was started. Raise it to go on, take another --experiment, or begin anew with "
        "--restart_behavior=restart."
    )


def _frames(directory: Path) -> int | None:
    """Those of the newest checkpoint of a policy; None if there is none, or it is damaged."""
    if (newest := newest_in(directory)) is None:
        return None
    try:
        sealed.verify(newest, (TENSORS, STATE))
    except (OSError, sealed.DamagedError, sealed.UnknownFormatError):
        return None
    return frames_of(newest)
