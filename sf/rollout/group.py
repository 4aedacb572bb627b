"""One group of environments and the trajectory it is writing.

A group always waits for one of three things: a free slot, the actions of step t, or the values of its last observation.
`advance` does what is possible and never blocks, so that the worker can step another group meanwhile (double
buffering).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sf.config import Config
from sf.envs.agents_stepping import AgentsBatch
from sf.envs.history import History
from sf.envs.scores import Scores
from sf.envs.single_stepping import SingleAgentBatch
from sf.envs.stepping import Ended, EnvBatch
from sf.errors import EnvError
from sf.rollout.dealing import DealtPolicies
from sf.rollout.finite import FiniteCheck, named
from sf.rollout.matches import Matches
from sf.rollout.scripted import ScriptedAgents
from sf.shared.arena import Array
from sf.shared.context import RunContext
from sf.shared.episodes import Episode
from sf.shared.matches import Match
from sf.shared.records import Record
from sf.shared.slot_fields import NO_POLICY
from sf.shared.slots import SlotState


@dataclass(frozen=True)
class Listeners:
    """The functions that a group calls after an event."""

    on_request: Callable[[], None]
    """It asks for actions or values."""
    on_full: Callable[[], None]
    """A slot is full."""
    on_episode: Callable[[Episode], None]
    """An episode has ended."""
    on_match: Callable[[Match], object] = lambda _: None
    """A game of policy 0 against another one is over."""


class Group:
    """Advances some environments in lockstep through the slots that belong to them."""

    def __init__(
        self,
        index: int,
        config: Config,
        context: RunContext,
        envs: EnvBatch,
        random: np.random.Generator,
        record: Record,
        listeners: Listeners,
    ):
        self.index, self.config = index, config.rollout
        self.reward_is_shaped = self.config.reward_scale != 1 or self.config.reward_clip is not None
        self.slots, self.requests, self.envs = context.slots(), context.requests(), envs
        self.random, self.record = random, record
        self.on_request, self.on_full, self.on_episode = listeners.on_request, listeners.on_full, listeners.on_episode
        topology, drop_nonfinite = context.topology, config.faults.on_nonfinite == "drop"
        self.rollout, self.num_policies = topology.rollout, topology.num_policies
        self.agents_per_env, self.first_row = topology.agents_per_env, index * topology.rows
        self.finite = FiniteCheck(index, context.info, self.slots, record, drop_nonfinite, self._restart_episodes)
        self.own_slots: Sequence[int] = topology.slots_of_group(index)
        self.slot: int | None = None
        self.last_slot: int | None = None
        self.t = 0
        self.slots_filled = int(self.slots.filled[self.own_slots].sum())
        self.ended, self.has_fillers = False, True  # as long as those of a predecessor are there
        self.dealt = DealtPolicies(config, context, envs, random)
        self.policies = self.dealt.policies
        self.scripts: ScriptedAgents | None = None
        if scripted := config.run.scripted:
            self.scripts = ScriptedAgents(scripted, context.info, self.config.action_bounds, self.slots)
        self.matches: Matches | None = None
        if config.self_play.self_play:
            self.matches = Matches(self.slots, topology.rows, topology.agents_per_env, listeners.on_match)
        self.scores = Scores(topology.rows, self.finite.place)
        self._take_step = self._first_step

    def advance(self) -> bool:
        """Takes the next step if it can be taken now; says whether anything was done."""
        if self.slot is None:
            return self._start_slot()
        if not self.requests.is_answered(self.index):
            return False
        if self.ended:
            self.slots.has_final_observation[self.index] = False  # its values have come with the answer
        if self.t == self.rollout:
            self._finish_slot()
            self._start_slot()
        else:
            self._take_step(self.slot, self.t)
        return True

    def _start_slot(self) -> bool:
        """Begins a trajectory with the observation the last one ended on.

        Without a free slot, and the permission to begin it, there is no sampling.
        """
        slot = self.own_slots[self.slots_filled % len(self.own_slots)]
        if self.slots.state(slot) is not SlotState.FREE or not self.slots.may_begin(self.index):
            return False
        ended = None if self.last_slot is None else self.slots.ended(self.last_slot, self.rollout - 1)
        self.slots.start_filling(slot)
        self.slots.terminated[slot] = self.slots.truncated[slot] = False
        self.slots.is_new[slot] = True if ended is None else ended | self._has_no_owner()
        if self.num_policies == 1:
            self.slots.policy_id[slot] = 0  # also where there was a filler
        self.slot, self.t = slot, 0
        if ended is None:
            self._begin(slot)
            self._ask(slot, after=2)
        else:
            for array in self.slots.observations.values():
                array[slot, 0] = array[self.last_slot, self.rollout]
            self._keep_memory(slot, ended)
            self._ask(slot)
        return True

    def _has_no_owner(self) -> Array:
        """[rows] bool, whether nothing is learned from the step before, so that its trajectory may never be seen."""
        is_left_out: Array = self.slots.policy_id[self.last_slot, -1] == NO_POLICY
        return is_left_out

    def _begin(self, slot: int) -> None:
        """The first trajectory of this worker: nothing of a predecessor may reach it."""
        self.slots.has_final_observation[self.index] = False
        self.slots.memory[self.index, self.requests.request[self.index] % 2] = 0
        self.slots.initial_memory[slot] = 0
        self.record.lap("write")
        self.envs.reset(self._observations(slot, 0))
        self.record.lap("step")
        self.dealt.draw(range(0, len(self.policies), self.agents_per_env))

    def _keep_memory(self, slot: int, ended: Array) -> None:
        """The trajectory remembers where it began, so that the learner can go through it again."""
        memory = self.slots.memory[self.index, self.requests.next_memory(self.index)]
        if memory.size:
            memory[ended] = 0
            self.slots.initial_memory[slot] = memory

    def _first_step(self, slot: int, t: int) -> None:
        self.record.begin_steps()
        self._take_step = self._step
        self._step(slot, t)

    def _step(self, slot: int, t: int) -> None:
        slots = self.slots
        self.record.lap("write")
        rewards = slots.rewards[slot, t]
        if self.scripts is not None:
            self.scripts.act(slot, t, self.random)
        ended = self.envs.step(slots.actions[slot, t], self._observations(slot, t + 1), rewards)
        self.record.lap("step")
        self.finite.check_rewards(slot, t, self.envs.last_rewards)
        self.scores.add(self.envs.last_rewards)
        self.ended = bool(ended)
        if ended:
            if not all(end.terminated for end in ended):
                self.finite.check_final_observations(slot, t)
                self.slots.keep_last_observations(self.index, slot, t)
            self._end_episodes(slot, t, ended)
        if len(fillers := self.envs.fillers):
            self._mark_fillers(slot, t, fillers)
        self.t = t + 1
        self.record["env_steps"] += len(rewards) - len(fillers)
        self._ask(slot)

    def _mark_fillers(self, slot: int, t: int, rows: Array) -> None:
        """Steps that are no transitions belong to no policy: no learner trains on them. Recurrent states begin anew."""
        self.slots.policy_id[slot, t, rows] = NO_POLICY
        self.slots.terminated[slot, t, rows] = True
        self.scores.skip(rows)

    def _ask(self, slot: int, after: int = 1) -> None:
        self.finite.check_observations(slot, self.t)
        if self.t < self.rollout:
            self._write_policies(slot, self.envs.next_fillers)
        self.requests.ask(self.index, slot, self.t, after)
        self.on_request()

    def _write_policies(self, slot: int, fillers: Array) -> None:
        """The policy of each row, and none for an agent that is not there.

        Other fillers are a step long only. Inference computes actions for them as well, which are no samples.
        """
        if self.num_policies > 1:
            self.slots.policy_id[slot, self.t] = self.policies
        if self.agents_per_env > 1:
            if len(fillers):
                self.slots.policy_id[slot, self.t, fillers] = NO_POLICY
                self.slots.blank(slot, self.t, fillers)
        elif len(fillers) or self.has_fillers:
            self.has_fillers = len(fillers) > 0
            self.slots.fillers[self.index] = np.bincount(self.policies[fillers], minlength=self.num_policies)

    def _finish_slot(self) -> None:
        assert self.slot is not None
        self.ended = False
        if self.matches is not None:
            self.matches.take(self.slot)
        if self.reward_is_shaped:
            self._shape(self.slots.rewards[self.slot])
        self.slots.finish_filling(self.slot)
        self.slots_filled += 1
        self.last_slot, self.slot = self.slot, None
        self.on_full()

    def _shape(self, rewards: Array) -> None:
        """All of a trajectory at once, which costs as much as one step of it."""
        rewards *= self.config.reward_scale
        if (limit := self.config.reward_clip) is not None:
            self.record["clipped"] += np.count_nonzero(np.abs(rewards) > limit)
            np.clip(rewards, -limit, limit, out=rewards)

    def _end_episodes(self, slot: int, t: int, ended: list[Ended]) -> None:
        for end in ended:
            row = end.row
            self.slots.terminated[slot, t, row] = end.terminated
            self.slots.truncated[slot, t, row] = end.truncated and not end.terminated
            if score := self.scores.end(end):
                self.on_episode(Episode(int(self.policies[row]), *score, row=self.first_row + row))
                self.record["episodes"] += 1
        if self.num_policies > 1:
            self.dealt.draw(sorted({end.row - end.row % self.agents_per_env for end in ended if end.is_last}))

    def _observations(self, slot: int, t: int) -> dict[str, Array]:
        return {key: array[slot, t] for key, array in self.slots.observations.items()}

    def _restart_episodes(self, slot: int, t: int, rows: Array) -> None:
        """New episodes and recurrent states instead of those of `rows`, for all agents of their environments."""
        for index in sorted({row // self.agents_per_env for row in rows.tolist()}):
            agents = slice(index * self.agents_per_env, (index + 1) * self.agents_per_env)
            if t > 0:
                self.envs.restart(index, self._observations(slot, t))
            self.finite.refuse_first(slot, t, agents)
            self.slots.policy_id[slot, :t, agents] = NO_POLICY
            self.slots.terminated[slot, t - 1, agents] = True
            self.slots.truncated[slot, t - 1, agents] = False
            self.slots.has_final_observation[self.index, agents] = False
            self.scores.forget(range(agents.start, agents.stop))
            self.dealt.draw([agents.start])

    def state(self) -> dict[str, Any] | None:
        """Everything that is not in shared memory, in plain JSON types; None if there is no history of it."""
        history = getattr(self.envs, "history", None)
        if history is None or not history.is_whole:
            return None
        own = {name: getattr(self, name) for name in ("slot", "last_slot", "t", "slots_filled", "ended")}
        random = self.random.bit_generator.state
        dealt = {"policies": self.policies.tolist(), "episodes": self.dealt.episodes}
        return own | dealt | {"random": random, "scores": self.scores.state(), "history": history.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was taken; shared memory is as it was then.

        Raises:
            EnvError: the environments do not repeat what they did.
        """
        for name in ("slot", "last_slot", "t", "slots_filled", "ended"):
            setattr(self, name, state[name])
        self.random.bit_generator.state = state["random"]
        self.policies[:] = state["policies"]
        self.dealt.episodes = state.get("episodes", self.dealt.episodes)  # not there in runs that 0.2.0 has begun
        self.scores.load_state(state["scores"])
        if self.agents_per_env > 1:
            self.slots.fillers[self.index] = 0  # 0.2.0 counted agents that had ended
        if self.matches is not None:
            self.matches.forget()
        if self.slot is None and self.last_slot is None:
            return  # nothing has begun
        history = History([])
        history.load_state(state["history"], str(self.slots.actions.dtype))
        before = self._observations(self.slot, self.t) if self.slot is not None else self._last_observations()
        seen = {key: array.copy() for key, array in before.items()}
        assert isinstance(self.envs, (SingleAgentBatch, AgentsBatch))
        self.envs.replay(history, seen)
        for key, array in seen.items():
            if not np.array_equal(array, before[key], equal_nan=array.dtype.kind == "f"):
                raise EnvError(
                    f"The environments of group {self.index} do not repeat their {named('observation', key)}."
                )

    def _last_observations(self) -> dict[str, Array]:
        assert self.last_slot is not None
        return self._observations(self.last_slot, self.rollout)

    def close(self) -> None:
        self.envs.close()
