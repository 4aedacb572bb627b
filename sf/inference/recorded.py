"""Acting on CUDA as recorded forward passes, see `sf.nets.fast.recorded`.

A graph computes as many rows each time. So rows are copied to places that stay, and the number of rows is rounded up,
by an eighth at most, so that few numbers occur.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sf.inference.actors import Answers
from sf.inference.carrier import copy_rows
from sf.inference.packing import Packing, PinnedWords, packed
from sf.nets.actor_critic import ActorCritic
from sf.nets.fast.recorded import GraphRecorder, Recording, random_rows, recorded
from sf.policy import PolicyStep
from sf.shared.arena import Array

STEPS_PER_OCTAVE = 8
"""Numbers of rows that are recorded between one and the double of it."""
LEAST_ROWS = 64
"""Places are made for so many rows at first."""


class RecordedAct:
    """The forward passes of one network, by number of rows; its weights may change in place."""

    def __init__(self, network: ActorCritic, recorder: GraphRecorder) -> None:
        """Records nothing yet.

        Args:
            network: with encoders that compute the same operations each time.
            recorder: makes recordings.
        """
        self._network, self._recorder = network, recorder
        self._device = network.flat.device
        self._words = PinnedWords()
        self._rooms: dict[str, Tensor] = {}
        """Places of the leaves, [most rows, ...]."""
        self._memory = self._noise = torch.empty(0)
        self._most_rows = 0
        self._passes: dict[int, Recording[Tensor]] = {}
        """By number of rows, with packed answers."""
        self._packing: Packing | None = None

    def __call__(
        self,
        observations: Mapping[str, Sequence[Array]],
        memory: Sequence[Array],
        generator: torch.Generator,
        noise: Array | None = None,
    ) -> Answers:
        """Acts as `ActorCritic.act` does, with the same random numbers.

        Args:
            observations: the rows of each group, by leaf, on the host.
            memory: the rows of each group; nothing without a recurrent state.
            generator: of the random numbers.
            noise: [B, n] random numbers in place of those of the generator.

        Returns:
            Arrays that are good until the next call.
        """
        rows = sum(map(len, next(iter(observations.values()))))
        if (padded := rounded_up(rows)) > self._most_rows:
            self._make_places(padded, observations)
        for key, parts in observations.items():
            copy_rows(parts, self._rooms[key])
        copy_rows(memory, self._memory)
        if noise is None:
            self._noise[:rows].copy_(self._network.distribution.noise(rows, generator, self._device))
        else:
            copy_rows([noise], self._noise)
        if padded not in self._passes:
            self._passes[padded] = self._recorded(padded)
        words = self._passes[padded]()
        assert self._packing is not None
        return self._packing.unpack(self._words.take(words[:rows]))

    def _make_places(self, rows: int, observations: Mapping[str, Sequence[Array]]) -> None:
        """Makes room for twice as many rows as before at least, and forgets what is recorded for other places."""
        rows = max(rows, 2 * self._most_rows, LEAST_ROWS)

        def room(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(rows, *shape, dtype=dtype, device=self._device)

        self._passes.clear()
        for key, parts in observations.items():
            like = torch.from_numpy(parts[0])
            self._rooms[key] = room(*like.shape[1:], dtype=like.dtype)
        self._memory, self._noise = room(self._network.state_size), random_rows(self._network, rows)
        self._most_rows = rows

    def _recorded(self, rows: int) -> Recording[Tensor]:
        leaves = {key: room[:rows] for key, room in self._rooms.items()}
        memory, noise = self._memory[:rows], self._noise[:rows]

        def step() -> PolicyStep:
            answer = self._network.act_with(leaves, memory, noise)
            return answer if self._network.state_size else answer._replace(state=())

        if self._packing is None:
            with torch.no_grad():
                self._packing = Packing(step())
        return recorded(lambda: packed(step()), self._recorder)


def rounded_up(rows: int) -> int:
    """The next number of rows that is recorded."""
    unit = 1 << max(0, (rows - 1).bit_length() - STEPS_PER_OCTAVE.bit_length())
    return max(1, -(-rows // unit) * unit)
