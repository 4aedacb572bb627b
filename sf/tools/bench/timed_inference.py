"""The inference worker with a clock, see `sf.tools.bench.timings`."""

from __future__ import annotations

import time
from typing import Any

from sf.inference.worker import InferenceWorker, Task
from sf.shared.arena import Arena
from sf.shared.weights import NOTHING_PUBLISHED
from sf.tools.bench.timings import VERSIONS, Durations, newest_versions


class TimedInference(InferenceWorker):
    """Keeps how long its requests and the weights that it takes have been there."""

    def __init__(self, timings: Arena, **arguments: Any):
        super().__init__(**arguments)
        self.published, self.requested = timings["published"][self.policy_id], timings["requested"]
        self.publications, self.answers = Durations(timings, "publication"), Durations(timings, "request")
        self.row = self.policy_id * self.topology.inference_per_policy + arguments["index"]

    def _refresh_weights(self) -> bool:
        held = self.version
        has_weights = super()._refresh_weights()
        if self.version != held != NOTHING_PUBLISHED:
            versions = newest_versions(held, self.version)
            self.publications.add(self.row, time.monotonic_ns() - self.published[versions % VERSIONS])
        return has_weights

    def _answer(self, tasks: list[Task]) -> None:
        requested = self.requested[[task.group for task in tasks]]  # a group that is answered may ask again at once
        super()._answer(tasks)
        self.answers.add(self.row, time.monotonic_ns() - requested)
