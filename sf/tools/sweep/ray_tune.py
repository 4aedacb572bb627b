"""Ray Tune as the place where the runs of a sweep go: it asks our queue for each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sf.errors import ExitCode, UsageError
from sf.tools.sweep.conduct import Queue
from sf.tools.sweep.description import Description
from sf.tools.sweep.execution import execute
from sf.tools.sweep.trials import TrialOutcome, TrialRun


def drive_ray(queue: Queue, description: Description) -> None:
    """Has Ray Tune run everything in the queue, with the resources of the table [ray] for each run.

    Raises:
        UsageError: Ray is not installed.
    """
    try:
        from ray import tune
        from ray.tune.search import Searcher
    except ImportError:
        raise UsageError('--backend=ray needs Ray: pip install "sf-rl[ray]"') from None

    class Asking(Searcher):  # type: ignore[misc]  # Ray is not installed where types are checked
        """The queue, as a search algorithm of Tune."""

        def __init__(self, queue: Queue) -> None:
            super().__init__(metric="value", mode="max")
            self.queue = queue
            self.given: dict[str, TrialRun] = {}

        def __getstate__(self) -> dict[str, Any]:
            """Tune writes it down for a restart of its own; ours is the record."""
            return {}

        def suggest(self, trial_id: str) -> Any:
            if (run := self.queue.next_run()) is None:
                return Searcher.FINISHED
            self.given[trial_id] = run
            return asdict(run)

        def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
            run = self.given.pop(trial_id)
            message = "Ray Tune has lost its trial; its own output says why."
            lost = TrialOutcome("failed", ExitCode.INTERNAL, message=message)
            self.queue.ended_run(run, result["outcome"] if result and not error else lost)

        def save(self, checkpoint_path: str) -> None:
            """The record of the sweep is its memory."""

        def restore(self, checkpoint_path: str) -> None:
            """Nothing was saved."""

    jobs = description.settings.jobs
    tuner = tune.Tuner(
        tune.with_resources(_trainable, {"cpu": 1, **description.ray}),
        tune_config=tune.TuneConfig(search_alg=Asking(queue), num_samples=-1, max_concurrent_trials=jobs),
        run_config=tune.RunConfig(name="ray", storage_path=str(description.directory), verbose=0),
    )
    tuner.fit()


def _trainable(config: Mapping[str, Any]) -> dict[str, Any]:
    """One run in a process of Ray."""
    outcome = execute(TrialRun(**config))
    return {"value": outcome.value, "outcome": outcome}
