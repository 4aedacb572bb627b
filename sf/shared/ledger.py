"""The account of all slots that were handed out.

    allocated = learned + discarded, by reason + free + in flight

Each side is counted by other processes. Rollout workers count the slots they are handed, and learners those they have
released. The supervisor and the rollout workers count discarded slots, and the states of the slots say which are in
flight. A run that has ended has nothing in flight. Trajectories that were being collected are free again, and those
that no learner has trained on are discarded. Discarded are also slots that a learner has taken without an optimizer
step: all their transitions were too old, or the gradient was no number. With several policies these count as learned,
because other learners may have made a step.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sf.shared.slot_fields import Discard
from sf.shared.slots import Slots, SlotState


@dataclass(frozen=True)
class Ledger:
    """Hand-outs of slots since the start of the run, each one trajectory of every environment of a group."""

    allocated: int
    learned: int
    discarded: dict[str, int]
    free: int
    """Given back before they were complete, because the run ended."""
    in_flight: int

    @classmethod
    def of(cls, slots: Slots, has_ended: bool) -> Ledger:
        """Counts; while the run goes on the counts are of slightly different moments."""
        states = [slots.state(slot) for slot in range(slots.topology.num_slots)]
        filling = states.count(SlotState.FILLING)
        complete = states.count(SlotState.FULL) + states.count(SlotState.TRAINING)
        discarded = {why.name.lower(): int(slots.discarded[:, why].sum()) for why in Discard}
        unused = int(slots.unused.sum()) if slots.topology.num_policies == 1 else 0
        discarded["unused"] = unused
        if has_ended:
            discarded["not_learned"] = complete
        return cls(
            allocated=int(slots.filling.sum()),
            learned=int(slots.released.min(axis=1).sum()) - unused,
            discarded=discarded,
            free=filling if has_ended else 0,
            in_flight=0 if has_ended else filling + complete,
        )

    @property
    def missing(self) -> int:
        """Hand-outs that no counter accounts for; anything but 0 is a bug of ours."""
        return self.allocated - self.learned - sum(self.discarded.values()) - self.free - self.in_flight

    @property
    def is_balanced(self) -> bool:
        return self.missing == 0

    def to_json(self) -> dict[str, Any]:
        """For summary.json."""
        return asdict(self)

    def scalars(self) -> dict[str, float]:
        """For the curves: all sides, and discarded slots by reason."""
        sides = {"allocated": self.allocated, "learned": self.learned, "free": self.free, "in_flight": self.in_flight}
        counts = {f"slots/{side}": count for side, count in sides.items()}
        counts |= {f"faults/discarded_{why}": count for why, count in self.discarded.items()}
        return {tag: float(count) for tag, count in counts.items()}

    def line(self) -> str:
        """For the console."""
        reasons = [f"{count} {why.replace('_', ' ')}" for why, count in self.discarded.items() if count]
        parts = [f"{self.learned} learned", f"{sum(self.discarded.values())} discarded", f"{self.free} free"]
        if reasons:
            parts[1] += f" ({', '.join(reasons)})"
        if self.in_flight:
            parts.append(f"{self.in_flight} in flight")
        return f"Slots: {self.allocated} allocated = {' + '.join(parts)}"
