"""Films: MP4 and GIF."""

from __future__ import annotations

import importlib
import struct
from pathlib import Path
from typing import Any

import numpy as np

from sf.errors import ExportError
from sf.shared.arena import Array

PACKAGES = {".mp4": "imageio_ffmpeg", ".gif": "PIL"}
LARGEST_GIF_FPS = 50.0
"""Browsers show a GIF that asks for more at 10 frames per second."""
LONGEST_GIF_S, LARGEST_GIF_SIDE = 655.35, 65535
"""Hundredths of a second, and pixels, are numbers of 16 bits."""
MOST_GIF_BYTES = 2**30
"""Pictures of a GIF are in memory until it is written."""


class Film:
    """Frames of one size, written one by one."""

    def __init__(self, path: Path) -> None:
        """Looks whether the file can be written; it is there from the first frame on, or from the end.

        Args:
            path: ends with .mp4 or .gif.

        Raises:
            ExportError: a package is missing, or the file cannot be written.
        """
        self.path = path
        try:
            importlib.import_module(PACKAGES[path.suffix])
            path.parent.mkdir(parents=True, exist_ok=True)
            is_new = not path.exists()
            path.touch()
            if is_new:
                path.unlink()
        except ModuleNotFoundError as error:
            raise ExportError(f'{error.name} is missing: pip install "sf-rl[video]"') from None
        except OSError as error:
            raise ExportError(f"{path} cannot be written: {error.strerror}. Choose another file.") from None
        self._writer: Any = None
        self._pictures: list[Any] = []
        self._every, self._num_added, self._fps = 1, 0, 0.0
        self.num_left_out = 0
        """Pictures beyond what memory is used for."""

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
        """Completes the file; there is none if there was no frame.

        Raises:
            ExportError: a frame or its duration is beyond what the format can hold.
        """
        if self._writer is not None:
            self._writer.close()
        if self._pictures:
            first, *others = self._pictures
            duration = 1000 * self._every / self._fps
            try:
                first.save(self.path, save_all=True, append_images=others, duration=duration, loop=0)
            # Pictures that are alike become one, with the sum of their times. The error depends on the version.
            except (OverflowError, struct.error):
                raise ExportError(
                    f"A GIF shows a picture for {LONGEST_GIF_S:g} s at most, and one of these, with those that look "
                    "like it, takes longer. Use a larger --speed, or write an .mp4."
                ) from None
            if self.num_left_out:
                print(
                    f"{self.path} holds the first {len(self._pictures):,} pictures; {self.num_left_out:,} more would "
                    "take too much memory. An .mp4 holds them all."
                )

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
        if not self._pictures:
            _expect_possible(frame, self._every / fps)
        if self._num_added % self._every:
            return
        if frame.nbytes * len(self._pictures) > MOST_GIF_BYTES:
            self.num_left_out += 1
            return
        self._pictures.append(Image.fromarray(frame))


def _expect_possible(frame: Array, seconds: float) -> None:
    """Refuses frames that a GIF cannot hold.

    Raises:
        ExportError: it cannot hold frames of this size for so long.
    """
    if seconds > LONGEST_GIF_S:
        raise ExportError(
            f"A GIF shows a picture for {LONGEST_GIF_S:g} s at most, and these take {seconds:.3g} s each. Use a larger "
            "--speed, or write an .mp4."
        )
    if max(frame.shape[:2]) > LARGEST_GIF_SIDE:
        height, width, _ = frame.shape
        raise ExportError(
            f"A GIF has {LARGEST_GIF_SIDE} pixels in each direction at most, and these pictures have {width} x "
            f"{height}. Write an .mp4, or have render() draw smaller ones."
        )
