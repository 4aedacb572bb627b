"""Requests for actions, and their answers: words that a group and an inference worker share."""

from __future__ import annotations

from sf.shared.arena import Arena
from sf.shared.order import OPERATIONS, PLAIN
from sf.shared.topology import Topology


class Requests:
    """The words through which groups ask and inference workers answer."""

    def __init__(self, topology: Topology, arena: Arena):
        self.topology = topology
        # Of a group and an inference worker in one process each sees the stores of the other in their order.
        operations = PLAIN if topology.workers_act else OPERATIONS
        self.publish, self.observe = operations.publish, operations.observe
        self.request, self.answered = arena["request"], arena["answered"]
        self.slot, self.step = arena["request_slot"], arena["request_step"]
        # Views of plain memory take and give one number at a fraction of the price of an array.
        self._request, self._slot, self._step = self.request.data, self.slot.data, self.step.data
        self._answered = [column.data for column in self.answered.T]

    def ask(self, group: int, slot: int, step: int, after: int = 1) -> None:
        """By the rollout worker: actions for `step` of `slot`, or the values of its last observation for step T.

        The first request of a worker comes two after the last one of its predecessor, which may still be in work. The
        late answer writes another half of the recurrent state than the one that the new request reads.
        """
        self._slot[group], self._step[group] = slot, step
        self.publish(self._request, group, self._request[group] + after)

    def next_memory(self, group: int) -> int:
        """The half of the recurrent state that the next request takes, if it is the next one by number."""
        return (self._request[group] + 1) % 2

    def is_answered(self, group: int) -> bool:
        request = self._request[group]
        for answered in self._answered:
            if answered[group] != request:
                return False
            self.observe(answered, group)
        return True
