"""The agents of one group of environments: their episodes, policies and recurrent states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sf.errors import EnvError, UsageError
from sf.plans.sample_batch import concatenated, widest
from sf.shared.arena import Array
from sf.shared.topology import Topology

Said = tuple[int, Any, Mapping[str, Array]]
"""Step, rows, and what a policy gave for them beside actions."""


class GroupOfAgents:
    """The agents of one group of environments, one per row: their episodes, policies and recurrent states."""

    def __init__(self, topology: Topology, actions: Array, first_episode: int) -> None:
        """Begins with episodes that have not begun.

        Args:
            topology: sizes of a group.
            actions: [rows, ...], for their type.
            first_episode: the numbers of its episodes begin here.
        """
        rows, self._agents_per_env = topology.rows, topology.agents_per_env
        shape = topology.rollout, rows
        self.history = {name: np.zeros(shape, np.int64) for name in ("eps_id", "unroll_id", "agent_index", "t")}
        """[T, rows] of the present fragment: columns that all policies have."""
        self.history["agent_index"][:] = np.arange(rows) % self._agents_per_env
        self.owners = np.zeros(shape, np.int64)
        """[T, rows] number of the policy that acted."""
        self._said: list[list[Said]] = []
        """What each policy gave in the present fragment."""
        self.last_actions, self.last_rewards = np.zeros_like(actions), np.zeros(rows, np.float32)
        self.states: list[list[Array]] = []
        """[rows, ...] recurrent states of each policy."""
        self._initial: list[list[Array]] = []
        self._policies = np.zeros(rows, np.int64)
        self._next_episodes = first_episode + np.arange(rows // self._agents_per_env)
        """Number of the next episode of each environment."""
        self._episodes, self._steps = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self._parts, self._next_part = np.zeros(rows, np.int64), first_episode
        """Number of each agent's part of an episode in the present fragment."""
        self._returns, self._lengths = np.zeros(rows), np.zeros(rows, np.int64)
        self.ended: list[tuple[int, list[tuple[int, float, int]]]] = []
        """Episodes that all of their agents have ended: the environment, and policy, return and length of each."""
        self._is_over = np.ones(rows, bool)
        """Whether the episode of an agent has ended; that of the environment ends with the last one."""

    def begin_fragment(self, policies: Sequence[Any], policy_of: Callable[[int], int]) -> None:
        """Before the first step of a fragment."""
        if not self.states:
            self._initial = [[np.asarray(state) for state in policy.get_initial_state()] for policy in policies]
            rows = len(self._steps)
            self.states = [[np.repeat(state[None], rows, 0) for state in initial] for initial in self._initial]
        self._policy_of, self._said = policy_of, [[] for _ in policies]
        self._begin_parts(np.arange(len(self._steps)))
        self._begin_episodes()

    def expect_those(self, is_there: Array) -> None:
        """Refuse agents that come within an episode: all of them begin, and none comes back, in the batches of a plan.

        Args:
            is_there: [rows] bool, of the next step.

        Raises:
            EnvError: others are there than those that have not ended.
        """
        if (is_there == self._is_over).any():
            row = int(np.flatnonzero(is_there == self._is_over)[0])
            env, agent = divmod(row, self._agents_per_env)
            what = "takes part again after its end" if is_there[row] else "is not there when an episode begins"
            raise EnvError(
                f"Agent {agent} of environment {env} {what}. The agents of a plan begin their episodes together; train "
                "this environment with sf-train."
            )

    def rows_of(self, policy: int) -> Array:
        """[n] the rows in which a policy acts."""
        return np.flatnonzero(self._policies == policy)

    def keep_states(self, policy: int, rows: Any, following: Sequence[Array]) -> None:
        """The recurrent states after a step of some rows, of the widest type so far."""
        states = self.states[policy]
        for i, (state, after) in enumerate(zip(states, following, strict=True)):
            if not np.can_cast((after := np.asarray(after)).dtype, state.dtype, "safe"):
                states[i] = state = state.astype(widest([state, after], f"state_out_{i}"))
            state[rows] = after

    def note_act(self, t: int) -> None:
        """Before a step: the columns that all policies have."""
        for name, values in (("eps_id", self._episodes), ("unroll_id", self._parts), ("t", self._steps)):
            self.history[name][t] = values
        self.owners[t] = self._policies

    def note_said(self, policy: int, t: int, rows: Any, columns: Mapping[str, Array]) -> None:
        """Recurrent states and extra columns [n, ...] that a policy gave for some rows, and that stay as they are."""
        self._said[policy].append((t, rows, columns))

    def said_by(self, policy: int, name: str) -> dict[str, Array]:
        """[T, rows, ...] what a policy gave in a fragment, of the widest type; anything in rows of others.

        Raises:
            UsageError: a column has several shapes.
        """
        said = self._said[policy]
        return {
            column: self._placed([columns[column] for *_, columns in said], said, f"Policy {name!r}", column)
            for column in (said[0][2] if said else ())
        }

    def _placed(self, values: list[Array], said: list[Said], who: str, column: str) -> Array:
        shape = self.owners.shape
        try:
            everything: Array = concatenated(values, column)
            if len(everything) != shape[0] * shape[1]:
                rows, own = np.arange(shape[1]), everything
                everything = np.zeros((shape[0] * shape[1], *own.shape[1:]), own.dtype)
                everything[np.concatenate([t * shape[1] + rows[some] for t, some, _ in said])] = own
            return everything.reshape(*shape, *everything.shape[1:])
        except ValueError as error:
            shapes = ", ".join(sorted({str(list(each.shape)) for each in values}))
            raise UsageError(
                f"{who} gave the column {column!r} in the shapes {shapes}. The values of a column have one shape, the "
                "same in every call."
            ) from error

    def note_step(self, rewards: Array, ended: Array) -> None:
        """After a step of all agents."""
        self.last_rewards[:] = rewards
        if self._agents_per_env > 1:  # that of one agent comes from its environment
            self._returns += rewards * ~self._is_over
            self._lengths += ~self._is_over
        self._steps += 1
        self._is_over |= ended
        self._begin_episodes()

    def _begin_parts(self, rows: Array) -> None:
        """Numbers that no other part has, as those of RLlib."""
        self._parts[rows] = self._next_part + np.arange(len(rows))
        self._next_part += len(rows)

    def _begin_episodes(self) -> None:
        """In environments of which every agent has ended."""
        if not self._is_over.any():
            return
        agents = range(self._agents_per_env)
        envs = rows = np.flatnonzero(self._is_over.reshape(-1, len(agents)).all(1))
        if len(agents) > 1:
            rows = (envs[:, None] * len(agents) + agents).ravel()
        if len(agents) > 1:
            self._note_ended(envs, rows)
            self._returns[rows] = self._lengths[rows] = 0
        self._episodes[rows] = self._next_episodes[rows // len(agents)]
        self._next_episodes[envs] += len(self._next_episodes)
        self._steps[rows] = self.last_rewards[rows] = self.last_actions[rows] = 0
        self._policies[rows] = [self._policy_of(agent) for _ in envs for agent in agents]
        self._is_over[rows] = False
        self._begin_parts(rows)
        for states, initial in zip(self.states, self._initial, strict=True):
            for state, first in zip(states, initial, strict=True):
                state[rows] = first

    def _note_ended(self, envs: Array, rows: Array) -> None:
        each = [column[rows].tolist() for column in (self._policies, self._returns, self._lengths)]
        agents, size = list(zip(*each, strict=True)), self._agents_per_env
        for index, env in enumerate(envs.tolist()):
            own = agents[index * size : (index + 1) * size]
            if any(length for _, _, length in own):  # else none has begun
                self.ended.append((env, own))
