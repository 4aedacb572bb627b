"""Finds out who has won, from the trajectories of a group.

A finished slot holds rewards, policies and versions of all steps, so a game costs nothing while it is played. A game
counts for the opponent that acted in all of its steps under one version.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sf.shared.arena import Array
from sf.shared.matches import MIXED, Match
from sf.shared.slot_fields import NO_POLICY
from sf.shared.slots import Slots

NEWEST = np.iinfo(np.int64).max
"""Least version of an agent that has not acted yet."""


class Matches:
    """Sums up the returns of each agent of a group and compares them where a game ends."""

    def __init__(self, slots: Slots, rows: int, agents_per_env: int, tell: Callable[[Match], object]) -> None:
        """Begins with the first game of each environment.

        Args:
            slots: the trajectories.
            rows: of the group.
            agents_per_env: rows that play one game.
            tell: receives each game that is over.
        """
        self._slots, self._agents, self._tell = slots, agents_per_env, tell
        self._returns, self._policies = np.zeros(rows), np.full(rows, NO_POLICY)
        self._oldest, self._newest = np.full(rows, NEWEST), np.full(rows, -1)
        """Least and largest version that acted for each agent in its game."""

    def take(self, slot: int) -> None:
        """Takes in a trajectory of all rows whose rewards are as the environments gave them."""
        slots, agents = self._slots, self._agents
        ended = slots.terminated[slot] | slots.truncated[slot]
        games = ended.reshape(len(ended), -1, agents).all(2)  # [T, environments]; who has left is at its end as well
        for env in range(games.shape[1]):
            rows, begin = slice(env * agents, (env + 1) * agents), 0
            for t in np.flatnonzero(games[:, env]).tolist():
                self._add(slot, slice(begin, t + 1), rows)
                is_played = bool((slots.policy_id[slot, t, rows] != NO_POLICY).any())
                self._finish(rows, is_played)
                begin = t + 1
            self._add(slot, slice(begin, len(ended)), rows)

    def forget(self) -> None:
        """Counts no game that is being played: what came before it is not known here."""
        self._oldest[:], self._newest[:] = -1, NEWEST - 1

    def _add(self, slot: int, steps: slice, rows: slice) -> None:
        slots = self._slots
        policies: Array = slots.policy_id[slot, steps, rows]
        acted = policies != NO_POLICY
        versions = slots.policy_version[slot, steps, rows]
        self._returns[rows] += np.where(acted, slots.rewards[slot, steps, rows], 0).sum(0)
        self._policies[rows] = np.maximum(self._policies[rows], policies.max(0, initial=NO_POLICY))
        self._oldest[rows] = np.minimum(self._oldest[rows], np.where(acted, versions, NEWEST).min(0, initial=NEWEST))
        self._newest[rows] = np.maximum(self._newest[rows], np.where(acted, versions, -1).max(0, initial=-1))

    def _finish(self, rows: slice, is_played: bool) -> None:
        policies, returns = self._policies[rows], self._returns[rows]
        sides = np.unique(policies[policies != NO_POLICY])
        if is_played and len(sides) == 2 and sides[0] == 0:
            opponent = int(sides[1])
            theirs = policies == opponent
            oldest, newest = self._oldest[rows][theirs].min(), self._newest[rows][theirs].max()
            lead = returns[policies == 0].mean() - returns[theirs].mean()
            score = 0.5 if np.isclose(lead, 0, atol=1e-6) else float(lead > 0)
            self._tell(Match(opponent, int(newest) if oldest == newest else MIXED, score))
        self._returns[rows], self._policies[rows] = 0, NO_POLICY
        self._oldest[rows], self._newest[rows] = NEWEST, -1
