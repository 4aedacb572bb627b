"""What the learners of one policy compute together, so that they stay copies of each other.

Each learner of a policy holds the same weights and optimizer and trains on its share of every dataset. Whatever decides
how a step turns out (gradient, moments, divergences, counts) is exchanged and averaged over the transitions of all of
them, so they do together what one learner does with the whole dataset. An exchange goes through shared memory:

    round[i]       written by learner i   how often it has put something into its outbox
    outbox[i, b]   written by learner i   what it puts there in the rounds n with n mod 2 = b

Everybody writes its outbox, raises its round and rings the others; when all stand at the same round, everybody reads
all outboxes in the order of the learners and so gets the same bits. A buffer is written again two rounds later, which
nobody begins before all have written the round between, that is have read this one. As with the published weights this
rests on stores becoming visible in order. All learners must make the same exchanges in the same order: whether there is
one may depend on the configuration and on what was exchanged before, and on nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from sf.arena import Arena, Array, Field
from sf.doorbell import Doorbell
from sf.errors import InternalError, WorkerCrashed
from sf.learner.moments import Moments, moments_of, union

OUTBOX_BYTES = 2**20
"""Longer vectors go through it piece by piece; a piece is read while it is still in the cache."""

LOOK_AGAIN_S = 1.0
"""No wait is longer before a learner looks whether its peers live."""

READY, LEAVING = 1.0, 0.0
"""What a learner says before a dataset: that it has its share, or that it will not come again."""


class PeerLost(WorkerCrashed):
    """Another learner of the policy is dead; the supervisor knows it too and says how it ended."""


class Peers:
    """Those of a learner that has none: all there is, is its own. And the interface of those of several learners."""

    def are_ready(self) -> bool:
        """Says that this learner has its share of a dataset, and whether all have; then all train. Never blocks."""
        return True

    def leave(self) -> bool:
        """Says that this learner ends; but True if all have agreed on a dataset, which must be trained before."""
        return False

    def sum(self, *numbers: float) -> Sequence[float]:
        """Each number summed over all learners."""
        return numbers

    def gather(self, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
        """The tensors of every learner, in their order; of the same shapes everywhere, float64."""
        return [tensors]

    def mean_(self, tensor: Tensor, weight: float) -> None:
        """Replaces a tensor by its average over all learners; one with weight 0 may hold anything."""

    def std_mean(self, samples: Tensor, ddof: int) -> tuple[Tensor, Tensor]:
        """Deviation and mean of the samples [n] of all learners; a single number has no sample deviation but 0."""
        std, mean = torch.std_mean(samples, correction=ddof if samples.numel() > 1 else 0)
        return std, mean

    def take_from_first(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The tensors of the first learner."""
        return tensors


ALONE = Peers()


class SharedMemoryPeers(Peers):
    """Several learners, each in a process of its own.

    Not torch.distributed with gloo, whose all_reduce takes 430 µs between two processes on two cores where this takes
    50 to 160, and as long as this for 7 MB (8 to 12 ms). Gloo also wants ports and four more threads in each process,
    and an order to stop does not reach who waits in it.
    """

    def __init__(self, policy_id: int, index: int, arena: Arena, bells: Sequence[Doorbell]) -> None:
        """Tells the others the id of this process.

        Args:
            policy_id: the policy they train.
            index: of this learner.
            arena: with `peer_fields`.
            bells: of all learners of the policy. They may be rung by anybody, as who wakes looks at the words; a ring
                that is consumed here is not missed, because a learner looks at everything before it sleeps.
        """
        self._policy_id, self._index, self._bells = policy_id, index, list(bells)
        self._rounds: Array = arena["peers/round"][policy_id]
        self._pids: Array = arena["peers/pid"][policy_id]
        self._outbox: Array = arena["peers/outbox"][policy_id]
        self._lengths: Array = arena["peers/length"][policy_id]
        self._weights: Array = arena["peers/weight"][policy_id]
        self._scratch = np.empty(OUTBOX_BYTES, np.uint8)
        self._round = 0
        self._has_announced = self._is_over = False
        self._pids[index] = os.getpid()

    def are_ready(self) -> bool:
        """See `Peers`."""
        if self._is_over:
            return False
        if not self._has_announced:
            self._announce(READY)
        return self._has_everybody_come() and self._hear()

    def leave(self) -> bool:
        """See `Peers`."""
        if self._is_over:
            return False
        if not self._has_announced:
            self._announce(LEAVING)
            self._is_over = True
            return False
        self._wait()
        return self._hear()

    def _announce(self, intention: float) -> None:
        self._has_announced = True
        self._post(np.array([intention]), 1.0)

    def _hear(self) -> bool:
        self._has_announced = False
        self._is_over = any(announced[0] == LEAVING for announced in self._read(np.float64, 1))
        return not self._is_over

    def sum(self, *numbers: float) -> Sequence[float]:
        """See `Peers`."""
        rows = self.gather(torch.tensor(numbers, dtype=torch.float64))
        total: list[float] = torch.stack([row for (row,) in rows]).sum(0).tolist()
        return total

    def gather(self, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
        """See `Peers`."""
        own = torch.cat([tensor.detach().to(torch.float64).flatten() for tensor in tensors]).numpy()
        everybody = np.empty((len(self._bells), own.size))
        for piece in _pieces(own):
            for row, contribution in zip(everybody, self._exchange(own[piece], 1.0), strict=True):
                row[piece] = contribution
        sizes = [tensor.numel() for tensor in tensors]
        rows = [torch.split(torch.from_numpy(row), sizes) for row in everybody]
        return [tuple(part.view(tensor.shape) for part, tensor in zip(row, tensors, strict=True)) for row in rows]

    def mean_(self, tensor: Tensor, weight: float) -> None:
        """See `Peers`."""
        own = tensor.detach().view(-1).numpy()
        for piece in _pieces(own):
            contributions = self._exchange(own[piece], weight)
            weights = self._weights[:, self._round % 2].tolist()
            mean, scaled = own[piece], self._scratch[: own[piece].nbytes].view(own.dtype)
            mean.fill(0)
            for contribution, its_weight in zip(contributions, weights, strict=True):
                if its_weight:
                    mean += np.multiply(contribution, its_weight / sum(weights), out=scaled)

    def std_mean(self, samples: Tensor, ddof: int) -> tuple[Tensor, Tensor]:
        """See `Peers`."""
        count, mean, variance = union(Moments(*share) for share in self.gather(*moments_of(samples)))
        correction = ddof if count > 1 else 0
        return (variance * (count / (count - correction))).sqrt().to(samples.dtype), mean.to(samples.dtype)

    def take_from_first(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """See `Peers`."""
        taken = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        for tensor in taken.values():
            vector = tensor.view(-1).numpy()
            for piece in _pieces(vector):
                vector[piece] = self._exchange(vector[piece], 1.0)[0]
        return taken

    def _exchange(self, own: Array, weight: float) -> list[Array]:
        """The contributions of all learners, good until the next exchange."""
        self._post(own, weight)
        self._wait()
        return self._read(own.dtype, own.size)

    def _post(self, own: Array, weight: float) -> None:
        self._round += 1
        buffer = self._round % 2
        self._outbox[self._index, buffer, : own.nbytes].view(own.dtype)[:] = own
        self._lengths[self._index, buffer] = own.nbytes
        self._weights[self._index, buffer] = weight
        self._rounds[self._index] = self._round  # last, so that who sees it sees all of the above
        for index, bell in enumerate(self._bells):
            if index != self._index:
                bell.ring()

    def _read(self, dtype: np.typing.DTypeLike, size: int) -> list[Array]:
        buffer, num_bytes = self._round % 2, size * np.dtype(dtype).itemsize
        lengths = self._lengths[:, buffer]
        if (lengths != num_bytes).any():
            raise InternalError(
                f"The learners of policy {self._policy_id} are out of step: in round {self._round} learner "
                f"{self._index} expects {num_bytes} bytes of each and the lengths are {lengths.tolist()}."
            )
        return [outbox[buffer, :num_bytes].view(dtype) for outbox in self._outbox]

    def _wait(self) -> None:
        while not self._has_everybody_come():
            self._bells[self._index].wait(LOOK_AGAIN_S)

    def _has_everybody_come(self) -> bool:
        """Whether all have written this round.

        Raises:
            PeerLost: one of them is dead and has not.
        """
        late = np.flatnonzero(self._rounds < self._round)
        dead = [int(index) for index in late if not _is_alive(int(self._pids[index]))]
        for index in dead:  # its last round may have come between the two looks
            if self._rounds[index] < self._round:
                raise PeerLost(
                    f"learner {index} of policy {self._policy_id} (pid {self._pids[index]}) has ended, and learner "
                    f"{self._index} cannot go on without it."
                )
        return len(late) == len(dead)


def peers_of(policy_id: int, index: int, arena: Arena, bells: Sequence[Doorbell]) -> Peers:
    """The peers of learner `index` of a policy, whose learners have these bells."""
    return ALONE if len(bells) == 1 else SharedMemoryPeers(policy_id, index, arena, bells)


def peer_fields(num_policies: int, num_learners: int) -> dict[str, Field]:
    """What the learners of each policy share; nothing if a policy has one."""
    if num_learners == 1:
        return {}
    each = (num_policies, num_learners)
    return {
        "peers/round": Field(each, "int64"),
        "peers/pid": Field(each, "int64"),
        "peers/length": Field((*each, 2), "int64"),
        "peers/weight": Field((*each, 2), "float64"),
        "peers/outbox": Field((*each, 2, OUTBOX_BYTES), "uint8"),
    }


def _pieces(vector: Array) -> Iterator[slice]:
    """Parts of a vector that fit into an outbox."""
    step = OUTBOX_BYTES // vector.itemsize
    return (slice(start, start + step) for start in range(0, vector.size, step))


def _is_alive(pid: int) -> bool:
    """Whether a process has not begun yet (pid 0) or lives; the supervisor reaps the dead when it hears of them.

    So who finds a peer dead here knows that the supervisor has found it before, and need not explain it to the user.
    """
    if pid == 0:
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
