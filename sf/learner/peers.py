"""The exchange between the learners of one policy, so that they stay copies of each other.

Each learner of a policy holds the same weights and optimizer and trains on its share of every dataset. Every number
that decides a step (gradient, moments, divergences, counts) is averaged over the transitions of all learners, in the
same order everywhere. So the step is that of one learner with the whole dataset, and all get the same bits. All must
make the same exchanges in the same order. An exchange may depend on the configuration and on earlier exchanges, and on
nothing else.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from sf.shared.arena import Arena, Array
from sf.shared.doorbell import Doorbell
from sf.shared.exchange import OUTBOX_BYTES, Exchange, PeerLost
from sf.shared.progress import Progress

__all__ = ["ALONE", "PeerLost", "Peers", "SeveralLearners", "peers_of"]

READY, LEAVING = 1.0, 0.0
"""The word of a learner before a dataset: it has its share, or it will not come again."""


class Peers:
    """The peers of a learner that is alone, and the interface for several learners."""

    exchange_s = 0.0
    """Seconds spent on exchanges so far, but for the agreement on datasets."""

    def are_ready(self) -> bool:
        """Says that this learner has its share of a dataset, and whether all have; then all train. Never blocks."""
        return True

    def others_wait(self) -> bool:
        """Whether so many others have their share that this learner should train with what it has. Never blocks."""
        return False

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

    def std_means(self, parts: Iterable[Tensor], ddof: int) -> list[tuple[Tensor, Tensor]] | None:
        """Deviation and mean of the samples [n] of all learners, for each part; None for a learner that is alone.

        That one does not look at the parts, which take time to gather.

        A single number has no sample deviation but 0.
        """
        return None

    def take_from_first(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The tensors of the first learner, under the same names and of the same shapes and types."""
        return tensors


ALONE = Peers()


class HostCopy:
    """Memory of the host for vectors of an accelerator, pinned once."""

    def __init__(self) -> None:
        self._room = torch.empty(0)

    def of(self, vector: Tensor) -> Tensor:
        """The vector itself if it is on the host already, else a copy that is good until the next one."""
        if vector.is_cpu:
            return vector
        if self._room.numel() < vector.numel() or self._room.dtype != vector.dtype:
            self._room = torch.empty(vector.shape, dtype=vector.dtype, pin_memory=vector.is_cuda)
        return self._room[: vector.numel()].copy_(vector)


class Team(Peers):
    """Peers that agree on every dataset; how their words travel is up to the children of this class."""

    def __init__(self) -> None:
        self._has_announced = self._is_over = False

    def _post(self, word: float) -> None:
        """Begins an exchange of one word each; never waits."""
        raise NotImplementedError

    def _is_complete(self) -> bool:
        """Whether all have posted their word; never waits."""
        raise NotImplementedError

    def _wait(self) -> None:
        """Sleeps until all have."""
        raise NotImplementedError

    def _words(self) -> Sequence[float]:
        """What all have posted."""
        raise NotImplementedError

    def are_ready(self) -> bool:
        """See `Peers`; never again once a learner leaves."""
        if self._is_over:
            return False
        if not self._has_announced:
            self._announce(READY)
        return self._is_complete() and self._agree()

    def leave(self) -> bool:
        """See `Peers`."""
        if self._is_over:
            return False
        if not self._has_announced:
            self._announce(LEAVING)
            self._say_goodbye()
            self._is_over = True
            return False
        self._wait()
        return self._agree()

    def _say_goodbye(self) -> None:
        """Sees to it that the others get the word LEAVING, although this learner ends."""

    def _announce(self, intention: float) -> None:
        self._has_announced = True
        self._post(intention)

    def _agree(self) -> bool:
        self._has_announced = False
        self._is_over = any(word == LEAVING for word in self._words())
        return not self._is_over

    def sum(self, *numbers: float) -> Sequence[float]:
        """See `Peers`."""
        rows = self.gather(torch.tensor(numbers, dtype=torch.float64))
        total: list[float] = torch.stack([row for (row,) in rows]).sum(0).tolist()
        return total

    def std_means(self, parts: Iterable[Tensor], ddof: int) -> list[tuple[Tensor, Tensor]]:
        """See `Peers`."""
        parts = list(parts)
        shares = self.gather(torch.from_numpy(np.stack([_moments(part) for part in parts])))
        facts = np.stack([share.numpy() for (share,) in shares], axis=1)
        return [_std_mean_of_all(facts[i].tolist(), part, ddof) for i, part in enumerate(parts)]


class SeveralLearners(Team):
    """Several learners of one run, each in a process of its own.

    The exchange goes through shared memory and not through torch.distributed with gloo, as that between ranks does.
    Between two processes on two cores the mean of 20,000 parameters takes 80 µs here and 640 µs with gloo; an optimizer
    step of a small network takes 0.84 ms here and 3.2 ms with gloo. For 7 MB both take 8 to 15 ms. Gloo also wants
    ports and more threads in each process.
    """

    def __init__(self, exchange: Exchange) -> None:
        super().__init__()
        self._exchange = exchange
        self._scratch = np.empty(OUTBOX_BYTES, np.uint8)
        self._host = HostCopy()

    def _post(self, word: float) -> None:
        self._exchange.post(np.array([word]))

    def _is_complete(self) -> bool:
        return self._exchange.is_complete()

    def _wait(self) -> None:
        self._exchange.wait()

    def _words(self) -> Sequence[float]:
        return [announced[0] for announced in self._exchange.read(np.float64, 1)]

    def gather(self, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
        """See `Peers`."""
        own = torch.cat([tensor.detach().to(torch.float64).flatten() for tensor in tensors]).cpu().numpy()
        everybody = np.empty((len(self._exchange), own.size))
        for piece in _pieces(own):
            for row, contribution in zip(everybody, self._contributions(own[piece]), strict=True):
                row[piece] = contribution
        sizes = [tensor.numel() for tensor in tensors]
        rows = [torch.split(torch.from_numpy(row).to(tensors[0].device), sizes) for row in everybody]
        return [tuple(part.view(tensor.shape) for part, tensor in zip(row, tensors, strict=True)) for row in rows]

    def mean_(self, tensor: Tensor, weight: float) -> None:
        """See `Peers`."""
        host = self._host.of(tensor.detach().view(-1))
        own = host.numpy()
        for piece in _pieces(own):
            contributions = self._contributions(own[piece], weight)
            weights = self._exchange.weights()
            mean, scaled = own[piece], self._scratch[: own[piece].nbytes].view(own.dtype)
            mean.fill(0)
            for contribution, its_weight in zip(contributions, weights, strict=True):
                if its_weight:
                    mean += np.multiply(contribution, its_weight / sum(weights), out=scaled)
        if not tensor.is_cpu:
            # Not waited for: the device takes it before it writes there for the next mean.
            tensor.copy_(host.view(tensor.shape), non_blocking=True)

    def take_from_first(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """See `Peers`."""
        taken = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        for tensor in taken.values():
            vector = tensor.view(-1).numpy()
            for piece in _pieces(vector):
                vector[piece] = self._contributions(vector[piece])[0]
        return taken

    def _contributions(self, own: Array, weight: float = 1.0) -> list[Array]:
        """Those of all learners, good until the next exchange."""
        began_s = time.perf_counter()
        try:
            self._exchange.post(own, weight)
            self._exchange.wait()
            self.exchange_s += time.perf_counter() - began_s
            return self._exchange.read(own.dtype, own.size)
        except PeerLost:
            self._is_over = True
            raise


def peers_of(
    policy_id: int, index: int, arena: Arena, bells: Sequence[Doorbell], progress: Progress | None = None
) -> Peers:
    """The peers of learner `index` of a policy in a run that is alone, whose learners have these bells."""
    return ALONE if len(bells) == 1 else SeveralLearners(Exchange(policy_id, index, arena, bells, progress))


def _moments(samples: Tensor) -> Array:
    """[3] how many samples there are, their mean, and the sum of the squares of their distances from it."""
    own = samples.cpu().numpy().astype(np.float64)
    mean = own.sum() / max(1, own.size)
    return np.array([own.size, mean, np.square(own - mean).sum()])


def _std_mean_of_all(shares: Sequence[Sequence[float]], like: Tensor, ddof: int) -> tuple[Tensor, Tensor]:
    """Deviation and mean of all samples, from the `_moments` of each share."""
    total = sum(size for size, _, _ in shares)
    mean = sum(size * its_mean for size, its_mean, _ in shares) / total
    squares = sum(its_squares + size * (its_mean - mean) ** 2 for size, its_mean, its_squares in shares)
    std = math.sqrt(squares / (total - ddof if total > 1 else total))
    return like.new_full((), std), like.new_full((), mean)


def _pieces(vector: Array) -> Iterator[slice]:
    """Parts of a vector that fit into an outbox."""
    step = OUTBOX_BYTES // vector.itemsize
    return (slice(start, start + step) for start in range(0, vector.size, step))
