"""A policy that plays as snapshots of another one: its learner trains nothing and changes who it is when told."""

from __future__ import annotations

from pathlib import Path

from sf.errors import CheckpointError
from sf.learner.frozen import FrozenLearner
from sf.learner.worker import Learner
from sf.shared.messages import Order, PlayAs, Seated


class SeatLearner(FrozenLearner):
    """Publishes one snapshot after the other. Each raises the version by one, so that games tell who has played."""

    def _resume(self) -> int:
        """Begins as a policy that has learned nothing, or as it was; the first order comes soon."""
        return Learner._resume(self)

    def _carry_out(self, order: Order) -> None:
        if not isinstance(order, PlayAs):
            super()._carry_out(order)
            return
        error = ""
        try:
            self._take(Path(order.path))
            self._show()
        except CheckpointError as failure:
            error = str(failure)
        self.tell(Seated(self.policy_id, order.snapshot, self.update.version, error))
        self.links.supervisor.ring()

    def _show(self) -> None:
        """Publishes the weights as the next version."""
        self.update.version += 1
        self.weights.publish(self.update.version, self._write_weights)
        self.record["version"] = self.update.version
        self.record.publish()
        for bell in self.links.inference:
            bell.ring()
