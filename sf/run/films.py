"""Films of a run, refused before anything starts where they cannot be made."""

from __future__ import annotations

import importlib.util

from sf.envs import EnvSource
from sf.envs.picture import look_at_first_picture
from sf.errors import UsageError
from sf.processes.disposable import in_disposable_child

FIRST_PICTURE_S = 300.0
"""Longest wait for a process that makes the environment and draws one picture."""


def expect_films(source: EnvSource) -> None:
    """Refuses what cannot be filmed.

    Raises:
        UsageError: a package is missing.
        EnvError: the environment draws no pictures.
    """
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        raise UsageError('film_every_steps needs the package imageio-ffmpeg: pip install "sf-rl[video]"')
    what = f"A first picture of {source.env_id}, for --film_every_steps,"
    in_disposable_child(look_at_first_picture, source, timeout_s=FIRST_PICTURE_S, what=what)
