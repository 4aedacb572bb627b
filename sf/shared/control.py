"""Requests of the supervisor to learners: few, small, typed signals over signal-slot-mp.

They go one way, because the queue underneath has a lock that dies with its holder. So the supervisor never reads one,
and learners answer over a pipe each. The order to stop must be known at once, so it is a word in the arena. A full
queue raises here instead of dropping the signal.
"""

from __future__ import annotations

from typing import Any

import faster_fifo_reduction  # noqa: F401  (lets the queues travel to spawned processes)
from signal_slot.signal_slot import EventLoop, EventLoopObject, signal

from sf.errors import InternalError

CONTROL_BYTES = 5 * 2**20
"""Size of the block that the queues of a connection between two processes take."""
CONTROL_QUEUE_LIMIT = 1_000_000
"""Bytes that may wait in a control queue; signal-slot-mp drops beyond 5 MB."""


class ControlEnd(EventLoopObject):  # type: ignore[misc]  # signal-slot-mp has no types
    """One end of the control connection; it lives in the process that polls it."""

    def __init__(self, name: str, serial: bool):
        super().__init__(EventLoop(f"{name}-loop", serial_mode=serial), name)
        self.received: list[Any] = []

    @signal  # type: ignore[untyped-decorator]  # as above
    def message(self) -> None:
        """Carries one message dataclass to the other end."""

    def on_message(self, message: Any) -> None:
        """Handler of the other end's signal."""
        self.received.append(message)

    def send(self, message: Any) -> None:
        """Emits the message; a queue that no process empties is an error and not a lost signal."""
        for queue in self.receiver_queues.values():
            if hasattr(queue, "data_size") and queue.data_size() > CONTROL_QUEUE_LIMIT:
                raise InternalError(f"{self.object_id} cannot send {message}: the queue of the other end is full.")
        self.message.emit(message)

    def poll(self) -> list[Any]:
        """The messages that have arrived, in order; never blocks."""
        loop = self.event_loop
        if not loop.timers:
            loop.default_timer.start()  # process_events needs one timer to compute its timeout
        while not loop.signal_queue.empty():
            loop.process_events()
        messages, self.received = self.received, []
        return messages


def connect(supervisor: ControlEnd, learner: ControlEnd) -> None:
    """Before the processes start, as signal-slot-mp demands."""
    supervisor.message.connect(learner.on_message)
