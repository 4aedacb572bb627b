"""`sf.vector_env` where environments break, their workers die, or what it is given does not fit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from gymnasium import spaces

import sf
from sf.errors import EnvCrashed, EnvError, UsageError
from sf.tools.vector import workers as vector_workers
from tests.tools.vector.test_vector_env import Breaking, Counting


@pytest.mark.more
@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("raise", r"Breaking, environment 2: step\(\) raised RuntimeError: no more fuel"),
        ("kill", "are lost: envs-1 .* was killed by SIGKILL"),
        ("hang", r"has not answered for 1 s: step of environment 2\. Check it"),
    ],
)
def test_an_environment_that_breaks_is_told_and_all_workers_end(how: str, told: str) -> None:
    ours = sf.vector_env(Breaking, num_envs=4, num_workers=2, timeout_s=60, how=how)
    ours._timeout_s = 1.0 if how == "hang" else 60.0
    ours.reset()
    kind = EnvError if how == "hang" else EnvCrashed
    with pytest.raises(kind, match=told):
        ours.step(np.array([0, 0, 1, 0]))
    assert ours.closed
    assert not [one for one in psutil.Process().children() if one.name().startswith("sf-envs")]


@pytest.mark.parametrize("call", ["reset", "step"])
def test_a_worker_that_has_died_is_told_by_the_next_call(call: str) -> None:
    ours = sf.vector_env("CartPole-v1", num_envs=4, num_workers=2)
    ours.reset()
    os.kill(ours._children[1].pid, signal.SIGKILL)
    with pytest.raises(EnvCrashed, match=r"are lost: envs-1 .* was killed by SIGKILL"):
        ours.reset() if call == "reset" else ours.step(np.zeros(4, int))
    assert ours.closed


class Secretive(Breaking):
    """Its info is for its own process."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(2, np.float32), 0.0, True, False, {"how": lambda: 1}


@pytest.mark.more
def test_an_info_that_cannot_be_sent_names_its_environment() -> None:
    ours = sf.vector_env(Secretive, num_envs=2, num_workers=2)
    ours.reset()
    with pytest.raises(EnvError, match=r"Secretive, environment [01]: its info cannot be sent"):
        ours.step(np.zeros(2, int))


@pytest.mark.more
def test_what_does_not_fit_is_refused() -> None:
    number: Any
    for number in (0, 2.5, "4", True):
        with pytest.raises(UsageError, match=f"num_envs={number!r}, expected a whole number above 0"):
            sf.vector_env("CartPole-v1", num_envs=number)
    with pytest.raises(UsageError, match=r"sf\.vector_env was given None, expected an id, a class or a function"):
        sf.vector_env(None)  # type: ignore[arg-type]
    lock = threading.Lock()
    with pytest.raises(EnvError, match="It must not hold locks, open files or processes"):
        sf.vector_env(lambda: (Counting(), lock)[0])
    with pytest.raises(EnvError, match="CartPole-v1"):
        sf.vector_env("CartPol-v1")
    with pytest.raises(EnvError, match=r"has actions Dict.*Flatten them"):
        sf.vector_env(Counting, action_space=spaces.Dict({"a": spaces.Discrete(2)}))
    ours = sf.vector_env("CartPole-v1", num_envs=2)
    try:
        with pytest.raises(UsageError, match="before the first reset"):
            ours.step(np.zeros(2, int))
        seed: Any
        for seed in (-3, 1.5, "abc", [1, -1]):
            with pytest.raises(UsageError, match="expected a whole number from 0 on, or None"):
                ours.reset(seed=seed)
        with pytest.raises(UsageError, match="options=3, expected a dict"):
            ours.reset(options=3)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="a reset_mask, but all environments begin together here"):
            ours.reset(options={"reset_mask": np.array([True, False])})
        ours.reset()
        with pytest.raises(UsageError, match=r"actions int64\[3\], expected int64\[2\]"):
            ours.step(np.zeros(3, int))
        with pytest.raises(UsageError, match=r"actions float64\[2\]"):
            ours.step(np.zeros(2))
    finally:
        ours.close()


def test_a_script_without_main_guard_is_told(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sf\nsf.vector_env('CartPole-v1', num_envs=2)\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert 'if __name__ == "__main__":' in done.stderr


class Forgetful(Breaking):
    """Starts a program that ends soon, and whose parent has ended before."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action:
            subprocess.run(["sh", "-c", "sleep 0.1 &"], check=True)
        return np.zeros(2, np.float32), 0.0, False, False, {}


@pytest.mark.more
def test_fault_a14_what_environments_leave_behind_is_reaped_while_they_are_stepped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vector_workers, "REAP_S", 0.05)
    ours = sf.vector_env(Forgetful, num_envs=2, num_workers=1)
    try:
        ours.reset()
        ours.step(np.ones(2, int))
        deadline_s = time.monotonic() + 20

        def left() -> list[psutil.Process]:
            return [child for child in psutil.Process().children() if child.status() == psutil.STATUS_ZOMBIE]

        time.sleep(0.3)  # until both have ended
        while left():
            assert time.monotonic() < deadline_s, left()
            ours.step(np.zeros(2, int))
    finally:
        ours.close()
