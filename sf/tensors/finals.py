"""Final observations of one trajectory, and what the policy thinks of those of episodes that were cut.

All are kept for the trajectory and valued once at its end, so that no step asks the device whether an episode is over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from sf.envs.tensors import CheckedTensors
from sf.spaces import ACTION_MASK, LeafSpec
from sf.tensors.checks import Categories, as_leaf, expect_finite


class TrajectoryFinals:
    """Room for [T, rows, ...] per key of the observations, from the first step that gives final observations."""

    def __init__(
        self, simulator: CheckedTensors, env_id: str, leaves: Mapping[str, LeafSpec], categories: Categories, steps: int
    ) -> None:
        """Is empty.

        Args:
            simulator: that gives them, or does not.
            env_id: for messages.
            leaves: of an observation.
            categories: bounds those that are choices.
            steps: T.
        """
        self._simulator, self._env_id, self._leaves, self._categories = simulator, env_id, leaves, categories
        self._rooms: dict[str, Tensor] = {}
        self._is_given = [False] * steps
        self._has_told = False

    def state(self) -> dict[str, Any]:
        """What a resumed run needs within a trajectory."""
        return {"rooms": self._rooms, "is_given": self._is_given}

    def load_state(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Goes on where `state` was taken."""
        self._rooms = {key: room.to(device) for key, room in state["rooms"].items()}
        self._is_given = list(state["is_given"])

    def keep(self, t: int, extras: Mapping[str, Any], observations: Mapping[str, Tensor]) -> None:
        """Copies those that came with step t; `observations`, [slots, T+1, rows, ...], have their shapes and types."""
        final = self._simulator.final(extras)
        self._is_given[t] = final is not None
        if final is None:
            return
        for key, leaf in self._leaves.items():
            if key not in self._rooms:
                like = observations[key]
                self._rooms[key] = like.new_zeros(len(self._is_given), *like.shape[2:])
            there = self._rooms[key][t]
            if key == ACTION_MASK and isinstance(final, Mapping) and ACTION_MASK not in final:
                there.fill_(1)  # nothing is chosen any more
                continue
            there.copy_(as_leaf(self._env_id, final, leaf, there, "a final observation"), non_blocking=True)

    def of_cut_episodes(self, truncated: Tensor) -> Iterator[tuple[Tensor, Tensor, dict[str, Tensor]]]:
        """Steps, rows and observations, at most `rows` at once; nothing where the simulator gives none.

        Args:
            truncated: [T, rows] bool.

        Raises:
            EnvError: some are there and others are not, or they are not finite.
        """
        steps, rows = truncated.nonzero(as_tuple=True)
        if not len(steps):
            return
        if not all(self._is_given) and not torch.tensor(self._is_given, device=truncated.device)[steps].all():
            if self._rooms:
                raise self._simulator.expect_finals()
            if not self._has_told:
                self._has_told = True
                self._simulator.tell_of_no_finals()
            return
        most = truncated.shape[1]
        for some_steps, some_rows in zip(torch.split(steps, most), torch.split(rows, most), strict=True):
            # Of copies that were not cut, a simulator may give anything.
            finals = {key: room[some_steps, some_rows] for key, room in self._rooms.items()}
            seen = {key: self._categories.bounded(key, final) for key, final in finals.items()}
            expect_finite(self._env_id, {f"final observation {key!r}": value for key, value in seen.items()})
            yield some_steps, some_rows, seen
