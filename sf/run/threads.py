"""Roles that work beside the others of their process, each in a thread of its own.

Operations of torch and waiting let other threads of the process go on, so a simulator in tensors can be stepped while
the learner trains. Roles share what they would share as processes, and nothing else.
"""

from __future__ import annotations

import faulthandler
import threading
import time

from sf.console import Console
from sf.errors import EnvError
from sf.processes.hangs import HangWatch
from sf.run.place import how_it_hangs
from sf.shared.role import Role, RoleSpec

IDLE_S = 0.001
STOP_S = 20.0
"""The longest wait for the end of a step; a simulator that does not come back is left to the end of the process."""


class RoleThread:
    """Steps a role again and again, until it is told to stop or the role raises."""

    def __init__(self, spec: RoleSpec, role: Role) -> None:
        """Begins at once with a role that was built."""
        self.spec, self._role = spec, role
        self._watch = HangWatch(role.record.progress, spec.deadlines_s, time.monotonic())
        self._is_over = threading.Event()
        self._hangs = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=spec.name, daemon=True)
        self._thread.start()

    def expect_well(self) -> None:
        """Looks at it, without waiting.

        Raises:
            BaseException: what the role has raised.
            EnvError: it hangs; nothing ends a thread.
        """
        if self._failure is not None:
            raise self._failure
        if hang := self._watch.look(time.monotonic()):
            self._hangs = True
            Console().line(f"{self.spec.name} {how_it_hangs(hang, self.spec)}. The stacks of its process follow.")
            faulthandler.dump_traceback()
            raise EnvError(
                f"{self.spec.name} {how_it_hangs(hang, self.spec)}. It is a thread, which cannot be replaced: "
                "--vectorization=native takes processes."
            )

    def tell_to_stop(self) -> None:
        """Its present step is the last one."""
        self._is_over.set()

    def has_stopped(self) -> bool:
        """Waits for the end of the present step; False, with a line about it, if that does not come."""
        self._is_over.set()
        self._thread.join(0.0 if self._hangs else STOP_S)
        if self._thread.is_alive() and not self._hangs:
            Console().line(f"{self.spec.name} has not come back from its step within {STOP_S:g} s, and is left behind.")
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                self._role.record.lap("wait")
                if not self._role.step():
                    self._is_over.wait(IDLE_S)
        except BaseException as error:
            self._failure = error
