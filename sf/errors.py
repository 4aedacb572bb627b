"""The exceptions a user of sf can meet, and the exit code that each one gives a command.

    SfError
    ├── UsageError          2   a flag, a name or a value on the command line
    │   └── ConfigError     2   configurations that contradict each other or the environment
    ├── EnvError            3   the environment is unknown or breaks its contract
    │   └── EnvCrashed      3   the environment raises an exception of its own
    ├── CheckpointError     4   a checkpoint is damaged or belongs to another policy
    ├── ExperimentError     4   the experiment directory is in use, foreign or not writable
    ├── ResourceError       5   memory, descriptors, threads, device
    │   └── DeviceLost      5   an accelerator is broken or gone
    ├── ExportError         2   a policy cannot be written for another runtime
    ├── RestartsSpent       6   workers died more often than they may
    └── InternalError       7   a fault of sf itself
        └── WorkerCrashed   7   a process that the run cannot go on without has ended
            └── LearnerLost 7   it was a learner, another one can go on from the last checkpoint (5 for want of memory)

Every message says what was expected, what was found with its value, and what to change. A run that ends without an
exception has a code as well. It is 0 when the run finished or a callback stopped it, 130 after SIGINT, and 143 after
SIGTERM or SIGHUP. It is 75 (EX_TEMPFAIL) after SIGUSR1, and after SIGTERM in a job of Slurm: the run is saved and asks
to be started again.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum


class ExitCode(IntEnum):
    """The meanings of the exit codes of a command."""

    FINISHED = 0
    """The run finished, or a callback stopped it."""
    USAGE = 2
    """Flags, configuration or names are wrong, or a policy cannot be exported."""
    ENVIRONMENT = 3
    """The environment is unknown, cannot be made, or breaks its contract."""
    CHECKPOINT = 4
    """A checkpoint is damaged or of another policy, or the experiment directory cannot be used."""
    RESOURCES = 5
    """Memory, files, processes or an accelerator are missing."""
    RESTARTS_SPENT = 6
    """Workers died too often, or too few are left."""
    INTERNAL = 7
    """A fault of sf itself, the loss of a learner or of the fork server, or an unbalanced ledger."""
    REQUEUE = 75
    """SIGUSR1, or SIGTERM in a job of Slurm (SLURM_JOB_ID is set): the run is saved and asks to be started again."""
    SIGINT = 130
    """SIGINT (Ctrl-C): the run is saved."""
    SIGPIPE = 141
    """The reader of the output closed its pipe."""
    SIGTERM = 143
    """SIGTERM or SIGHUP: the run is saved."""


class SfError(Exception):
    """Base of all errors that sf raises on purpose; its text is written for the user."""

    exit_code: ExitCode = ExitCode.INTERNAL


class UsageError(SfError):
    """The command line cannot be understood."""

    exit_code = ExitCode.USAGE


class ConfigError(UsageError):
    """Values that are refused; carries every problem that was found, one sentence or two for each."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[str, ...]]]:
        """Pickle by the problems, because the default would hand the joined text to the constructor."""
        return type(self), (self.problems,)


class EnvError(SfError):
    """An environment cannot be made or does not keep the Gymnasium interface."""

    exit_code = ExitCode.ENVIRONMENT


class EnvCrashed(EnvError):
    """An environment raised an exception of its own; another copy of it may do better."""


class CheckpointError(SfError):
    """No usable checkpoint, or one that does not fit the policy."""

    exit_code = ExitCode.CHECKPOINT


class LostDirectory(CheckpointError):
    """The directory of a run was removed while the run used it, or is another run's now."""


class ExperimentError(SfError):
    """The experiment directory cannot be used."""

    exit_code = ExitCode.CHECKPOINT


class ResourceError(SfError):
    """The machine cannot give what the run needs."""

    exit_code = ExitCode.RESOURCES


class DeviceLost(ResourceError):
    """An accelerator cannot be used any more; another process may be able to."""


class ExportError(SfError):
    """A policy cannot be written for another runtime."""

    exit_code = ExitCode.USAGE


class RestartsSpent(SfError):
    """A worker died again and again, or too few of them are left."""

    exit_code = ExitCode.RESTARTS_SPENT


class InternalError(SfError):
    """A fault of sf itself, worth a report."""


class WorkerCrashed(InternalError):
    """A process ended without being told to; the message holds its name, how it ended and its traceback."""


class LearnerLost(WorkerCrashed):
    """A learner ended; its training since its last checkpoint is lost."""


def text_of(error: BaseException) -> str:
    """The text of an exception, even of one that cannot say it."""
    try:
        return str(error)
    except Exception:
        return "(the text of the exception cannot be shown)"


def sentence(text: str) -> str:
    """With a full stop, so that another sentence can follow."""
    return text if text.endswith((".", "!", "?")) else f"{text}."
