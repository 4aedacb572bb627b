"""The evaluation of the last policy, after the end of all other roles. Imports no torch, as the main process."""

from __future__ import annotations

import time
from dataclasses import replace
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

from sf.console import Console
from sf.errors import SfError
from sf.machine.kernel import is_linux
from sf.processes.disposable import DisposableChild, in_disposable_child
from sf.processes.signals import Signals
from sf.shared.role import RoleSpec

if TYPE_CHECKING:
    from sf.evaluator.worker import Evaluator

WHAT = "The evaluation of the last policy"
LAST_EVALUATION_S = 60.0
"""The longest that a run waits for it; sf-eval has no limit."""


def evaluate_last(spec: RoleSpec, signals: Signals) -> list[Any]:
    """The evaluation of the last policy; nothing if it fails, takes too long, or a signal cuts it short.

    Args:
        spec: of the evaluator, which has ended.
        signals: those that arrive from now on skip the evaluation.
    """
    console, num_signals = Console(), len(signals.received)
    limit = f", for {LAST_EVALUATION_S:.0f} s at most; a signal skips it" if is_linux() else ""
    console.line(f"Evaluating the last policy{limit}.")
    deadline = time.monotonic() + LAST_EVALUATION_S
    child: DisposableChild | None = None
    try:
        if not is_linux():
            return in_disposable_child(_play, spec, what=WHAT)
        child = DisposableChild(WHAT, _play, spec)
        while (left_s := deadline - time.monotonic()) > 0 and len(signals.received) == num_signals:
            if set(child.waitables()) & set(connection.wait([*child.waitables(), signals.fileno()], timeout=left_s)):
                messages: list[Any] = child.result()
                return messages
            signals.clear()
        console.line("The last policy was not evaluated; sf-eval does it.")
    except (SfError, OSError) as error:  # the run itself has ended well
        console.line(f"The last policy was not evaluated: {error}")
    finally:
        if child is not None:
            child.kill()
    return []


def _play(spec: RoleSpec) -> list[Any]:
    """In a process of its own."""
    messages: list[Any] = []
    last = replace(spec, arguments=spec.arguments | {"is_last": True})
    evaluator: Evaluator = last.build()  # type: ignore[assignment]  # a Role
    evaluator.tell = messages.append
    evaluator.play_at_once()
    evaluator.close()
    return messages
