"""Names of Python that are not public, all in one place, because each may change with a version.

`sf.nets.private` has those of torch; rollout workers do without it. The versions with which both were tried are in
tests/test_private_names.py.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from multiprocessing import forkserver, popen_forkserver, popen_spawn_posix, resource_tracker, spawn, util
from typing import Any, NoReturn


def interpreter_flags() -> list[str]:
    """Flags of this Python, for another one."""
    flags: list[str] = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return flags


def descriptor_class(is_forked: bool) -> Any:
    """What stands for a descriptor in a packed job; in a child that a fork server has forked it has another number."""
    return popen_forkserver._DupFd if is_forked else popen_spawn_posix._DupFd


def run_job_and_exit(job: int, tracker: int, inherited: Sequence[int]) -> NoReturn:
    """Does what `multiprocessing` has packed for a child that a fork server has forked.

    Args:
        job: descriptor of the packed job.
        tracker: descriptor of the resource tracker.
        inherited: further descriptors that the job names by their places.
    """
    forkserver._forkserver._inherited_fds = list(inherited)  # type: ignore[attr-defined]
    resource_tracker._resource_tracker._fd = tracker  # type: ignore[attr-defined]
    os._exit(spawn._main(job, os.dup(job)))
