"""All that two processes may see of each other's memory, on a processor that reorders stores and loads.

Each process has a trace: the stores, loads and fences of its program, in their order. The processor may carry them out
in any other order, so a store may become visible late and a load may be early. It keeps two things: nothing passes a
fence, and accesses of one process to one place stay in order. With two processes no processor does more (Pulte et al.
2018, "Simplifying ARM Concurrency", section 4); most do less, and none lets a store pass the branch that leads to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from sf.shared.arena import Array

Place = tuple[str, int]
Values = tuple[float, ...]


class Event(NamedTuple):
    """One access of a program, or a fence between others."""

    kind: Literal["store", "load", "fence"]
    place: Place
    """For a fence the operation that it belongs to."""
    value: float = 0
    """What is stored, or what was loaded when the program was recorded."""


Trace = Sequence[Event]


class Recorder:
    """The traces of two programs that are run in turns."""

    def __init__(self) -> None:
        self.running = 0
        """Which of the two programs runs."""
        self.traces: tuple[list[Event], list[Event]] = ([], [])
        self.initial: dict[Place, float] = {}

    def fence(self, operation: str) -> None:
        """In the place of that of a processor."""
        self.add(Event("fence", (operation, 0)))

    def add(self, event: Event) -> None:
        self.traces[self.running].append(event)

    def watch(self, name: str, array: Array, is_view: bool = False) -> Watched:
        """An array whose accesses are recorded from now on; a part of it is a view if it is one."""
        array = np.asarray(array)
        self.initial |= {(name, number): float(value) for number, value in enumerate(array.ravel().tolist())}
        return Watched(self, name, array.reshape(-1), np.arange(array.size).reshape(array.shape), is_view)

    def shared_traces(self) -> tuple[list[Event], list[Event]]:
        """The traces without places that only one of the two uses, or that none stores to."""
        stored, used = (
            [{event.place for event in trace if event.kind in kinds} for trace in self.traces]
            for kinds in (("store",), ("store", "load"))
        )
        shared = stored[0] & used[1] | stored[1] & used[0]
        one, other = ([e for e in trace if e.kind == "fence" or e.place in shared] for trace in self.traces)
        return one, other


class Watched:
    """An array, or a view of memory, that records each access."""

    def __init__(self, recorder: Recorder, name: str, flat: Array, numbers: Array, is_view: bool) -> None:
        self._recorder, self._name, self._flat, self._numbers = recorder, name, flat, numbers
        self._is_view = is_view

    def __getitem__(self, index: Any) -> Any:
        numbers = self._numbers[index]
        if self._is_view and np.ndim(numbers):
            return Watched(self._recorder, self._name, self._flat, numbers, is_view=True)
        self._note("load", numbers)
        return self._flat[numbers]

    def __setitem__(self, index: Any, value: Any) -> None:
        numbers = self._numbers[index]
        self._flat[numbers] = value
        self._note("store", numbers)

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self._numbers)))

    def _note(self, kind: Literal["store", "load"], numbers: Any) -> None:
        for number in np.ravel(numbers).tolist():
            self._recorder.add(Event(kind, (self._name, number), float(self._flat[number])))

    def tolist(self) -> list[float]:
        values: list[float] = self[:].tolist()
        return values

    def view(self, _: Any) -> Watched:
        return self


def outcomes(
    traces: tuple[Trace, Trace], initial: dict[Place, float], words: Collection[str]
) -> set[tuple[Values, Values]]:
    """What the loads of data of both programs may give, where the loads of words give what was recorded.

    With another word a program does something else, so such an execution is left out.

    Args:
        traces: of the two programs.
        initial: values of all places.
        words: names of the places on which the course of a program depends.
    """
    places = sorted({event.place for trace in traces for event in trace if event.kind != "fence"})
    number_of = {place: number for number, place in enumerate(places)}
    earlier = [_earlier(trace) for trace in traces]
    start = ((0, 0), tuple(initial[place] for place in places), ((), ()))
    seen: set[Any] = {start}
    left: list[Any] = [start]
    found = set()
    while left:
        done, memory, loaded = left.pop()
        is_over = True
        for process, trace in enumerate(traces):
            for number, event in enumerate(trace):
                mine = done[process]
                if mine >> number & 1:
                    continue
                is_over = False
                if earlier[process][number] & ~mine:
                    continue
                after, values = memory, loaded
                if event.kind == "store":
                    at = number_of[event.place]
                    after = (*memory[:at], event.value, *memory[at + 1 :])
                elif event.kind == "load":
                    value = memory[number_of[event.place]]
                    if event.place[0] not in words:
                        own = tuple(sorted({*loaded[process], (number, value)}))
                        values = (own, loaded[1]) if process == 0 else (loaded[0], own)
                    elif value != event.value:
                        continue
                both = (mine | 1 << number, done[1]) if process == 0 else (done[0], mine | 1 << number)
                if (state := (both, after, values)) not in seen:
                    seen.add(state)
                    left.append(state)
        if is_over:
            found.add(tuple(tuple(value for _, value in own) for own in loaded))
    return found  # type: ignore[return-value]  # of two


def recorded_outcome(traces: tuple[Trace, Trace], words: Collection[str]) -> tuple[Values, Values]:
    """What the loads of data gave when the programs were run in turns."""
    one, other = (
        tuple(event.value for event in trace if event.kind == "load" and event.place[0] not in words)
        for trace in traces
    )
    return one, other


def _earlier(trace: Trace) -> list[int]:
    """For each event those that the processor completes before it, as bits."""
    found = []
    for number, event in enumerate(trace):
        bound = 0
        for before in range(number):
            if "fence" in (event.kind, trace[before].kind) or trace[before].place == event.place:
                bound |= 1 << before
        found.append(bound)
    return found
