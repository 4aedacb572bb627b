"""Agents that a function of the user plays: its actions take the place of those that a network has chosen for them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sf.envs.scripted import ScriptedPolicy
from sf.shared.slots import Slots
from sf.spaces import ActionBounds, EnvInfo


class ScriptedAgents:
    """Writes the actions of scripted policies into trajectories, on which no learner trains."""

    def __init__(self, names: Mapping[int, str], info: EnvInfo, bounds: ActionBounds, slots: Slots) -> None:
        """Finds the functions.

        Args:
            names: number of the policy to ``module:function``.
            info: spaces of the environments.
            bounds: how stored numbers of Box actions become those of the environment.
            slots: the trajectories.

        Raises:
            ConfigError: a function is not found.
        """
        self._policies = {number: ScriptedPolicy(name, info, bounds) for number, name in names.items()}
        self._slots = slots

    def act(self, slot: int, t: int, random: np.random.Generator) -> None:
        """Chooses the actions of step t for the rows of scripted policies.

        Args:
            slot: of the trajectory.
            t: step.
            random: numbers for the functions.

        Raises:
            EnvError: a function raises, or returns no action.
        """
        for number, policy in self._policies.items():
            rows = np.flatnonzero(self._slots.policy_id[slot, t] == number)
            if len(rows):
                seen = {name: array[slot, t, rows] for name, array in self._slots.observations.items()}
                self._slots.actions[slot, t, rows] = policy.actions(seen, random)
