"""Where the runs of a sweep go: processes of this machine or jobs of Slurm; or `sf.tools.sweep.ray_tune`."""

from __future__ import annotations

import contextlib
import math
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from sf.errors import ExitCode, UsageError
from sf.tools.sweep.conduct import Job
from sf.tools.sweep.description import Description
from sf.tools.sweep.execution import execute
from sf.tools.sweep.trials import TrialOutcome, TrialRun

SAVING_MIN = 5
"""Minutes that a job of Slurm gets beyond the time limit of its run."""


@dataclass(frozen=True)
class LocalJob:
    """A run of this machine, watched by a thread."""

    future: Future[TrialOutcome]
    stop: threading.Event

    def done(self) -> bool:
        return self.future.done()

    def result(self) -> TrialOutcome:
        return self.future.result()

    def cancel(self) -> None:
        self.stop.set()


@contextlib.contextmanager
def local(jobs: int) -> Iterator[Callable[[TrialRun], Job]]:
    """Starts runs on this machine; they have ended when the block has."""
    stops: list[threading.Event] = []
    with ThreadPoolExecutor(jobs) as pool:

        def begin(run: TrialRun) -> LocalJob:
            stops.append(threading.Event())
            return LocalJob(pool.submit(execute, run, stops[-1]), stops[-1])

        try:
            yield begin
        finally:
            for stop in stops:
                stop.set()


@dataclass(frozen=True)
class SlurmJob:
    """A job of submitit."""

    job: Any

    def done(self) -> bool:
        done: bool = self.job.done()
        return done

    def result(self) -> TrialOutcome:
        """What the job has returned; a job that was cancelled or lost has returned nothing."""
        try:
            outcome: TrialOutcome = self.job.result()
        except Exception as error:  # submitit raises what it likes
            state = str(self.job.state)
            if state.startswith("CANCELLED") or state == "INTERRUPTED":
                return TrialOutcome("stopped", ExitCode.SIGTERM)
            return TrialOutcome("failed", ExitCode.INTERNAL, message=f"Its job {self.job.job_id} was lost: {error}")
        return outcome

    def cancel(self) -> None:
        self.job.cancel()


class Preemptible:
    """`execute` for a job that Slurm may take away: submitit queues it again, and the run resumes by itself."""

    def __call__(self, run: TrialRun) -> TrialOutcome:
        return execute(run)

    def checkpoint(self, run: TrialRun) -> Any:
        """What submitit queues."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, run)


def slurm(description: Description) -> Callable[[TrialRun], Job]:
    """Starts runs as jobs of submitit with the parameters of the table [slurm].

    Raises:
        UsageError: submitit or Slurm is not there, or refuses the parameters.
    """
    try:
        import submitit
    except ImportError:
        raise UsageError('--backend=slurm needs submitit: pip install "sf-rl[slurm]"') from None
    parameters = dict(description.slurm)
    cluster = parameters.pop("cluster", "slurm")
    if cluster == "slurm" and shutil.which("sbatch") is None:
        raise UsageError("There is no sbatch here. Call sf-sweep on a login node of Slurm, or use --backend=local.")
    limit_s = description.settings.time_limit_s
    if limit_s is not None:
        parameters.setdefault("timeout_min", math.ceil(limit_s / 60) + SAVING_MIN)
    if "timeout_min" not in parameters and "slurm_time" not in parameters:
        raise UsageError("Slurm needs to know how long a run may take. Give time_limit_s, or timeout_min in [slurm].")
    try:
        executor = submitit.AutoExecutor(description.directory / "slurm", cluster=cluster)
        executor.update_parameters(**{"name": description.settings.sweep, **parameters})
    except Exception as error:  # NameError, ValueError, AssertionError
        raise UsageError(f"submitit refuses [slurm]: {error}") from None
    return lambda run: SlurmJob(executor.submit(Preemptible(), run))
