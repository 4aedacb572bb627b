"""The call of an environment in which another process is, and whether it takes too long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sf.processes.hangs import HangWatch
from sf.shared.arena import Array
from sf.shared.progress import Phase, Progress, phase_of

CALLS = {
    Phase.START: "the start of its process",
    Phase.INIT: "the constructor",
    Phase.RESET: "reset()",
    Phase.STEP: "step()",
    Phase.CLOSE: "close()",
}


class Limit(NamedTuple):
    """The longest time of a call."""

    seconds: float
    origin: str = ""
    """The flag that raises it, as part of a sentence; "" if none does."""


class Calls:
    """Looks at the progress of a process that calls one environment after the other."""

    def __init__(
        self,
        progress: Progress,
        env_id: str,
        limits: Mapping[Phase, Limit],
        now_s: float,
        steps: Array | None = None,
        num_steps: int = 0,
    ) -> None:
        """Begins to look.

        Args:
            progress: of the process.
            env_id: of the environments.
            limits: of their calls.
            now_s: monotonic.
            steps: one number that the process writes, the steps that the present environment has begun.
            num_steps: that each of them takes at least.
        """
        self._env_id, self._limits, self._began_s = env_id, limits, now_s
        self._steps, self._num_steps = steps, num_steps
        self._watch = HangWatch(progress, {phase: limit.seconds for phase, limit in limits.items()}, now_s)

    def told(self, now_s: float) -> str:
        """A sentence about the present call, and the time that it and all calls have taken."""
        phase, index = phase_of(self._watch.word[0])
        limit = self._limits.get(phase)
        most = f" of at most {limit.seconds:g} s{limit.origin and f', {limit.origin}'}" if limit else ""
        return (
            f"Looking at {self._env_id}: {self._doing(phase, index)}, {now_s - self._began_s:.0f} s so far. "
            f"The present call has taken {self._watch.age_s(now_s):.0f} s{most}."
        )

    def doing(self) -> str:
        """The present call, or the last one of a process that has ended."""
        return self._doing(*phase_of(self._watch.word[0]))

    def _doing(self, phase: Phase, index: int) -> str:
        step = 0 if self._steps is None else int(self._steps[0])
        if phase is Phase.STEP and step:
            return f"step {step} of {self._num_steps}" if step <= self._num_steps else f"step {step}"
        return CALLS.get(phase, "a call") + (f" of environment {index}" if index else "")

    def late(self, now_s: float) -> str:
        """A sentence about a call that takes too long, without its end; "" if none does. To be asked every second."""
        hang = self._watch.look(now_s)
        if hang is None:
            return ""
        origin = self._limits[hang.phase].origin
        advice = f", or raise the limit, {origin}" if origin else ""
        return (
            f"{self._call(hang.phase, hang.environment)} has not returned for {hang.deadline_s:g} s. Check it on its "
            f"own{advice}."
        )

    def _call(self, phase: Phase, index: int) -> str:
        which = f", environment {index}," if index else ""
        return f"{CALLS.get(phase, 'a call')} of {self._env_id}{which}"
