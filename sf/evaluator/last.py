"""The evaluation of the last policy and its film, after the end of all other roles. Imports no torch.

A film of a short run is seldom complete before the run ends, because the evaluator rests between its steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

from sf.console import Console
from sf.errors import SfError
from sf.machine.kernel import is_linux
from sf.processes.child import Begin, spawned
from sf.processes.disposable import DisposableChild, in_disposable_child
from sf.processes.signals import Signals
from sf.shared.role import RoleSpec

if TYPE_CHECKING:
    from sf.evaluator.worker import Evaluator

LAST_S = 60.0
"""The longest that a run waits for each; sf-eval and sf-enjoy have no limit."""


def evaluate_last(spec: RoleSpec, signals: Signals, begin: Begin = spawned) -> list[Any]:
    """The evaluation of the last policy; nothing if it fails, takes too long, or a signal cuts it short.

    Args:
        spec: of the evaluator, which has ended.
        signals: those that arrive from now on skip the evaluation.
        begin: starts the process.
    """
    return _in_time(_EVALUATION, spec, signals, begin)


def film_last(spec: RoleSpec, signals: Signals, begin: Begin = spawned) -> None:
    """A film of the last policy, under the same conditions."""
    _in_time(_FILM, spec, signals, begin)


@dataclass(frozen=True)
class _Work:
    """Something that the evaluator does at once, and how it is told."""

    function: Callable[[RoleSpec], list[Any]]
    what: str
    begins: str
    failed: str
    command: str
    """The command that does the same later."""


def _in_time(work: _Work, spec: RoleSpec, signals: Signals, begin: Begin) -> list[Any]:
    console, num_signals = Console(), len(signals.received)
    limit = f", for {LAST_S:.0f} s at most; a signal skips it" if is_linux() else ""
    console.line(f"{work.begins}{limit}.")
    deadline = time.monotonic() + LAST_S
    child: DisposableChild | None = None
    try:
        if not is_linux():
            return in_disposable_child(work.function, spec, what=work.what)
        child = DisposableChild(work.what, work.function, spec, begin=begin)
        while (left_s := deadline - time.monotonic()) > 0 and len(signals.received) == num_signals:
            if set(child.waitables()) & set(connection.wait([*child.waitables(), signals.fileno()], timeout=left_s)):
                messages: list[Any] = child.result()
                return messages
            signals.clear()
        console.line(f"{work.failed}; {work.command} does it.")
    except (SfError, OSError) as error:  # the run itself has ended well
        console.line(f"{work.failed}: {error}")
    finally:
        if child is not None:
            child.kill()
    return []


def _play(spec: RoleSpec) -> list[Any]:
    """In a process of its own."""
    messages: list[Any] = []
    evaluator = _evaluator(spec)
    evaluator.tell = messages.append
    evaluator.play_at_once()
    evaluator.close()
    return messages


def _film(spec: RoleSpec) -> list[Any]:
    """In a process of its own."""
    config = spec.arguments["config"]
    config = replace(config, evaluation=replace(config.evaluation, eval_episodes=1))  # no environments beside that one
    evaluator = _evaluator(replace(spec, arguments=spec.arguments | {"config": config}))
    evaluator.film_at_once()
    evaluator.close()
    return []


def _evaluator(spec: RoleSpec) -> Evaluator:
    last = replace(spec, arguments=spec.arguments | {"is_last": True})
    evaluator: Evaluator = last.build()  # type: ignore[assignment]  # a Role
    return evaluator


_EVALUATION = _Work(
    _play, "The evaluation of the last policy", "Evaluating the last policy", "The last policy was not evaluated",
    "sf-eval",
)  # fmt: skip
_FILM = _Work(
    _film, "The film of the last policy", "Filming the last policy", "The last policy was not filmed", "sf-enjoy"
)
