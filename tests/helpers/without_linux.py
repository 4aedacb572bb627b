"""A Python that looks like one on macOS: what only Linux has is hidden before `sf` is imported.

A DeprecationWarning about a line of `sf` is an error.

Run as a script it does what the first argument says: `import` imports every module of `sf`, and any other word is the
name of a module of `sf.cli` whose `main` gets the arguments that follow.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import importlib
import io
import mmap
import os
import pkgutil
import resource
import select
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

HIDDEN_NAMES: dict[Any, tuple[str, ...]] = {
    os: (
        "sched_", "eventfd", "EFD_", "memfd_create", "MFD_", "pidfd_open", "P_PIDFD", "pipe2", "posix_fallocate",
        "posix_fadvise", "POSIX_FADV", "copy_file_range", "splice", "getrandom", "GRND_", "getxattr", "setxattr",
        "listxattr", "removexattr", "fdatasync", "getresuid", "getresgid", "setresuid", "setresgid", "O_TMPFILE",
        "O_PATH", "O_NOATIME", "O_LARGEFILE", "unshare", "setns", "waitid",
    ),
    signal: (
        "SIGRT", "SIGPWR", "SIGSTKFLT", "SIGPOLL", "SIGCLD", "sigtimedwait", "sigwaitinfo", "pidfd_send_signal",
    ),
    select: ("epoll", "EPOLL"),
    resource: (
        "prlimit", "RLIMIT_NICE", "RLIMIT_RT", "RLIMIT_SIGPENDING", "RLIMIT_MSGQUEUE", "RLIMIT_OFILE", "RUSAGE_THREAD",
    ),
    mmap: ("MADV_HUGEPAGE", "MADV_NOHUGEPAGE", "MADV_DODUMP", "MADV_DONTDUMP", "MADV_REMOVE", "MAP_POPULATE"),
}  # fmt: skip
"""Beginnings of names that modules of the standard library have on Linux alone."""
HIDDEN_FUNCTIONS = {"prctl", "mallopt", "renameat2", "memfd_create", "eventfd", "pidfd_open"}
"""Functions of the C library."""
HIDDEN_PLACES = ("/proc", "/sys", "/dev/shm")
LOADED_BEFORE = (
    "gymnasium", "gymnasium.vector", "multiprocessing.popen_forkserver", "numpy", "psutil", "rich.progress",
    "safetensors.torch", "setproctitle", "signal_slot.signal_slot", "tensorboardX", "torch", "torch._dynamo", "tyro",
)  # fmt: skip
"""Packages that are built for one system, and so ask for its name while they are imported."""


def hidden_names(module: Any) -> list[str]:
    """The names of a module that are hidden."""
    return [name for name in dir(module) if name.startswith(HIDDEN_NAMES[module])]


def hide_linux() -> None:
    """Hides it from now on."""
    for name in LOADED_BEFORE:
        importlib.import_module(name)
    for module in HIDDEN_NAMES:
        for name in hidden_names(module):
            delattr(module, name)
    tempfile._O_TMPFILE_WORKS = False  # type: ignore[attr-defined]  # it has asked for this flag when it was imported
    found = ctypes.CDLL.__getattr__

    def function(library: ctypes.CDLL, name: str) -> Any:
        if name in HIDDEN_FUNCTIONS:
            raise AttributeError(f"function {name!r} not found")
        return found(library, name)

    ctypes.CDLL.__getattr__ = function  # type: ignore[method-assign]
    for module, name in ((builtins, "open"), (io, "open"), (os, "open"), (os, "stat"), (os, "listdir")):
        setattr(module, name, _blind(getattr(module, name)))
    sys.platform = "darwin"
    warnings.filterwarnings("error", category=DeprecationWarning, module=r"sf(\.|$)")


def _blind(call: Callable[..., Any]) -> Callable[..., Any]:
    """The function, for which the places of Linux are not there; psutil alone has its own way on each system."""

    def blind(path: Any = ".", *arguments: Any, **settings: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        is_hidden = isinstance(path, (str, os.PathLike)) and str(path).startswith(HIDDEN_PLACES)
        if is_hidden and caller.startswith(("sf", "pathlib")):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return call(path, *arguments, **settings)

    return blind


def import_all() -> None:
    """Imports every module of `sf`; those of extras that are not installed need not."""
    import sf

    for found in pkgutil.walk_packages(sf.__path__, "sf."):
        if found.name == "sf.__main__":
            continue
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            if (error.name or "sf").partition(".")[0] in ("sf", "os", "signal"):
                raise
        print(found.name)


def main() -> int:
    """Does what the first argument says."""
    hide_linux()
    what, *arguments = sys.argv[1:]
    if what == "import":
        import_all()
        return 0
    code: int = importlib.import_module(f"sf.cli.{what}").main(arguments)
    return code


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
