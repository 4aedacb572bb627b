"""Acting in a rollout worker with a clock, see `sf.tools.bench.timings`; without torch."""

from __future__ import annotations

import time
from typing import Any

from sf.inference.small_worker import SmallInference
from sf.shared.arena import Arena
from sf.shared.weights import NOTHING_PUBLISHED
from sf.tools.bench.timings import VERSIONS, Durations, newest_versions


class TimedSmallInference(SmallInference):
    """Keeps how long its requests and the weights that it takes have been there."""

    def __init__(self, timings: Arena, **arguments: Any):
        super().__init__(**arguments)
        self.published, self.requested = timings["published"], timings["requested"]
        self.publications, self.answers = Durations(timings, "publication"), Durations(timings, "request")
        self.row = arguments["index"]

    def _refresh(self, policy: int) -> None:
        held = int(self.versions[policy])
        super()._refresh(policy)
        if held != NOTHING_PUBLISHED:
            versions = newest_versions(held, int(self.versions[policy]))
            waited = time.monotonic_ns() - self.published[policy][versions % VERSIONS]
            self.publications.add(policy * self.topology.inference_per_policy + self.row, waited)

    def _serve(self, group: int) -> None:
        requested = self.requested[[group]]  # a group that is answered may ask again at once
        super()._serve(group)
        self.answers.add(self.row, time.monotonic_ns() - requested)
