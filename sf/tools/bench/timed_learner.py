"""The learner with a clock, see `sf.tools.bench.timings`."""

from __future__ import annotations

import time
from typing import Any

from sf.learner.training import StepReport
from sf.learner.worker import Learner
from sf.shared.arena import Arena
from sf.tools.bench.timings import VERSIONS


class TimedLearner(Learner):
    """Leaves a stamp before every publication."""

    def __init__(self, timings: Arena, **arguments: Any):
        self.published = timings["published"][arguments["policy_id"]]
        super().__init__(**arguments)

    def _publish(self, step: StepReport) -> None:
        self.published[step.version % VERSIONS] = time.monotonic_ns()
        super()._publish(step)
