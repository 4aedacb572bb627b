"""Serial mode: the same roles as in a run with many processes, stepped in turn in this one.

A role may have a thread of its own instead, see `sf.run.threads`; such a run does not repeat.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

from sf.console import share_what_is_told
from sf.machine.kernel import is_linux
from sf.processes.signals import Signals
from sf.processes.simulators import Simulators, marked
from sf.processes.telling import told_if_slow
from sf.run.threads import RoleThread
from sf.run.wiring import Shared
from sf.shared.role import Role, RoleSpec
from sf.shared.told import TOLD, Told

IDLE_S = 0.001


class SerialRoles:
    """Builds the roles here and gives each of them its turn, so that a run repeats bit by bit."""

    is_ready = True
    """`start` returns when every role is built."""
    has_news = False
    """A role rang: it has something that should not wait for the next look at the clock."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.roles: dict[str, Role] = {}
        self._in_turn: list[Role] = []
        self.messages: list[Any] = []
        self.simulators: Simulators | None = None
        self._threads: list[RoleThread] = []
        self._settings = contextlib.ExitStack()
        self._at_work: Role | None = None
        """Whose step has not come back."""

    def start(self, specs: Sequence[RoleSpec]) -> None:
        """Builds the roles, and goes on where a resumed run was; exceptions are raised as they are."""
        with told_if_slow("torch, the environments and the networks of a serial run"):
            roles = self._build(specs)
        self.roles = {spec.name: role for spec, role in zip(specs, roles, strict=True)}
        for role in roles:
            role.tell = self.messages.append
        self._in_turn = [role for spec, role in zip(specs, roles, strict=True) if not spec.has_thread]
        self._threads = [RoleThread(spec, self.roles[spec.name]) for spec in specs if spec.has_thread]

    def _build(self, specs: Sequence[RoleSpec]) -> list[Role]:
        import torch  # which a supervisor of processes does without

        from sf.run.resume_point import build_where_it_was

        # The program around it may be within torch.no_grad() or torch.inference_mode(), and finds all as it was.
        share_what_is_told(Told(self.shared.arena[TOLD]).is_first)
        self._settings.callback(share_what_is_told, bool)  # which lets the memory of the run go
        self._settings.enter_context(torch.inference_mode(False))
        self._settings.enter_context(torch.enable_grad())
        self._settings.callback(torch.set_num_threads, torch.get_num_threads())  # roles compute with one or few
        self._settings.callback(torch.set_default_dtype, torch.get_default_dtype())
        if is_linux():
            self.simulators = Simulators()
            self._settings.enter_context(marked(self.simulators.mark_of("serial", 0)))  # what environments start has it
        if any(spec.has_thread for spec in specs):
            return [spec.build() for spec in specs]  # which are never all between two steps
        return build_where_it_was(specs, self.shared.arena)

    def unready(self) -> str:
        """No role is built apart from the others."""
        return ""

    def take_messages(self) -> list[Any]:
        """Messages of the roles to the session since the last call."""
        messages = self.messages.copy()
        self.messages.clear()
        return messages

    def pids(self) -> dict[str, int]:
        """No processes but this one."""
        return {}

    def faults(self) -> dict[str, float]:
        """No role can be replaced."""
        return {}

    def advance(self, timeout_s: float, signals: Signals) -> None:
        """Steps the roles in turn for `timeout_s` seconds, until a role rings or a signal arrives."""
        deadline, bell = time.monotonic() + timeout_s, self.shared.supervisor_bell
        self.has_news = False
        while time.monotonic() < deadline and not self.has_news and not signals.received:
            progressed = False
            for thread in self._threads:
                thread.expect_well()
            for role in self._in_turn:
                role.record.lap("wait")  # for the others, which had their turn
                self._at_work = role
                progressed |= role.step()
            self._at_work = None
            self.has_news = bell.wait(0.0)
            if not progressed:
                time.sleep(IDLE_S)  # everything is learned and the session has not looked yet

    def ended_well(self, prefix: str) -> bool:
        """No role ends on its own here."""
        return True

    def stop(self, signals: Signals) -> list[str]:
        """Ends the roles in order; none is skipped because another one fails."""
        problems = []
        for thread in self._threads:
            thread.tell_to_stop()  # and be waited for when the policy is saved
        if self._at_work is not None:
            from sf.run.resume_point import drop_half_done

            drop_half_done(self.roles, self._at_work)
        in_threads = {thread.spec.name: thread for thread in self._threads}
        for name, role in self.roles.items():
            if name in in_threads and not in_threads[name].has_stopped():
                continue
            try:
                role.close()
            except Exception as error:
                problems.append(f"Closing {name} raised {type(error).__name__}: {error}")
        if self.simulators is not None:
            self.simulators.close()
        self._settings.close()
        return problems
