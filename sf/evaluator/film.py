"""Films: MP4 and GIF."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from sf.arena import Array
from sf.errors import ExportError

PACKAGES = {".mp4": "imageio_ffmpeg", ".gif": "PIL"}
LARGEST_GIF_FPS = 50.0
"""Browsers show a GIF that asks for more at 10 frames per second."""


class Film:
    """Frames of one size, written one by one."""

    def __init__(self, path: Path) -> None:
        """Creates the file.

        Args:
            path: ends with .mp4 or .gif.

        Raises:
            ExportError: a package is missing, or the file cannot be written.
        """
        self.path = path
        try:
            importlib.import_module(PACKAGES[path.suffix])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        except ModuleNotFoundError as error:
            raise ExportError(f'{error.name} is missing: pip install "sf-rl[video]"') from None
        except OSError as error:
            raise ExportError(f"{path} cannot be written: {error.strerror}. Choose another file.") from None
        self._writer: Any = None
        self._pictures: list[Any] = []
        self._every, self._num_added, self._fps = 1, 0, 0.0

    def add(self, frame: Array, fps: float) -> None:
        """Adds a frame.

        Args:
            frame: uint8[height, width, 3].
            fps: frames per second of the film, the same for all of them.
        """
        if self.path.suffix == ".mp4":
            self._add_to_mp4(frame, fps)
        else:
            self._add_to_gif(frame, fps)
        self._num_added += 1

    def close(self) -> None:
        """Completes the file; removes it if there was no frame."""
        if self._num_added == 0:
            self.path.unlink(missing_ok=True)
        if self._writer is not None:
            self._writer.close()
        if self._pictures:
            first, *others = self._pictures
            duration = 1000 * self._every / self._fps
            first.save(self.path, save_all=True, append_images=others, duration=duration, loop=0)

    def _add_to_mp4(self, frame: Array, fps: float) -> None:
        import imageio_ffmpeg

        height, width, _ = frame.shape
        even = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")  # what the codec wants
        if self._writer is None:
            size = even.shape[1], even.shape[0]
            self._writer = imageio_ffmpeg.write_frames(str(self.path), size, fps=fps, macro_block_size=2)
            self._writer.send(None)
        self._writer.send(np.ascontiguousarray(even))

    def _add_to_gif(self, frame: Array, fps: float) -> None:
        from PIL import Image

        self._fps, self._every = fps, max(1, round(fps / LARGEST_GIF_FPS))
        if self._num_added % self._every == 0:
            self._pictures.append(Image.fromarray(frame))
