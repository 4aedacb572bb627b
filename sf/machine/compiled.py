"""C files of the package, compiled for this machine when they are first needed, and kept.

The name of a library holds all that it depends on: source, command and processor. So an update of `sf`, or a home that
several machines share, makes another one. Where there is no compiler, callers have another way.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-std=gnu11", "-shared", "-fPIC")
"""No `-ffast-math`: what is not a number must stay that, because a step with such a gradient is skipped."""
INCLUDED = re.compile(r'^#include "(.+)"', re.MULTILINE)
COMPILE_S = 60.0
MOST_OF_A_REASON = 300
"""Characters."""


class NoCompilerError(Exception):
    """A file could not be compiled or loaded; the message says why."""


def library(source: Path) -> ctypes.CDLL:
    """The compiled form of a C file, compiled before where it can be.

    Raises:
        NoCompilerError: there is no compiler or no place for the result, or the compiler refuses the file.
    """
    command = [*_compiler(), *FLAGS]
    if not has_compiler():
        raise NoCompilerError(f"there is no C compiler {command[0]}")
    parts = (*_texts(source), repr(command), platform.machine(), _processor())
    name = f"{source.stem}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}.so"
    try:
        directory = _directory()
        path = directory / name
        if not path.exists():
            _compile(command, source, path)
        return ctypes.CDLL(str(path))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:  # also where there is no home
        said = getattr(error, "stderr", None) or str(error)
        raise NoCompilerError(" ".join(said.split())[:MOST_OF_A_REASON]) from None


def _texts(source: Path) -> list[str]:
    """The text of a file, and those of files beside it that it includes."""
    text = source.read_text()
    return [text, *((source.parent / name).read_text() for name in INCLUDED.findall(text))]


def has_compiler() -> bool:
    """Whether there is a C compiler."""
    return shutil.which(_compiler()[0]) is not None


def _compiler() -> list[str]:
    return shlex.split(os.environ.get("CC", "cc")) or ["cc"]


def _directory() -> Path:
    """Where libraries are kept; only this user may write there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sf"
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    if cache.stat().st_uid != os.getuid():
        raise PermissionError(f"{cache} belongs to another user")
    return cache


def _compile(command: list[str], source: Path, path: Path) -> None:
    """Several processes may do so at the same time; each renames a whole file."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        subprocess.run(
            [*command, "-o", str(made), str(source), "-lm"],
            check=True, capture_output=True, text=True, timeout=COMPILE_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        made.rename(path)


def _processor() -> str:
    """Model and features; -march=native means another thing where they differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    told = [line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))]
    return "\n".join(sorted(set(told)))
