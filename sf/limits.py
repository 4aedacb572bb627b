"""What the operating system allows this process, compared with what a run needs before anything is started."""

from __future__ import annotations

import resource

from sf.errors import ResourceError

PER_PROCESS = 4
"""Descriptors that the supervisor keeps for each child: sentinel, reports, and two while it is started."""
OTHERS = 64
"""Standard streams, shared memory, curves, checkpoints, libraries."""


def ensure_descriptors(num_processes: int, num_doorbells: int) -> None:
    """Raises the soft limit on open files if the run needs more.

    Raises:
        ResourceError: the hard limit is lower still.
    """
    needed = OTHERS + PER_PROCESS * num_processes + num_doorbells
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise ResourceError(
            f"The run needs about {needed} open files for {num_processes} processes, and the limit is {hard}. Raise it "
            "(ulimit -n) or use fewer --num_workers."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
