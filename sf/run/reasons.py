"""Why a run ends, and what that means for its exit code."""

from __future__ import annotations

import enum
import signal
from collections.abc import Sequence

from sf.config import RunConfig
from sf.errors import ExitCode
from sf.processes.signals import code_after


class ExitReason(enum.Enum):
    """Why a run ended in order."""

    ENV_STEPS = "train_for_env_steps reached"
    SECONDS = "train_for_seconds reached"
    REWARD = "stop_at_reward reached"
    CALLBACK = "stopped by a callback"
    SIGINT = "stopped by SIGINT"
    SIGTERM = "stopped by SIGTERM"
    SIGHUP = "stopped by SIGHUP"
    SIGUSR1 = "stopped by SIGUSR1, to be started again"
    SLURM = "stopped by SIGTERM in a job of Slurm, to be started again"
    BROKEN = "it broke"
    """Reason of other ranks only: what broke raises an error where it did."""

    @classmethod
    def of(cls, stop: signal.Signals | None) -> ExitReason | None:
        """The reason that a stop signal gives."""
        if stop is signal.SIGTERM and code_after(stop) is ExitCode.REQUEUE:
            return cls.SLURM
        return None if stop is None else cls[stop.name]

    @property
    def code(self) -> ExitCode:
        """The exit code of a run that ends for this reason."""
        return _CODES.get(self, ExitCode.FINISHED)


def limit_reached(run: RunConfig, frames: int, seconds: float, means: Sequence[float | None]) -> ExitReason | None:
    """The limit at which a run ends, if there is one.

    Args:
        run: with the limits.
        frames: so far, those before a resume included.
        seconds: since this start.
        means: of the rewards of each policy, None where there are too few episodes; empty where they do not count now.
    """
    if frames >= run.frame_limit:
        return ExitReason.ENV_STEPS
    if seconds >= run.time_limit_s:
        return ExitReason.SECONDS
    if run.stop_at_reward is None or not means:
        return None
    reached = all(mean is not None and mean >= run.stop_at_reward for mean in means)
    return ExitReason.REWARD if reached else None


_CODES = {
    ExitReason.SIGINT: ExitCode.SIGINT,
    ExitReason.SIGTERM: ExitCode.SIGTERM,
    ExitReason.SIGHUP: ExitCode.SIGTERM,
    ExitReason.SIGUSR1: ExitCode.REQUEUE,
    ExitReason.SLURM: ExitCode.REQUEUE,
    ExitReason.BROKEN: ExitCode.INTERNAL,
}


REASONS = tuple(ExitReason)
"""By the number less one that ranks tell each other."""
