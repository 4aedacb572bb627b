"""The places of a run: which of them have a child, and what is known of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, get_args

from sf.console import Console
from sf.processes.child import Child
from sf.processes.ties import STACKS_SIGNAL
from sf.run.place import End, Place, was_killed
from sf.run.wiring import Shared
from sf.shared.progress import Phase, phase_of
from sf.shared.records import evaluation_record, inference_record, learner_record
from sf.shared.role import RoleSpec


class Places:
    """Answers what the children do; `Processes` starts, replaces and ends them."""

    def __init__(self, shared: Shared) -> None:
        """Has no places yet."""
        self.shared = shared
        self.console = Console()
        self.places: list[Place] = []
        self.restarts = dict.fromkeys(get_args(End), 0)
        """How many, by the end that made them necessary."""
        self.killed: list[str] = []
        """Names of those that ended by a signal before the run was over."""
        self.messages: list[Any] = []
        """For the session."""
        self.has_begun = False
        """Every role was ready once; before, a failure is told at once and not tried again."""

    def take_messages(self) -> list[Any]:
        """Messages of the children to the session since the last call."""
        messages, self.messages = self.messages, []
        return messages

    @property
    def is_ready(self) -> bool:
        """Whether every role has been built. The first time that this is so, all of them begin."""
        if not self.has_begun and all(place.is_ready for place in self.places):
            self.has_begun = True
            self.shared.began_s[0] = time.monotonic()  # they wait for it, see `wait_for_begin`
        return self.has_begun

    def unready(self) -> str:
        """Which roles have not been built yet, and which environment each of them is making."""
        return ", ".join(place.what_it_makes() for place in self.places if not place.is_ready)

    @property
    def children(self) -> list[Child]:
        """The processes that have not been reaped."""
        return [place.child for place in self.places if place.child is not None]

    def pids(self) -> dict[str, int]:
        """Process ids by name."""
        return {child.name: child.pid for child in self.children}

    def faults(self) -> dict[str, float]:
        """For the curves: restarts so far, and the age of the oldest sign of life in seconds."""
        now = time.monotonic()
        return {
            "faults/restarts": float(sum(self.restarts.values())),
            **{f"faults/restarts_{end}": float(number) for end, number in self.restarts.items()},
            "faults/oldest_heartbeat": max((one.watch.age_s(now) for one in self.places if one.child), default=0.0),
        }

    def ended_well(self, prefix: str) -> bool:
        """Whether no process of this role was killed; says nothing of those that never started."""
        killed = [*self.killed, *(child.name for child in self.children if was_killed(child))]
        return not any(name.startswith(prefix) for name in killed)

    def _unfinished(self) -> str:
        """The work that is not broken off however long it takes, as a sentence without its full stop; "" for none.

        A learner that has trained may take as long for an optimizer step as during the run. Where one of them hangs,
        the others may be waiting for it.
        """
        living = [(one, one.child) for one in self.places if one.child is not None and not one.child.has_ended()]
        for place, child in living:
            if phase_of(place.watch.word[0])[0] is Phase.SAVE:
                return f"{child} writes its last checkpoint"
        trained = [(one, child) for one, child in living if one.spec.kind == "learner"]
        trained = [(one, child) for one, child in trained if self._work_of(one.spec) > one.work_before]
        now = time.monotonic()
        if any([place.watch.look(now) for place, _ in trained]):  # at each of them
            return ""
        steps = [child for place, child in trained if phase_of(place.watch.word[0])[0] is Phase.STEP]
        return f"{steps[0]} finishes its iteration and saves then" if steps else ""

    def _alive(self) -> list[Child]:
        return [child for child in self.children if not child.has_ended()]

    def _show_stacks(self, hanging: Sequence[Child], why: str) -> None:
        """Has each of them print where its threads are, on standard error."""
        for child in hanging:
            self.console.line(f"{child} {why}. Its stacks follow.")
            child.send_signal(STACKS_SIGNAL)

    def _work_of(self, spec: RoleSpec) -> int:
        """The work its place has delivered: slots filled, requests answered, evaluations, or any optimizer step."""
        if spec.kind == "rollout":
            groups = self.shared.topology.groups_of_worker(spec.index)
            each = self.shared.topology.slots_per_group
            return int(self.shared.slots.filled[groups.start * each : groups.stop * each].sum())
        if spec.kind == "inference":
            return int(inference_record(self.shared.arena, spec.index).read()["requests"])
        if spec.kind == "eval":
            return int(evaluation_record(self.shared.arena).read()["evaluations"])
        return int(learner_record(self.shared.arena, spec.index).read()["lag_max"] >= 0)  # unknown before the first one
