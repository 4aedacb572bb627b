"""The agents of one group of environments: their episodes, policies and recurrent states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sf.errors import EnvError, UsageError
from sf.plans.sample_batch import concatenated
from sf.shared.arena import Array
from sf.shared.topology import Topology

EPISODES_OF_A_GROUP = 1 << 36
"""The numbers of the episodes of a group begin at a multiple of it."""


class GroupOfAgents:
    """The agents of one group of environments, one per row: their episodes, policies and recurrent states."""

    def __init__(self, topology: Topology, actions: Array, first_episode: int) -> None:
        """Begins with episodes that have not begun.

        Args:
            topology: sizes of a group.
            actions: [rows, ...], for their type.
            first_episode: the numbers of episodes begin here, see `environment_of`.
        """
        rows, self._agents_per_env = topology.rows, topology.agents_per_env
        shape = topology.rollout, rows
        self.history = {name: np.zeros(shape, np.int64) for name in ("eps_id", "unroll_id", "agent_index", "t")}
        """[T, rows] of the present fragment: columns that all policies have."""
        self.history["agent_index"][:] = np.arange(rows) % self._agents_per_env
        self.owners = np.zeros(shape, np.int64)
        """[T, rows] number of the policy that acted."""
        self._said: list[list[tuple[int, Any, Mapping[str, Array]]]] = []
        """By policy: step, rows, and what it gave beside actions."""
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
        """The recurrent states after a step of some rows; one that began as a whole number may become a fraction."""
        states = self.states[policy]
        for i, (state, after) in enumerate(zip(states, following, strict=True)):
            if not (state.dtype.kind in "biuf" and np.can_cast(np.asarray(after).dtype, state.dtype, "same_kind")):
                states[i] = state = state.astype(np.result_type(state, after))
            state[rows] = after

    def note_act(self, t: int) -> None:
        """Before a step: the columns that all policies have."""
        for name, values in (("eps_id", self._episodes), ("unroll_id", self._parts), ("t", self._steps)):
            self.history[name][t] = values
        self.owners[t] = self._policies

    def note_said(self, policy: int, t: int, rows: Any, columns: Mapping[str, Any]) -> None:
        """Recurrent states and extra columns [n, ...] that a policy gave for some rows; copies."""
        self._said[policy].append((t, rows, {name: np.array(values) for name, values in columns.items()}))

    def said_by(self, policy: int, name: str) -> dict[str, Array]:
        """[T, rows, ...] what a policy gave in a fragment, of the widest type; anything in rows of others.

        Raises:
            UsageError: a column has several shapes, or not one value for each row.
        """
        found, said = {}, self._said[policy]
        shape = self.owners.shape
        places = [np.ravel_multi_index((t, np.arange(shape[1])[rows]), shape) for t, rows, _ in said]
        for column in said[0][2] if said else ():
            values = [columns[column] for *_, columns in said]
            shapes = {each.shape[1:] for each in values}
            lengths = [len(each) if each.ndim else 0 for each in values]
            if len(shapes) > 1 or lengths != [len(each) for each in places]:
                different = ", ".join(sorted({str(list(each.shape)) for each in values}))
                raise UsageError(
                    f"Policy {name!r} gave the column {column!r} in the shapes {different}, for {len(places[0])} rows. "
                    "A column has a value of one shape for each row, the same in every call."
                )
            all_steps = together = concatenated(values, column)
            if len(together) < shape[0] * shape[1]:
                all_steps = np.zeros((shape[0] * shape[1], *together.shape[1:]), together.dtype)
                all_steps[np.concatenate(places)] = together
            found[column] = all_steps.reshape(*shape, *together.shape[1:])
        return found

    def note_step(self, rewards: Array, ended: Array) -> None:
        """After a step of all agents."""
        self.last_rewards[:] = rewards
        self._steps += 1
        self._is_over |= ended
        self._begin_episodes()

    def _begin_parts(self, rows: Array) -> None:
        """Numbers that no other part has, as those of RLlib."""
        self._parts[rows] = self._next_part + np.arange(len(rows))
        self._next_part += len(rows)

    def _begin_episodes(self) -> None:
        """In environments of which every agent has ended."""
        over = self._is_over.reshape(-1, self._agents_per_env).all(1)
        for env in np.flatnonzero(over):
            rows = np.arange(env * self._agents_per_env, (env + 1) * self._agents_per_env)
            self._episodes[rows] = self._next_episodes[env]
            self._next_episodes[env] += len(self._next_episodes)
            self._steps[rows] = self.last_rewards[rows] = self.last_actions[rows] = 0
            self._policies[rows] = [self._policy_of(agent) for agent in range(self._agents_per_env)]
            self._is_over[rows] = False
            self._begin_parts(rows)
            for states, initial in zip(self.states, self._initial, strict=True):
                for state, first in zip(states, initial, strict=True):
                    state[rows] = first


def environment_of(episode: int, num_envs: int) -> int:
    """The environment of a group in which an episode with this number is played."""
    return episode % EPISODES_OF_A_GROUP % num_envs
