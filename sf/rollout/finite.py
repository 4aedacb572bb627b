"""NaN, infinity and numbers too large in what the environments of a group return: refused, or dropped on request."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sf.console import Console
from sf.envs.finiteness import LARGEST, counts_as_infinite, with_place
from sf.errors import EnvError
from sf.shared.arena import Array
from sf.shared.records import Record
from sf.shared.slot_fields import NO_POLICY
from sf.shared.slots import Slots
from sf.spaces import EnvInfo

LARGEST_SQUARE = LARGEST**2
MOST_SPOILED = 30_000
"""Steps in a row without a reward that is finite, more than those of the longest usual episodes."""


class FiniteCheck:
    """Looks at whole steps of a group in shared memory, where one product tells whether all of it is finite."""

    def __init__(
        self,
        group: int,
        info: EnvInfo,
        slots: Slots,
        record: Record,
        drop: bool,
        restart: Callable[[int, int, Array], None],
    ):
        """Nothing has been dropped.

        Args:
            group: index of the group.
            info: of its environments.
            slots: where it writes.
            record: counts what is dropped.
            drop: take the steps that led to such a number out of the training instead of raising an error.
            restart: called with slot, step and rows that need a new episode instead of the one that cannot go on.
        """
        self.group, self.info, self.slots, self.record = group, info, slots, record
        self.drop, self.restart = drop, restart
        self.agents_per_env = slots.topology.agents_per_env
        self.float_observations = [(key, x) for key, x in slots.observations.items() if x.dtype.kind == "f"]
        self.console = Console()
        self._spoiled_steps = 0
        """In a row, in which no reward was finite."""

    def check_rewards(self, slot: int, t: int, received: Array) -> None:
        """Before anything is clipped, which would make an infinity look like a reward.

        Args:
            slot, t: the step.
            received: [rows] float64, the same as the environments gave them; dropped ones become 0.
        """
        rewards = self.slots.rewards[slot, t]
        if _sum_of_squares(rewards) < LARGEST_SQUARE:
            self._spoiled_steps = 0
            return
        bad = self._drop_or_refuse("reward", slot, t + 1, rewards)
        self._spoiled_steps = self._spoiled_steps + 1 if len(bad) == len(rewards) else 0
        if self._spoiled_steps == MOST_SPOILED:
            raise EnvError(
                f"{self._complaint('reward', rewards, bad[0])} So were all rewards of this group for {MOST_SPOILED:,} "
                "steps, and nothing is left to learn from. Correct the environment."
            )
        rewards[bad] = received[bad] = 0

    def check_observations(self, slot: int, t: int) -> None:
        for key, array in self.float_observations:
            if not _sum_of_squares(array[slot, t]) < LARGEST_SQUARE:
                bad = self._drop_or_refuse(named("observation", key), slot, t, array[slot, t])
                self.restart(slot, t, bad)

    def check_final_observations(self, slot: int, t: int) -> None:
        rows = self.slots.has_final_observation[self.group]
        for key, array in self.slots.final_observations.items():
            if array.dtype.kind == "f" and not (np.abs(array[self.group][rows]) < LARGEST).all():
                seen = np.where(rows.reshape(-1, *(1,) * (array.ndim - 2)), array[self.group], 0)
                # A step that no policy owns any more has no final observation that one would value.
                self._drop_or_refuse(named("final observation", key), slot, t + 1, seen)

    def refuse_first(self, slot: int, t: int, agents: slice) -> None:
        """Raises an error if the first values of an episode of these rows are not finite: dropping would never end."""
        for key, array in self.float_observations:
            if not (np.abs(array[slot, t, agents]) < LARGEST).all():
                complaint = self._complaint(named("observation", key), array[slot, t], agents.start)
                raise EnvError(f"{complaint} It is the first one of an episode, so that there is nothing to drop.")

    def _drop_or_refuse(self, what: str, slot: int, stop: int, values: Array) -> Array:
        """Takes the first `stop` steps of rows out of the training whose values [rows, ...] are not finite.

        Returns:
            These rows.

        Raises:
            EnvError: that is not wanted.
        """
        bad = np.flatnonzero(~(np.abs(values) < LARGEST).reshape(len(values), -1).all(axis=1))
        if not len(bad):  # only the sum of their squares is not
            return bad
        complaint = self._complaint(what, values, bad[0])
        if not self.drop:
            raise EnvError(
                f"{complaint} Rewards and observations must be finite; correct or clip them in the environment, or "
                "drop what leads to them with --on_nonfinite=drop."
            )
        self.slots.policy_id[slot, :stop, bad] = NO_POLICY
        before, total = int(self.record["dropped"]), int(self.record["dropped"]) + len(bad)
        if before.bit_length() < total.bit_length():  # ever more rarely
            self.console.line(f"Warning: {complaint} Its trajectory is dropped; {total} so far in this worker.")
        self.record["dropped"] = total
        return bad

    def _complaint(self, what: str, values: Array, row: int) -> str:
        said = f"{with_place(np.asarray(values[row]))}{counts_as_infinite(values[row])}"
        return f"{self.place(row)}, returned a non-finite {what}: {said}."

    def place(self, row: int) -> str:
        """Where a row is, for messages."""
        agent = self.info.agent(row)
        of_agent = f", {agent}" if agent else ""
        return f"{self.info.env_id}, environment {row // self.agents_per_env} of group {self.group}{of_agent}"


def _sum_of_squares(values: Array) -> float:
    """Not less than the square of any of them, or nan; a product takes a third of the time of a sum."""
    return float(np.vdot(values, values))


def named(what: str, key: str) -> str:
    """The name of a leaf in a message."""
    return what if key == "obs" else f"{what}[{key!r}]"
