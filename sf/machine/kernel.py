"""Whether the kernel is Linux, whose calls start, watch and end the processes of a run.

Other systems of the POSIX family, such as macOS, have one process for everything: runs with `--serial_mode=True`, and
looks at environments that have a process of their own on Linux.
"""

from __future__ import annotations

import sys

from sf.errors import ResourceError


def is_linux() -> bool:
    """Whether runs may have several processes here."""
    return sys.platform.startswith("linux")


def ensure_linux(instead: str = "--serial_mode=True") -> None:
    """Refuses several processes where they cannot be held together.

    Args:
        instead: what works without Linux.

    Raises:
        ResourceError: the system is another one.
    """
    if not is_linux():
        raise ResourceError(
            f"Several processes need Linux, but this system is {sys.platform}: use {instead}, or a machine or a "
            "container with Linux."
        )
