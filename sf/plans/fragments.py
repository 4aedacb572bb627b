"""Fragments of experience for a driver: asked for one by one, filled by workers, read from shared memory.

The driver stands where a learner stands. It permits each worker to begin a slot, takes the slot when it is full, reads
what the worker has made of it and gives it back. Workers of `RemoteFragments` are rollout processes, supervised as
those of a training run; those of `LocalFragments` are the same roles in this process, which have their turn while the
driver waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from sf.errors import UsageError, WorkerCrashed
from sf.plans.episode import TeamEpisode
from sf.plans.local_iterator import Transform
from sf.plans.mailbox import ORDERS, PlanAnswer, Published, result_of
from sf.plans.sample_batch import Batch
from sf.plans.wiring import Wired
from sf.policy.nests import map_leaves
from sf.processes.servers import WorkerServer
from sf.processes.signals import Signals
from sf.run.children import Processes
from sf.shared.episodes import Episode, EpisodeRing
from sf.shared.weights import NOTHING_PUBLISHED

LOOK_S = 0.1
"""Longest sleep of a driver that waits for a fragment."""
SUPERVISE_S = 0.01
"""Longest time without a look at the workers, where fragments are always there."""
ALONE = 0
"""The only learner's number, and that of its policy: to the slots all policies of a plan are one."""


class Fragments:
    """Asks for fragments and reads them; a subclass makes the workers go on."""

    def __init__(self, wired: Wired) -> None:
        """Nothing is asked for, and nothing published."""
        self.wired, self.slots = wired, wired.shared.slots
        topology = wired.shared.topology
        self.num_workers = topology.num_workers
        self._wanted = np.zeros(self.num_workers, np.int64)
        """Fragments that were asked for and not taken."""
        self._taken = np.zeros(self.num_workers, np.int64)
        """Fragments that were taken, those that were dropped included."""
        self._since = np.full(self.num_workers, NOTHING_PUBLISHED)
        """Number of the orders under which a fragment must have been begun; others are dropped."""
        self._is_cancelled = np.zeros(self.num_workers, bool)
        """Workers that may begin a fragment with a permission that was taken back."""
        self._rings = [EpisodeRing(wired.shared.arena, worker) for worker in range(self.num_workers)]
        self.is_closed = False
        self._advanced_s = 0.0
        self._answers: dict[tuple[int, int], bytes] = {}
        """By worker and number of a call: what was not taken."""
        self._makes_items = False
        self._teams: list[TeamEpisode] = []
        """Episodes of several agents that have ended."""
        self.slots.allowed_slots[:] = 0
        for mailbox in (*wired.orders, *wired.calls, wired.weights):
            mailbox.allocate()

    def publish(
        self, weights: Mapping[str, Any], steps: int = 0, workers: Iterable[int] | None = None, timestep: int = 0
    ) -> None:
        """Makes the weights of all policies the newest.

        Args:
            weights: by policy.
            steps: optimizer steps that led to them, which fragments have as the version of the policy that acted.
            workers: that take them before their next fragment; None for all.
            timestep: of the plan, which the policies are told.
        """
        arrays = map_leaves(_as_array, dict(weights))
        self.wired.weights.send(Published(arrays, steps, timestep), "The weights of the policies")
        for worker in range(self.num_workers) if workers is None else workers:
            self.wired.calls[worker].send(None)

    def ask(self, worker: int) -> None:
        """Has a worker collect one fragment more."""
        self._expect_open()
        if self._is_cancelled[worker]:
            self._order(worker, None)
        self._wanted[worker] += 1
        self._permit(worker)
        self.wake(worker)

    def take(self, worker: int) -> list[Any]:
        """What a worker has made of its oldest full fragment: its batch, or what orders have made of that.

        Asks for another one where that is nothing, because no episode has ended, or a function keeps items back.

        Raises:
            OperatorFailed: a function that it applied raised an exception.
        """
        slot = next(slot for own, slot in self._waiting() if own == worker)
        self.slots.take(slot, ALONE)
        outcome = self.wired.parcels[worker].get(slot)
        self.slots.release(slot, ALONE)
        self._taken[worker] += 1
        self._wanted[worker] -= 1
        self.wake(worker)
        teams, items = result_of(outcome, f"In worker {worker}: ")
        self._teams += teams
        if not items:
            self.ask(worker)
        return list(items)

    def sampled(self, worker: int) -> Batch:
        """The next batch of a worker, that was asked for; waits for it."""
        items: list[Batch] = []
        while not items:
            self.wait({worker})
            items = self.take(worker)
        return items[0]

    def expect_batches(self) -> None:
        """Looks whether workers give batches.

        Raises:
            UsageError: functions of an iterator make something else of them.
        """
        if self._makes_items:
            raise UsageError("An iterator with functions reads these remote workers. Close it before you sample.")

    def wait(self, workers: set[int], timeout_s: float | None = None) -> list[int]:
        """Those of the workers that have a full fragment, the one that filled its slot first comes first.

        Waits until there is one, or for so many seconds.
        """
        end_s = np.inf if timeout_s is None else time.monotonic() + timeout_s
        if time.monotonic() > self._advanced_s + SUPERVISE_S:  # also where a fragment is always there
            self.advance(0.0)
        while not (ready := dict.fromkeys(worker for worker, _ in self._waiting() if worker in workers)):
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                break
            self.advance(min(LOOK_S, left_s))
        return list(ready)

    def order(self, transforms: Callable[[Any], Sequence[Transform]]) -> None:
        """Has all workers make items of the fragments that they begin from now on; earlier ones are dropped.

        Args:
            transforms: called in each worker, with its policies; returns transforms of an iterator over batches.
        """
        self._makes_items = True
        for worker in range(self.num_workers):
            self._order(worker, transforms)
            self.wake(worker)

    def call(self, workers: Sequence[int], function: Callable[[Any], Any]) -> list[Any]:
        """What a function returns in each of these workers; it gets the policies there.

        Raises:
            OperatorFailed: it raised an exception in one of them, or returned what cannot be pickled.
        """
        keys = [(worker, self.wired.calls[worker].send(function)) for worker in workers]
        for worker in workers:
            self.wake(worker)
        answers = [self._answer(key) for key in keys]
        for worker in workers:
            self.wired.calls[worker].send(None)
        return [
            result_of(answer, f"A function that worker {worker} was sent raised ")
            for worker, answer in zip(workers, answers, strict=True)
        ]

    def cancel(self, worker: int) -> None:
        """Wants nothing more of what a worker was asked for, and has it make no items; never waits.

        The worker may be about to begin a fragment with a permission that is taken back here. It looks at its orders
        after that, and the fragment bears their number. So the next question comes with new orders, and everything that
        was begun before it is dropped.
        """
        if self.is_closed:
            return
        self._makes_items = False
        self._wanted[worker], self._is_cancelled[worker] = 0, True
        self._permit(worker)
        self._since[worker] = self.wired.orders[worker].send(None)
        self.wake(worker)
        self._waiting()

    def _order(self, worker: int, transforms: Callable[[Any], Sequence[Transform]] | None) -> None:
        self._since[worker] = self.wired.orders[worker].send(transforms)
        self._is_cancelled[worker] = False

    def _waiting(self) -> list[tuple[int, int]]:
        """Worker and slot of each full fragment, the first that was filled comes first; gives back what is dropped."""
        found, topology = [], self.wired.shared.topology
        for slot in self.slots.waiting_for(ALONE).tolist():
            worker = topology.worker_of_group(topology.group_of_slot(slot))
            if self.slots[ORDERS][slot, 0] >= self._since[worker]:
                found.append((worker, slot))
                continue
            self.slots.take(slot, ALONE)
            self.slots.release(slot, ALONE, was_used=False)
            self._taken[worker] += 1
            self._permit(worker)
            self.wake(worker)
        return found

    def _expect_open(self) -> None:
        if self.is_closed:
            raise UsageError("These workers were stopped. Make new ones for more samples.")

    def _answer(self, key: tuple[int, int]) -> bytes:
        """Waits for it."""
        while key not in self._answers:
            self.advance(LOOK_S)
        return self._answers.pop(key)

    def hear(self, messages: Iterable[Any]) -> None:
        """Takes in what workers have told."""
        self._answers |= {message.key: message.outcome for message in messages if isinstance(message, PlanAnswer)}

    def new_episodes(self) -> list[Episode | TeamEpisode]:
        """Those that have ended since the last call."""
        teams, self._teams = self._teams, []
        single = [episode for ring in self._rings for episode in ring.new_episodes()]
        return list(teams if self.wired.info.num_agents > 1 else single)

    def advance(self, timeout_s: float) -> None:
        """Lets the workers go on, for so long at most."""
        raise NotImplementedError

    def wake(self, worker: int) -> None:
        """Has a worker look at its permissions."""

    def close(self) -> None:
        """Ends the workers; fragments that were not taken are lost."""

    def _permit(self, worker: int) -> None:
        """As many fragments at a time as are wanted; what a worker has begun and lost does not count."""
        (group,) = self.wired.shared.topology.groups_of_worker(worker)
        own = self.wired.shared.topology.slots_of_group(group)
        lost = self.slots.discarded[own.start : own.stop].sum()
        self.slots.allowed_slots[group] = self._taken[worker] + self._wanted[worker] + lost


def _as_array(weight: Any) -> Any:
    """A tensor as an array of its own size; anything else as it is."""
    return weight.detach().cpu().numpy() if hasattr(weight, "detach") else weight


class LocalFragments(Fragments):
    """The workers are roles in this process."""

    def __init__(self, wired: Wired) -> None:
        """Makes the environments."""
        super().__init__(wired)
        self._roles = [spec.build() for spec in wired.specs]
        for role in self._roles:
            role.tell = lambda message: self.hear([message])

    def advance(self, timeout_s: float) -> None:
        """See `Fragments`; each worker has one turn."""
        self._expect_open()
        self._advanced_s = time.monotonic()
        for role in self._roles:
            role.step()

    def close(self) -> None:
        """See `Fragments`."""
        self.is_closed = True
        for role in self._roles:
            role.close()
        self._roles = []


class RemoteFragments(Fragments):
    """The workers are processes, which are replaced when they die or hang."""

    def __init__(self, wired: Wired, signals: Signals | None = None) -> None:
        """Starts nothing yet.

        Args:
            wired: shared memory and specifications.
            signals: stop signals that wake the driver; none where the program handles them itself.
        """
        super().__init__(wired)
        self._own_signals = Signals(second_one_exits=False, parent=None) if signals is None else None
        self._signals: Signals = signals or self._own_signals  # type: ignore[assignment]  # one of them is there
        self._servers = WorkerServer()
        # Functions and classes of the script are sent as they are.
        begin = partial(self._servers.begin_environments, imports_script=False)
        self.processes = Processes(wired.shared, wired.config.faults, self._servers, begin)

    def start(self) -> None:
        """Starts the processes, if that was not done before, and waits until their environments are made.

        Raises:
            SfError: one cannot be made.
        """
        if self.processes.places:
            return
        self.processes.start(self.wired.specs)
        while not self.processes.is_ready:
            self.processes.advance(LOOK_S, self._signals)

    def advance(self, timeout_s: float) -> None:
        """See `Fragments`.

        Raises:
            SfError: a worker has ended and cannot be replaced.
        """
        self._expect_open()
        self.start()
        self.processes.advance(timeout_s, self._signals)
        self._advanced_s = time.monotonic()
        self.hear(self.processes.take_messages())
        for worker in range(self.num_workers):
            self._permit(worker)

    def wake(self, worker: int) -> None:
        """See `Fragments`."""
        self.wired.bells[worker].ring()

    def close(self) -> None:
        """See `Fragments`.

        Raises:
            WorkerCrashed: one cannot be ended.
        """
        was_closed, self.is_closed = self.is_closed, True
        if was_closed or not self.processes.places:
            return
        problems = self.processes.stop(self._signals)
        self._servers.__exit__(None, None, None)  # ends what keeps watch
        if self._own_signals is not None:
            self._own_signals.close()
        if problems:
            raise WorkerCrashed("; ".join(problems))
