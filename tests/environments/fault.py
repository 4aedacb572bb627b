"""Environments that misbehave on order, for the tests of what happens then.

The order is a file: whoever finds it renames it first, so that one fault happens once, in whichever process comes by,
and its successors are well.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np


def _spin() -> None:
    """For years in C, with the lock of the interpreter held, so that no other thread of Python runs."""
    re.match(r"(a+)+$", "a" * 100 + "b")


def _ignore_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(1000)


def _sleepers(forks: bool) -> None:
    """In every shape that simulators come in: programs, shells around them, forks; in the group and out of it."""
    program = [sys.executable, "-c", "import time; time.sleep(1000)"]
    for is_alone in (False, True):
        subprocess.Popen(program, start_new_session=is_alone)
        subprocess.Popen("sleep 1000; true", shell=True, start_new_session=is_alone)
        if forks and os.fork() == 0:
            if is_alone:
                os.setsid()
            time.sleep(1000)
            os._exit(0)


SLEEPERS = 8
"""How many processes that makes: a shell has a child."""


def _fill() -> None:
    held = []
    while True:
        held.append(np.ones(2**20))


is_forked = False
"""Set by a test in its own process; whoever was forked from it has it too."""


class Unpicklable(Exception):
    """Neither shown nor sent."""

    def __init__(self, lock: Any):
        self.lock = lock

    def __reduce__(self) -> Any:
        raise RuntimeError("not sent")

    def __str__(self) -> str:
        raise RuntimeError("not shown")

    __repr__ = __str__


def _raise(error: BaseException) -> None:
    raise error


FAULTS: dict[str, Callable[[], object]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(0),
    "sys_exit": lambda: sys.exit(0),
    "segfault": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "raise": lambda: _raise(ValueError("the simulator is unwell")),
    "shout": lambda: _raise(ValueError("x" * 2**20)),
    "unpicklable": lambda: _raise(Unpicklable(object())),
    "hang": lambda: time.sleep(1000),
    "spin": _spin,
    "ignore_sigterm": _ignore_sigterm,
    "fill": _fill,
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
}


class FaultEnv(gym.Env[Any, Any]):
    """Counts its steps; four numbers are seen, an episode lasts 20 steps and each is worth 1.

    Args:
        orders: directory with files named after the call in which the fault is due and the fault, such as `step-kill`.
        sleepers: start processes that sleep.
        forks: some of them forks of this one.
        thread: start a thread that does not end.
        init_s: how long the constructor takes.
        reset_s: how long a reset takes.
        step_s: how long a step waits.
        close_s: how long it takes to close.
        refuse_fork: do not live in a process that was forked from one where `is_forked` is set.
        cgroup: directory of a control group to live in.
        ballast: text that is only carried along.
    """

    observation_space = gym.spaces.Box(-1e6, 1e6, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(
        self,
        orders: str = "",
        sleepers: bool = False,
        forks: bool = True,
        thread: bool = False,
        init_s: float = 0.0,
        reset_s: float = 0.0,
        step_s: float = 0.0,
        close_s: float = 0.0,
        refuse_fork: bool = False,
        cgroup: str = "",
        ballast: str = "",
    ):
        assert not (refuse_fork and is_forked), "this process was forked"
        if cgroup:
            Path(cgroup, "cgroup.procs").write_text(str(os.getpid()))
        self.orders, self.reset_s, self.step_s, self.close_s = orders, reset_s, step_s, close_s
        self.steps, self.again = 0, dict[str, str]()
        time.sleep(init_s)
        self.obey("init")
        if sleepers:
            _sleepers(forks)
        if thread:
            threading.Thread(target=time.sleep, args=(1000,)).start()

    def obey(self, call: str) -> None:
        """Does what is ordered for this call: once, `twice` in a row by the same environment, or `always`."""
        if call in self.again:
            FAULTS[self.again.pop(call)]()
        if not self.orders or (self.steps < 40 and call == "step"):
            return
        for order in Path(self.orders).glob(f"{call}-*"):
            name = order.name.removeprefix(f"{call}-")
            if name.startswith("always-"):
                name = name.removeprefix("always-")
            else:
                try:
                    order.rename(order.with_name(f"done-{call}-{name}-{os.getpid()}"))
                except FileNotFoundError:
                    continue  # somebody else was faster
                if name.startswith("twice-"):
                    name = self.again[call] = name.removeprefix("twice-")
            FAULTS[name]()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if self.steps:
            self.obey("reset")
        if self.reset_s:
            self.note("resets")
            time.sleep(self.reset_s)
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.obey("step")
        if self.step_s:
            time.sleep(self.step_s)
        self.steps += 1
        return self._seen(), 1.0, self.steps % 20 == 0, False, {}

    def close(self) -> None:
        self.note("closed")
        if self.steps > 40:  # not when somebody has only a first look
            time.sleep(self.close_s)

    def note(self, what: str) -> None:
        """Leaves a file beside the orders."""
        if self.orders:
            Path(self.orders, f"{what}-{os.getpid()}-{id(self)}").touch()

    def _seen(self) -> Any:
        return np.full(4, self.steps, np.float32)


gym.register("Fault-v0", entry_point="tests.environments.fault:FaultEnv", max_episode_steps=None)


class ForksAndDies(gym.Env[Any, Any]):
    """What it has forked holds the pipes of its process open."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        os.abort()


gym.register("ForksAndDies-v0", entry_point="tests.environments.fault:ForksAndDies")
