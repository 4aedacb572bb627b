"""The child processes of a run: started, watched, replaced where that is possible, stopped, never left behind.

Death is seen through pidfds, within milliseconds; hanging through the progress words, see `sf.processes.hangs`.
Only this module has them started, kills and waits for them. All but the learners are replaced by successors, which get
the same place in shared memory and go on with its counters. The unfinished slots of the dead process are discarded
first. The end of a learner is the end of the run.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Sequence
from multiprocessing import connection

from sf.config import FaultConfig
from sf.errors import LearnerLost, ResourceError, RestartsSpent, SfError, WorkerCrashed, sentence
from sf.machine.memory import MemoryKills
from sf.processes.child import Begin, Child
from sf.processes.hangs import HangWatch
from sf.processes.process import STOPPING, run_role
from sf.processes.servers import ForkServers
from sf.processes.signals import Signals
from sf.processes.simulators import Simulators
from sf.run.place import Place, how_it_hangs, may_be_luck, was_killed
from sf.run.places import Places
from sf.run.wiring import Shared
from sf.shared.progress import Phase, Progress
from sf.shared.role import RoleSpec

STOP_GRACE_S = 20.0
"""Time to end before a process is killed, beside that of a learner for its iteration and its last checkpoint."""
KILL_GRACE_S = 5.0
"""Time for the kernel to confirm a kill; a process in uninterruptible sleep is named and left to it."""
LAST_KILL_GRACE_S = 3.0
"""The same when the run ends."""
FAILED_GRACE_S = 0.5
"""Time for a process that has told why it fails to be gone."""
LOOK_S = 1.0
"""How often the supervisor looks at what is not urgent."""
UNKILLABLE = "cannot be killed and is left to the kernel"
"""Told about a process in uninterruptible sleep: it may still write, so that no other can take its place."""
STACKS_GRACE_S = 0.5
"""Time for a process that hangs to print the stacks of its threads."""


class Processes(Places):
    """All child processes of one run. Used from the main thread only: a child ends with the thread that made it."""

    def __init__(
        self,
        shared: Shared,
        faults: FaultConfig,
        servers: ForkServers,
        begin_rollout: Begin | None = None,
    ) -> None:
        """Starts nothing yet.

        Args:
            shared: by all of them.
            faults: how often they are replaced.
            servers: fork them.
            begin_rollout: starts a rollout worker, in another way than they do.
        """
        super().__init__(shared)
        self.faults_config, self.servers = faults, servers
        self._begin_rollout = begin_rollout or servers.begin_environments
        self.memory_kills = MemoryKills()
        self.has_news = False
        """A role rang, or has ended: it has told something that should not wait for the next look at the clock."""
        self.next_look_s = 0.0

    def start(self, specs: Sequence[RoleSpec]) -> None:
        """Starts one process per role; they report when they are ready."""
        self.servers.start()
        self.places = [Place(spec, self.faults_config.max_restarts) for spec in specs]
        for place in self.places:
            self._fill(place)

    def advance(self, timeout_s: float, signals: Signals) -> None:
        """Sleeps until a child reports or ends, a role rings, a signal arrives or `timeout_s` is over; then acts.

        Raises:
            SfError: a child has failed or ended and cannot be replaced.
        """
        self._fill_those_due()  # before the sleep, so that the caller has taken what their predecessors had told
        bell = self.shared.supervisor_bell
        others = [bell.fileno(), signals.fileno(), *self.servers.waitables()]
        own = [waitable for child in self.children for waitable in child.waitables()]
        next_start_s = min((place.start_s for place in self.places), default=math.inf)
        timeout_s = max(0.0, min(timeout_s, next_start_s - time.monotonic()))
        readable = connection.wait([*own, *others], timeout=timeout_s)
        self.has_news = bell.fileno() in readable
        bell.clear()
        signals.clear()
        self.servers.look()  # first: its end is that of others
        if any(waitable in own for waitable in readable):
            self._check()
        now = time.monotonic()
        for place in self.places:
            if place.child is not None:
                self._kill_if_it_hangs(place, place.child, now)
        if now >= self.next_look_s and self.simulators is not None:
            self.next_look_s = now + LOOK_S
            self.memory_kills.look(now)
            if told := self.simulators.reap():
                self.console.line(told)

    @property
    def simulators(self) -> Simulators | None:
        """The watch over processes that environments start; None before the start."""
        return self.servers.simulators

    def _fill_those_due(self) -> None:
        now = time.monotonic()
        for place in self.places:
            if place.start_s <= now or (place.waits_for_fork_server and self._may_begin(place.spec)):
                self._fill(place)

    def _fill(self, place: Place) -> None:
        """Starts a child in this place; later, if it comes from a fork server that is not ready."""
        assert self.simulators is not None
        spec, incarnation = place.spec, place.restarts.total
        progress = Progress(self.shared.arena[f"records/{spec.kind}/progress"], spec.index)
        progress.enter(Phase.START)
        place.start_s, place.waits_for_fork_server = math.inf, not self._may_begin(spec)
        if place.waits_for_fork_server:
            return
        child = Child(
            spec.name,
            run_role,
            spec.successor(incarnation) if incarnation else spec,
            self.shared.arena,
            simulators=self.simulators,
            incarnation=incarnation,
            leads_group=spec.has_environments,
            begin=self._begin_rollout if _does_without_torch(spec) else self.servers.networks.begin,
        )
        watch = HangWatch(progress, spec.deadlines_s, time.monotonic())
        place.fill(child, watch, self._work_of(spec))

    def _may_begin(self, spec: RoleSpec) -> bool:
        """Whether the fork server of this role is ready, or none is needed."""
        servers = self.servers
        return servers.may_begin_environments if _does_without_torch(spec) else servers.networks.is_ready

    def _check(self) -> None:
        """Hears what was reported, and deals with those that are no more; a cause that was told comes first."""
        over = []
        for place in self.places:
            if place.child is not None:
                self.messages += place.child.hear()
                if place.child.has_ended() or place.child.failure is not None:
                    over.append((place.child.failure is None, place))
        for _, place in sorted(over, key=lambda pair: pair[0]):
            self._lose(place)

    def _kill_if_it_hangs(self, place: Place, child: Child, now: float) -> None:
        """First its stacks are printed, then it is killed; its end tells the rest.

        Raises:
            WorkerCrashed: the kernel does not end it.
        """
        if place.hang is None and (hang := place.watch.look(now)):
            place.hang, place.kill_s = hang, now + STACKS_GRACE_S
            self._show_stacks([child], how_it_hangs(hang, place.spec))
        if now >= place.killed_s + KILL_GRACE_S:
            raise WorkerCrashed(f"{child} hangs and {UNKILLABLE}")
        if now >= place.kill_s and place.killed_s == math.inf:
            child.kill()
            place.killed_s = now

    def _lose(self, place: Place) -> None:
        """A child has ended or is about to; its place is cleared, and filled again if that makes sense.

        Raises:
            SfError: it does not.
        """
        child, spec = place.child, place.spec
        assert child is not None
        if not child.has_ended(FAILED_GRACE_S):
            child.kill()
        if not child.has_ended(KILL_GRACE_S):
            raise WorkerCrashed(f"{place.ending(child)}\n{child} {UNKILLABLE}")
        self.messages += child.hear()
        child.reap()
        place.child, self.has_news = None, True
        if was_killed(child):
            self.killed.append(child.name)
            place.lacked_memory = was_killed(child, signal.SIGKILL) and self.memory_kills.were_just_now()
        cause = place.ending(child)
        discarded = self.shared.slots.discard_of_worker(spec.index) if spec.kind == "rollout" else 0
        if spec.kind == "learner" and may_be_luck(child):
            learner_lost = LearnerLost(str(cause))
            learner_lost.exit_code = cause.exit_code
            raise learner_lost
        if not spec.can_be_replaced or not may_be_luck(child):
            raise cause
        if child.failure is not None and not child.is_ready and not self.has_begun:
            raise cause  # it will not get better, and nothing is lost yet
        delivered = self._work_of(spec) > place.work_before
        delay_s = place.restarts.delay_s(time.monotonic(), delivered)
        if delay_s is None:
            self._give_up(place, cause)
            return
        self.restarts[place.end_of(child)] += 1
        place.start_s = time.monotonic() + delay_s
        reason = child.failure.message if child.failure else ""
        text = str(cause) if reason != place.last_failure else str(cause).splitlines()[0]
        place.last_failure = reason
        lost = f" Unfinished trajectories of its groups that are discarded: {discarded}." if discarded else ""
        again = f"Restart {place.restarts.total} of {child.name} follows{f' in {delay_s:.1f} s' if delay_s else ''}."
        self.console.line(f"{sentence(text)}{lost} {again}")

    def _give_up(self, place: Place, cause: SfError) -> None:
        """Goes on without this worker, if the others can fill the datasets of the learners.

        Raises:
            RestartsSpent: they cannot, or it is no rollout worker.
            ResourceError: the same, because memory has run out.
        """
        place.is_given_up = True
        limit = self.faults_config.max_restarts
        if limit == 0:
            raise cause
        spent = (
            f"{place.spec.name} died more than {limit} times within a minute, or in a row without delivering anything"
        )
        left = sum(1 for other in self.places if other.spec.kind == "rollout" and not other.is_given_up)
        if place.spec.kind != "rollout" or left < self.shared.least_rollout_workers:
            kind = ResourceError if isinstance(cause, ResourceError) else RestartsSpent
            raise kind(f"{cause}\n{spent}; the run cannot go on without it (--max_restarts={limit}).")
        self.console.line(f"{cause}\n{spent} and is given up; the run goes on with {left} rollout workers.")

    def stop(self, signals: Signals) -> list[str]:
        """Asks all to end, waits, and kills those that do not, or all at an urgent signal; returns what went wrong."""
        self.shared.run_state[0] = STOPPING
        for doorbell in self.shared.doorbells:
            doorbell.ring()
        began_s, told = time.monotonic(), ""
        deadline = began_s + STOP_GRACE_S
        while (alive := self._alive()) and not signals.is_urgent:
            if unfinished := self._unfinished():
                deadline = time.monotonic() + STOP_GRACE_S
                if unfinished != told and deadline > began_s + 2 * STOP_GRACE_S:
                    told = unfinished
                    how = "Another Ctrl-C" if signals.times_asked else "Two Ctrl-C"
                    self.console.line(f"{unfinished}. {how} would break it off.")
            if time.monotonic() >= deadline:
                break
            waitables = [*(one.pidfd for one in alive), signals.fileno()]
            connection.wait(waitables, min(1.0, max(0.0, deadline - time.monotonic())))
            for one in alive:
                self.messages += one.hear()
            signals.clear()
        if alive and not signals.is_urgent:
            self._show_stacks(alive, "did not stop")
            time.sleep(STACKS_GRACE_S)
        killed = self._alive()
        idle = [one.child for one in self.places if one.child in killed and self._work_of(one.spec) == one.work_before]
        for one in killed:
            one.kill()
        deadline = time.monotonic() + LAST_KILL_GRACE_S
        while (alive := self._alive()) and time.monotonic() < deadline:
            connection.wait([one.pidfd for one in alive], max(0.0, deadline - time.monotonic()))
        problems = [f"{one} {UNKILLABLE}" for one in alive]
        for place in self.places:
            child = place.child
            if child is None:
                continue
            self.messages += child.hear()
            child.reap()
            if child.failure is None and child in killed and was_killed(child, signal.SIGKILL):
                late = f"{child} did not stop and was killed"
            elif child.failure is not None or child.exit_code:  # the kill may have come too late
                late = str(place.ending(child))
            else:
                continue
            if place.spec.kind == "learner" and child not in idle:
                problems.append(late)
            elif not signals.is_urgent:
                self.console.line(f"At the end: {sentence(late)} Nothing that was learned is lost.")
        return problems


def _does_without_torch(spec: RoleSpec) -> bool:
    return spec.kind == "rollout"
