"""Several flows at once (rows D31 to D34)."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sf.plans.local_iterator import NOT_READY, LocalIterator, Weight
from sf.plans.metrics import SharedMetrics

LOOK_S = 1e-3
"""How long an empty queue is waited for."""


def Concurrently(
    ops: Sequence[LocalIterator],
    *,
    mode: str = "round_robin",
    output_indexes: Sequence[int] | None = None,
    round_robin_weights: Sequence[Weight] | None = None,
) -> LocalIterator:
    """Reads several flows by turns.

    Args:
        ops: the flows.
        mode: ``round_robin`` takes them strictly in turn, ``async`` passes over those that are not ready.
        output_indexes: flows whose items come out; the others run for their effects. None for all.
        round_robin_weights: see `LocalIterator.union`.

    Raises:
        ValueError: fewer than two flows, another mode, weights in async mode, or weights that are all ``"*"``.
    """
    if len(ops) < 2:
        raise ValueError(f"Concurrently needs 2 flows at least, but got {len(ops)}.")
    if mode not in ("round_robin", "async"):
        raise ValueError(f"mode={mode!r} must be 'round_robin' or 'async'.")
    if mode == "async" and round_robin_weights:
        raise ValueError("mode='async' takes no round_robin_weights: it reads what is ready.")
    if round_robin_weights and all(weight == "*" for weight in round_robin_weights):
        raise ValueError("round_robin_weights must not all be '*': then no flow is waited for.")
    deterministic = mode == "round_robin"
    if output_indexes is None:
        return ops[0].union(*ops[1:], deterministic=deterministic, round_robin_weights=round_robin_weights)
    for index in output_indexes:
        assert index in range(len(ops)), f"output_indexes has {index}, but there are {len(ops)} flows"
    tagged = [flow.for_each(_tagger(index)) for index, flow in enumerate(ops)]
    together = tagged[0].union(*tagged[1:], deterministic=deterministic, round_robin_weights=round_robin_weights)
    return together.filter(lambda pair: pair[0] in output_indexes).for_each(lambda pair: pair[1])


def _tagger(index: int) -> Callable[[Any], tuple[int, Any]]:
    return lambda item: (index, item)


class Enqueue:
    """Puts each item into a queue, without blocking; a full one makes the flow wait its turn."""

    def __init__(self, output_queue: queue.Queue[Any]) -> None:
        """Feeds this queue.

        Raises:
            ValueError: it is no queue.
        """
        if not isinstance(output_queue, queue.Queue):
            raise ValueError(f"Enqueue takes a queue.Queue, but got {output_queue!r} ({type(output_queue).__name__}).")
        self._queue = output_queue

    def __call__(self, item: Any) -> Any:
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            return NOT_READY
        return item


def Dequeue(input_queue: queue.Queue[Any], check: Callable[[], bool] = lambda: True) -> LocalIterator:
    """The items of a queue, as they come.

    Args:
        input_queue: fed by `Enqueue` or by a thread.
        check: whether there can still come items; asked before each look.

    Raises:
        ValueError: it is no queue.
        RuntimeError: while it is read, if the check fails.
    """
    if not isinstance(input_queue, queue.Queue):
        raise ValueError(f"Dequeue takes a queue.Queue, but got {input_queue!r} ({type(input_queue).__name__}).")

    def source(timeout_s: float | None) -> Iterator[Any]:
        while check():
            try:
                yield input_queue.get(timeout=LOOK_S)
            except queue.Empty:
                yield NOT_READY
        raise RuntimeError("The check of Dequeue failed: nothing feeds its queue any more.")

    return LocalIterator(source, SharedMetrics(), name="Dequeue")
