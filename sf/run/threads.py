"""Roles that work beside the others of their process, each in a thread of its own.

Operations of torch and waiting let other threads of the process go on, so a simulator in tensors can be stepped while
the learner trains. Roles share what they would share as processes, and nothing else.
"""

from __future__ import annotations

import threading

from sf.shared.role import Role

IDLE_S = 0.001
STOP_S = 20.0
"""The longest wait for the end of a step; a simulator that does not come back is left to the end of the process."""


class RoleThread:
    """Steps a role again and again, until it is told to stop or the role raises."""

    def __init__(self, name: str, role: Role) -> None:
        """Begins at once with a role that was built."""
        self.name, self._role = name, role
        self._is_over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def expect_well(self) -> None:
        """Raises what the role has raised."""
        if self._failure is not None:
            raise self._failure

    def stop(self) -> bool:
        """Waits for the end of the present step; False if it did not come."""
        self._is_over.set()
        self._thread.join(STOP_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                self._role.record.lap("wait")
                if not self._role.step():
                    self._is_over.wait(IDLE_S)
        except BaseException as error:
            self._failure = error
