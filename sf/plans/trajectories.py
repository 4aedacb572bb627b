"""The batch of a fragment: what its slot and its policies have, postprocessed where it was sampled."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from sf.plans.agents import GroupOfAgents
from sf.plans.episode import AgentSteps, PlanEpisode, Postprocessing
from sf.plans.policy import PlanPolicy, PolicyColumns, expect_columns
from sf.plans.postprocessing import Cuts
from sf.plans.sample_batch import Batch, MultiAgentBatch, SampleBatch
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
NO_INFO: Mapping[str, Any] = MappingProxyType({})
"""Workers do not keep what environments report beside the observation; each row has this mapping."""


class Steps(NamedTuple):
    """All steps of a fragment."""

    owners: Array
    """[T, rows] number of the policy that acted, -1 where nothing counts."""
    columns: list[dict[str, Array]]
    """[T, rows, ...] of each policy; those that it gives itself hold anything in rows of others."""


class Trajectories:
    """Constants of all fragments of a worker."""

    def __init__(self, slots: Slots, leaf: str, columns: Mapping[str, PolicyColumns]) -> None:
        """Has seen no episode.

        Args:
            slots: where fragments lie.
            leaf: name of the observation.
            columns: that each policy has given for a batch of zeros.
        """
        self._slots, self._leaf, self._columns, self._names = slots, leaf, columns, list(columns)
        self._topology = slots.topology
        self._episodes: dict[int, PlanEpisode] = {}
        """Those that may go on."""

    def batch(
        self, slot: int, policies: Sequence[PlanPolicy] | None, agents: GroupOfAgents, finals: Finals, compute: Compute
    ) -> Batch:
        """All steps of a fragment; copies.

        Args:
            slot: of the fragment.
            policies: that have acted, and postprocess their trajectories; None for nothing that postprocesses.
            agents: of its group, as they are after it.
            finals: see there.
            compute: what a policy says of some rows.

        Raises:
            UsageError: postprocessing does what it must not.
        """
        is_there = self._slots.policy_id[slot] != NO_POLICY
        common = self._common(slot, agents, finals)
        own = [agents.said_by(number, name) for number, name in enumerate(self._names)]
        steps = Steps(np.where(is_there, agents.owners, -1), [common | each for each in own])
        after = {} if policies is None else self._postprocessed(slot, policies, agents, finals, compute, steps)
        batches = {
            name: after[number] if number in after else _in_order(steps.columns[number], own_steps)
            for number, name in enumerate(self._names)
            if (own_steps := steps.owners == number).any()
        }
        count = int(is_there.sum())
        if self._topology.agents_per_env > 1:
            count = len(np.unique(np.stack([common["eps_id"][is_there], common["t"][is_there]]), axis=1).T)
        return MultiAgentBatch.wrap_as_needed(batches, count, self._names)

    def _common(self, slot: int, agents: GroupOfAgents, finals: Finals) -> dict[str, Array]:
        """Columns that all policies have, [T, rows, ...] each."""
        slots = self._slots
        observations = slots.observations[self._leaf][slot]
        following = observations[1:]
        if finals is not None:
            following = following.copy()
            following[finals[:2]] = finals[2]
        terminated, truncated = slots.terminated[slot], slots.truncated[slot]
        return {
            "obs": observations[:-1], "new_obs": following, "actions": slots.actions[slot],
            "rewards": slots.rewards[slot], "dones": terminated | truncated, "terminateds": terminated,
            "truncateds": truncated, "policy_version": slots.policy_version[slot], **agents.history,
        }  # fmt: skip

    def _postprocessed(
        self,
        slot: int,
        policies: Sequence[PlanPolicy],
        agents: GroupOfAgents,
        finals: Finals,
        compute: Compute,
        steps: Steps,
    ) -> dict[int, SampleBatch]:
        """Batches of the policies that postprocess: at once, or one episode of one agent after the other."""
        found, followed = {}, {}
        for number, policy in enumerate(policies):
            own = steps.owners == number
            if not policy.postprocesses or not own.any():
                continue
            rows = np.flatnonzero(own.any(0))
            after = self._after(slot, number, rows, agents, compute)
            cuts = self._cuts(number, policy, finals, compute, steps)
            added = self._at_once(number, policy, after, cuts, steps)
            if added is None:
                followed[number] = self._followed(rows, after, cuts)
            else:
                found[number] = _in_order(steps.columns[number] | added, own)
        return found | (self._one_by_one(policies, followed, steps) if followed else {})

    def _after(self, slot: int, policy: int, rows: Array, agents: GroupOfAgents, compute: Compute) -> dict[str, Array]:
        """Extra columns for the observations after the last step."""
        last = self._slots.observations[self._leaf][slot, self._topology.rollout][rows]
        states = [state[rows] for state in agents.states[policy]]
        return compute(policy, last, states, agents.last_actions[rows], agents.last_rewards[rows])[2]

    def _cuts(self, number: int, policy: PlanPolicy, finals: Finals, compute: Compute, steps: Steps) -> Cuts:
        """Steps that a time limit has ended while this policy acted."""
        if finals is None:
            return NO_CUTS
        is_own = steps.owners[finals[0], finals[1]] == number
        times, rows, final = (each[is_own] for each in finals)
        if not len(times):
            return NO_CUTS
        columns = {name: column[times, rows] for name, column in steps.columns[number].items()}
        states = [columns[f"state_out_{i}"] for i in range(len(policy.get_initial_state()))]
        return Cuts(times, rows, compute(number, final, states, columns["actions"], columns["rewards"])[2])

    def _followed(self, rows: Array, after: Mapping[str, Array], cuts: Cuts) -> Followed:
        found, last = {}, np.full(len(rows), self._topology.rollout - 1)
        for times, places, columns in ((last, rows, after), cuts):
            for index, place in enumerate(zip(times.tolist(), places.tolist(), strict=True)):
                found[place] = {name: column[index] for name, column in columns.items()}
        return found

    def _at_once(
        self, number: int, policy: PlanPolicy, after: Mapping[str, Array], cuts: Cuts, steps: Steps
    ) -> dict[str, Array] | None:
        """What all trajectories get together, if the policy can do that and no other one has acted."""
        at_once = getattr(policy, "postprocess_fragment", None)
        if at_once is None or len(self._names) > 1:
            return None
        added: dict[str, Array] | None = at_once(steps.columns[number], after, cuts)
        if added is not None:
            gave = steps.columns[number].keys() | added.keys() | {"infos"}
            name = self._names[number]
            expect_columns(name, gave, self._columns[name].after, "Postprocessing")
        return added

    def _one_by_one(
        self, policies: Sequence[PlanPolicy], followed: Mapping[int, Followed], steps: Steps
    ) -> dict[int, SampleBatch]:
        """The agents of an episode see the steps of each other, before they were postprocessed."""
        has_others = self._topology.agents_per_env > 1
        episodes: dict[int, list[AgentSteps]] = {}
        for number in range(len(policies)) if has_others else followed:
            for part in self._parts(number, followed.get(number, {}), steps):
                episodes.setdefault(int(dict.__getitem__(part.steps, "eps_id")[0]), []).append(part)
        found: dict[str, list[SampleBatch]] = {self._names[number]: [] for number in followed}
        postprocessing = Postprocessing(dict(zip(self._names, policies, strict=True)), self._columns)
        before, self._episodes = self._episodes, {}
        for episode_id, parts in episodes.items():
            episode = self._episodes[episode_id] = before.get(episode_id) or PlanEpisode(episode_id)
            for part in parts:
                episode.add(*part)
            for part in parts:
                if part.policy in found:
                    found[part.policy].append(postprocessing.of(part, parts, episode).steps)
        return {number: SampleBatch.concat_samples(found[self._names[number]]) for number in followed}

    def _parts(self, number: int, followed: Followed, steps: Steps) -> list[AgentSteps]:
        parts, columns, is_own = [], steps.columns[number], steps.owners == number
        for row in np.flatnonzero(is_own.any(0)).tolist():
            ends = np.flatnonzero(columns["dones"][:, row]) + 1
            for start, stop in itertools.pairwise([0, *ends.tolist(), len(is_own)]):
                own = start + np.flatnonzero(is_own[start:stop, row])
                if len(own):
                    batch = _batch({name: column[own, row] for name, column in columns.items()})
                    batch.after = followed.get((stop - 1, row), {})
                    parts.append(AgentSteps(row % self._topology.agents_per_env, self._names[number], batch))
        return parts


def _in_order(columns: Mapping[str, Array], is_own: Array) -> SampleBatch:
    """The steps of a policy, one row of environments after the other, each in the order of time; copies."""
    if is_own.all():
        flat = {name: np.swapaxes(each, 0, 1).copy().reshape(-1, *each.shape[2:]) for name, each in columns.items()}
    else:
        rows, times = is_own.T.nonzero()
        flat = {name: each[times, rows] for name, each in columns.items()}
    return _batch(flat)


def _batch(columns: Mapping[str, Array]) -> SampleBatch:
    batch = SampleBatch(columns)
    batch["infos"] = np.full(batch.count, NO_INFO, object)
    return batch
