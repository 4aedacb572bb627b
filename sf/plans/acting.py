"""The part of a rollout process that acts with the policies of a plan, in the place of an inference worker.

In: requests of the groups of this process, published weights. Out: actions, written into the
slot of the group. Weights are taken between two fragments, so that one policy version acts in each of them. At the end
of a fragment its trajectories are postprocessed, and its batch, or what orders make of it, is put into shared memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sf.config import Config
from sf.errors import SfError, UsageError
from sf.inference.bells import InferenceBells
from sf.inference.small_worker import ActingBeside
from sf.plans.agents import GroupOfAgents
from sf.plans.answers import answer_of, checked_actions, copies_of
from sf.plans.blame import blamed_on_plan
from sf.plans.episode import Postprocessing, TeamEpisode, WholeEpisodes
from sf.plans.local_iterator import NOT_READY, NotReady, Transform, transformed
from sf.plans.mailbox import ORDERS, Mailbox, Parcels, PlanAnswer, outcome_of
from sf.plans.numpy_acting import act_in_numpy, network_in_numpy
from sf.plans.policy import PolicyColumns, expect_columns
from sf.plans.sample_batch import Batch
from sf.plans.spaces import observation_leaf
from sf.plans.trajectories import Finals, Trajectories
from sf.plans.worker import WHOLE, PlanWorker
from sf.shared.arena import Array
from sf.shared.context import RunContext
from sf.shared.slot_fields import NO_POLICY
from sf.shared.weights import NOTHING_PUBLISHED

ALL = slice(None)
EPISODES_OF_A_WORKER, EPISODES_OF_AN_INCARNATION, EPISODES_OF_A_GROUP = 1 << 48, 1 << 40, 1 << 36
"""Numbers of episodes that no other worker, successor or group uses."""


class PlanActor(ActingBeside):
    """Acts with the policies of a plan, as `SmallInference` does with networks in training."""

    def __init__(
        self,
        context: RunContext,
        index: int,
        config: Config,
        weights: Mailbox,
        bells: InferenceBells,
        worker: PlanWorker | bytes,
        columns: Mapping[str, PolicyColumns],
        orders: Mailbox,
        calls: Mailbox,
        parcels: Parcels,
        incarnation: int = 0,
    ) -> None:
        """Builds the policies, whose weights come with the first publication, or takes those of a worker.

        Args:
            context: of all roles.
            index: of the worker.
            config: of the run, resolved.
            weights: of all policies, published by the driver.
            bells: that it hears or rings.
            worker: of the same process, whose policies act; its program, packed, in a process of its own.
            columns: by policy, what each gives for a batch of zeros.
            orders: what to do with each fragment.
            calls: what to do once.
            parcels: for what it makes of fragments.
            incarnation: how many workers have had this place before.
        """
        import torch

        self._has_own_policies = isinstance(worker, bytes)
        if self._has_own_policies:
            torch.set_num_threads(1)
        torch.manual_seed(int(np.random.SeedSequence([context.seed, index, incarnation]).generate_state(1)[0]))
        super().__init__(context, index, bells)
        self.weights, self.version = weights, NOTHING_PUBLISHED
        self.index = index
        self.worker = PlanWorker.elsewhere(worker, index, context.seed) if isinstance(worker, bytes) else worker
        self.program, self.names = self.worker.program, list(self.worker.program.policies)
        self._random = np.random.default_rng([context.seed, index, incarnation])
        self._networks: list[tuple[Any, Any]] = []
        """Policies, and those of their networks that act in NumPy."""
        self._look_at_policies()
        self._orders, self._calls, self._parcels = orders, calls, parcels
        self._make_items = applied(())
        """What the present orders make of a batch."""
        self._orders_done = self._calls_done = NOTHING_PUBLISHED
        self._is_told_of_weights = True
        self._num_steps = 0
        """Optimizer steps that had led to the weights."""
        self._acted = [columns[name].acted for name in self.names]
        self.leaf = observation_leaf(context.info)
        self._trajectories = Trajectories(self.slots, self.leaf, columns)
        agents, least = self.topology.agents_per_env, self.topology.rollout * self.topology.envs_per_group
        self._columns = columns
        self._whole = WholeEpisodes(agents, least) if self.program.settings["batch_mode"] == WHOLE else None
        episode = (index + 1) * EPISODES_OF_A_WORKER + incarnation * EPISODES_OF_AN_INCARNATION
        actions = self.slots.actions[0, 0]
        self._agents = {
            group: GroupOfAgents(self.topology, actions, episode + number * EPISODES_OF_A_GROUP)
            for number, group in enumerate(self.groups)
        }
        self._finals: list[tuple[Array, ...]] = []
        """Steps of the present fragment that a time limit has ended: times, rows, and their last observations."""
        for group in self.groups:  # a predecessor may have died before it answered
            self.requests.answered[group] = self.requests.request[group]

    def step(self) -> bool:
        """Serves every group that waits; False if none does."""
        self._look_at_mail()
        try:
            return super().step()
        except SfError:
            raise
        except Exception as error:
            if (told := blamed_on_plan(error, f"In worker {self.index} the plan")) is None:
                raise
            raise told from error

    def close(self) -> None:
        """Closes what functions have sampled from."""
        if self._has_own_policies:
            self.worker.stop()

    def _refresh_weights(self) -> bool:
        """See `ActingBeside`: takes them between two fragments, so here it only looks whether there are any."""
        return self.weights.number != NOTHING_PUBLISHED

    def _serve(self, group: int) -> None:
        request = self.requests.observe(self._request, group)
        self._go_on(group, self._slot[group], self._step[group])
        self.requests.publish(self._answered[0], group, request)
        self.record["requests"] += 1
        self.record["forwards"] += 1

    def _go_on(self, group: int, slot: int, t: int) -> None:
        agents = self._agents[group]
        if t == 0:
            self.slots[ORDERS][slot] = self._orders_done
            if self._is_told_of_weights:
                self._take_weights()
            self._look_at_policies()
            agents.begin_fragment(self._policies, self._policy_of)
            self._finals = []
        else:
            self._note_step(group, slot, t - 1)
        if t == self.topology.rollout:
            self._finish(group, slot)
        else:
            self._act(group, slot, t)

    def _look_at_policies(self) -> None:
        """Before each fragment, because functions of the plan may have changed or replaced them."""
        self._policies = [self.worker.policy_map[name] for name in self.names]
        found = [(policy, network_in_numpy(policy)) for policy in self._policies]
        if found != self._networks:  # a function that acts takes as long to make as two steps
            self._networks = found
            self._in_numpy = [act_in_numpy(policy, self._random) for policy in self._policies]

    def _look_at_mail(self) -> None:
        """Takes new orders, and does what it is called for."""
        if self._orders.number != self._orders_done:
            self._orders_done, orders = self._orders.read()
            self._make_items = applied(orders(self.worker) if orders else ())
        if self._calls.number != self._calls_done:
            self._calls_done, function = self._calls.read()
            self._is_told_of_weights = True
            if function is not None:
                self._take_weights()
                self.tell(PlanAnswer((self.index, self._calls_done), outcome_of(function, self.worker)))

    def _policy_of(self, agent: int) -> int:
        """The number of the policy of an agent, for one episode.

        Raises:
            UsageError: the mapping names another one.
        """
        name = self.program.policy_of(agent)
        if name not in self.names:
            raise UsageError(
                f"policy_mapping_fn returned {name!r} for agent {agent}, but the policies are {', '.join(self.names)}."
            )
        return self.names.index(name)

    def _take_weights(self) -> None:
        newest, self._is_told_of_weights = self.weights.number, False
        if newest in (self.version, NOTHING_PUBLISHED):
            return
        self.version, published = self.weights.read()
        self._num_steps = published.steps
        if self._has_own_policies:
            self.worker.set_weights(published.weights, {"timestep": published.timestep})
            self.worker.num_steps = published.steps
        self.record["refreshes"] += 1
        self.record["weights_version"] = self.version
        self.record.lap("weights")

    def _act(self, group: int, slot: int, t: int) -> None:
        """Actions, states and extra columns of all rows, each by the policy of its agent."""
        slots, agents = self.slots, self._agents[group]
        if self.topology.agents_per_env > 1:
            agents.expect_those(slots.policy_id[slot, t] != NO_POLICY)
        observations = slots.observations[self.leaf][slot, t]
        agents.note_act(t)
        for number in range(len(self.names)):
            rows = agents.rows_of(number) if len(self.names) > 1 else ALL
            if not isinstance(rows, slice) and not len(rows):
                continue
            before = [state[rows].copy() for state in agents.states[number]]
            previous = agents.last_actions[rows], agents.last_rewards[rows]
            seen = observations[rows]
            actions, following, extra = self._compute(number, seen, before, *previous)
            if self._in_numpy[number] is None:
                actions = checked_actions(actions, self.names[number], len(seen), self.info.action)
            slots.actions[slot, t, rows] = actions
            columns = {f"state_in_{i}": state for i, state in enumerate(before)} | extra
            columns |= {f"state_out_{i}": np.asarray(after) for i, after in enumerate(following)}
            if columns.keys() != self._acted[number]:
                expect_columns(self.names[number], columns.keys(), self._acted[number], "Acting")
            if self._in_numpy[number] is None:
                columns = copies_of(columns, self.names[number], len(seen))
            agents.note_said(number, t, rows, columns)
            agents.keep_states(number, rows, following)
        slots.policy_version[slot, t] = self._num_steps
        agents.last_actions[:] = slots.actions[slot, t]
        self.record["samples"] += self.topology.rows

    def _compute(self, number: int, observations: Array, states: list[Array], actions: Array, rewards: Array) -> Any:
        """What a policy says of some rows: actions, states and extra columns."""
        if (act := self._in_numpy[number]) is not None:
            chosen, extra = act(observations)
            return chosen, [], extra
        found = self._policies[number].compute_actions(observations, states, actions, rewards, None, None)
        return answer_of(self.names[number], found)

    def _note_step(self, group: int, slot: int, t: int) -> None:
        """The outcome of step t, which the environments have taken meanwhile."""
        slots = self.slots
        if (cut := slots.has_final_observation[group]).any():
            (rows,) = cut.nonzero()
            self._finals.append((np.full(len(rows), t), rows, slots.final_observations[self.leaf][group, rows]))
        self._agents[group].note_step(slots.rewards[slot, t], slots.ended(slot, t))

    def _finish(self, group: int, slot: int) -> None:
        """Hands over what the driver wants of a full fragment."""
        finals: Finals = tuple(map(np.concatenate, zip(*self._finals, strict=True))) if self._finals else None
        policies = self._policies if self._whole is None else None
        batch = self._trajectories.batch(slot, policies, self._agents[group], finals, self._compute)
        teams = self._ended_teams(group)
        if self._whole is not None:
            self._whole.add(batch, Postprocessing(self.worker.policy_map, self._columns))
        if self.slots[ORDERS][slot, 0] == self._orders_done:  # else it is dropped
            batches = [batch] if self._whole is None else self._whole.take(self.names)
            self._parcels.put(slot, outcome_of(lambda: (teams, self._make_items(batches))))

    def _ended_teams(self, group: int) -> list[TeamEpisode]:
        """Episodes of several agents that have ended in a fragment."""
        ended, self._agents[group].ended = self._agents[group].ended, []
        row = self.index * self.topology.envs_per_group
        return [
            TeamEpisode(
                sum(total for _, total, _ in agents), max(length for *_, length in agents),
                [(self.names[policy], total) for policy, total, _ in agents], row + env,
            )
            for env, agents in ended
        ]  # fmt: skip


def applied(transforms: Sequence[Transform]) -> Callable[[list[Batch]], list[Any]]:
    """From batches to the items that transforms of an iterator to an iterator, one after the other, make of them."""
    batches: list[Batch] = []
    items = transformed(iter(lambda: batches.pop(0) if batches else NOT_READY, object()), transforms)

    def apply(new: list[Batch]) -> list[Any]:
        batches.extend(new)
        return list(itertools.takewhile(lambda item: not isinstance(item, NotReady), items))

    return apply
