"""Postprocesses the trajectories of a fragment in the worker that has filled it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sf.plans.agents import GroupOfAgents
from sf.plans.columns import (
    NOT_SENT,
    OF_THE_SLOT,
    POLICY,
    PREFIX,
    acted_columns,
    columns_for,
    expect_columns,
    own_name,
    store,
)  # fmt: skip
from sf.plans.episode import PlanEpisode, postprocessed
from sf.plans.policy import PlanPolicy
from sf.plans.postprocessing import Cuts
from sf.plans.program import Column
from sf.plans.sample_batch import SampleBatch
from sf.shared.arena import Array
from sf.shared.slot_fields import NO_POLICY
from sf.shared.slots import Slots

Followed = dict[tuple[int, int], dict[str, Any]]
"""By step and row: the extra columns for the observation after it."""
Compute = Callable[[int, Array, list[Array], Array, Array], tuple[Array, list[Array], dict[str, Array]]]
"""From the number of a policy, observations, states, last actions and last rewards to actions, states and columns."""
Finals = tuple[Array, ...] | None
"""Steps that a time limit has ended: times, rows, and their last observations; None for none."""
NO_CUTS = Cuts(np.zeros(0, np.int64), np.zeros(0, np.int64), {})


class Part(NamedTuple):
    """Steps of one agent in one episode."""

    policy: int
    row: int
    steps: Array
    batch: SampleBatch


class Trajectories:
    """Constants of all fragments of a worker."""

    def __init__(self, slots: Slots, leaf: str, columns: Mapping[str, Column], names: Sequence[str]) -> None:
        """Has seen no episode.

        Args:
            slots: where fragments lie.
            leaf: name of the observation.
            columns: of fragments.
            names: of the policies.
        """
        self._slots, self._leaf, self._columns, self._names = slots, leaf, columns, names
        self._topology = slots.topology
        self._episodes: dict[int, PlanEpisode] = {}
        """Those that may go on."""

    def postprocess(
        self, slot: int, policies: Sequence[PlanPolicy], agents: GroupOfAgents, finals: Finals, compute: Compute
    ) -> None:
        """All trajectories of a fragment: at once, or one episode of one agent after the other.

        Args:
            slot: of the fragment.
            policies: that have acted.
            agents: of its group, as they are after it.
            finals: see there.
            compute: what a policy says of some rows.
        """
        followed: dict[int, Followed] = {}
        for number, policy in enumerate(policies):
            if policy.postprocesses and len(rows := self._rows_of(number, slot)):
                after = self._after(slot, number, rows, agents, compute)
                cuts = self._cuts(slot, number, policy, finals, compute)
                if not self._at_once(slot, number, policy, after, cuts):
                    followed[number] = self._followed(rows, after, cuts)
        if followed:
            self._one_by_one(slot, policies, followed)

    def _rows_of(self, policy: int, slot: int) -> Array:
        """[n] the rows in which a policy has acted in a fragment."""
        return np.flatnonzero((self._slots[PREFIX + POLICY][slot] == policy).any(0))

    def _after(self, slot: int, policy: int, rows: Array, agents: GroupOfAgents, compute: Compute) -> dict[str, Array]:
        """Extra columns for the observations after the last step."""
        last = self._slots.observations[self._leaf][slot, self._topology.rollout][rows]
        states = [state[rows] for state in agents.states[policy]]
        return compute(policy, last, states, agents.last_actions[rows], agents.last_rewards[rows])[2]

    def _cuts(self, slot: int, number: int, policy: PlanPolicy, finals: Finals, compute: Compute) -> Cuts:
        """Steps that a time limit has ended while this policy acted."""
        slots = self._slots
        if finals is None:
            return NO_CUTS
        is_own = slots[PREFIX + POLICY][slot, finals[0], finals[1]] == number
        times, rows, final = (each[is_own] for each in finals)
        if not len(times):
            return NO_CUTS
        places = slot, times, rows
        names = [own_name(number, f"state_out_{i}") for i in range(len(policy.get_initial_state()))]
        states = [slots[PREFIX + name][places] for name in names]
        return Cuts(times, rows, compute(number, final, states, slots.actions[places], slots.rewards[places])[2])

    def _followed(self, rows: Array, after: Mapping[str, Array], cuts: Cuts) -> Followed:
        found, last = {}, np.full(len(rows), self._topology.rollout - 1)
        for times, places, columns in ((last, rows, after), cuts):
            for index, place in enumerate(zip(times.tolist(), places.tolist(), strict=True)):
                found[place] = {name: column[index] for name, column in columns.items()}
        return found

    def _at_once(self, slot: int, number: int, policy: PlanPolicy, after: Mapping[str, Array], cuts: Cuts) -> bool:
        """All trajectories of a fragment together, if the policy can do that and no other one has acted."""
        at_once = getattr(policy, "postprocess_fragment", None)
        if at_once is None or len(self._names) > 1:
            return False
        columns = columns_for(number, acted_columns(self._columns))
        before = {name: self._slots[PREFIX + field][slot] for name, field in columns.items()}
        before |= {"terminateds": self._slots.terminated[slot], "truncateds": self._slots.truncated[slot]}
        added = at_once(before, after, cuts)
        if added is None:
            return False
        given = columns_for(number, self._columns)
        expect_columns(self._names[number], columns.keys() | added.keys(), given.keys(), "Postprocessing")
        for name, values in added.items():
            self._store(number, name, given[name], values, slot)
        return True

    def _one_by_one(self, slot: int, policies: Sequence[PlanPolicy], followed: Mapping[int, Followed]) -> None:
        """The agents of an episode see the steps of each other, before they were postprocessed."""
        has_others = self._topology.agents_per_env > 1
        episodes: dict[int, list[Part]] = {}
        for number in range(len(policies)) if has_others else followed:
            for part in self._parts(slot, number, followed.get(number, {})):
                episodes.setdefault(int(dict.__getitem__(part.batch, "eps_id")[0]), []).append(part)
        before, self._episodes = self._episodes, {}
        for episode_id, parts in episodes.items():
            episode = self._episodes[episode_id] = before.get(episode_id) or PlanEpisode(episode_id)
            for part in parts:
                episode.add(self._agent_of(part), self._names[part.policy], part.batch)
            agents = {self._agent_of(part): (policies[part.policy], part.batch) for part in parts}
            for part in parts:
                if part.policy in followed:
                    self._write(slot, part, postprocessed(agents, self._agent_of(part), episode))

    def _agent_of(self, part: Part) -> int:
        return part.row % self._topology.agents_per_env

    def _parts(self, slot: int, policy: int, followed: Followed) -> list[Part]:
        parts, length = [], self._topology.rollout
        is_own = self._slots[PREFIX + POLICY][slot] == policy
        is_own &= self._slots.policy_id[slot] != NO_POLICY
        for row in np.flatnonzero(is_own.any(0)).tolist():
            ends = np.flatnonzero(self._slots[PREFIX + "dones"][slot, :, row]) + 1
            for start, stop in itertools.pairwise([0, *ends.tolist(), length]):
                steps = start + np.flatnonzero(is_own[start:stop, row])
                if len(steps):
                    batch = self._read(slot, policy, row, steps)
                    batch.after = followed.get((stop - 1, row), {})
                    parts.append(Part(policy, row, steps, batch))
        return parts

    def _read(self, slot: int, policy: int, row: int, steps: Array) -> SampleBatch:
        slots, places = self._slots, (slot, steps, row)
        found = {"obs": slots.observations[self._leaf][places], "actions": slots.actions[places]}
        found |= {"terminateds": slots.terminated[places], "truncateds": slots.truncated[places]}
        for name, field in columns_for(policy, acted_columns(self._columns)).items():
            found[name] = self._columns[field].read(slots[PREFIX + field][places])
        found["infos"] = np.array([{} for _ in steps])
        return SampleBatch(found)

    def _write(self, slot: int, part: Part, after: SampleBatch) -> None:
        columns, name = columns_for(part.policy, self._columns), self._names[part.policy]
        expect_columns(name, after.keys() - OF_THE_SLOT - NOT_SENT, columns.keys(), "Postprocessing")
        for column, field in columns.items():  # also what was changed in place
            self._store(part.policy, column, field, dict.__getitem__(after, column), (slot, part.steps, part.row))

    def _store(self, policy: int, column: str, field: str, values: Any, places: Any) -> None:
        store(values, self._slots[PREFIX + field], places, self._names[policy], column, self._columns[field])
