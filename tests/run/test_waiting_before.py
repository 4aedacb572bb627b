"""Whatever is waited for before a run is told, and an environment that hangs is refused with its call and its stack."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import numpy as np
import pytest

from sf.envs import EnvSource, register_env
from sf.errors import EnvError
from sf.processes import disposable
from sf.processes.calls import Calls, Limit
from sf.processes.disposable import told_if_slow
from sf.run.first_look import look_in_child
from sf.run.preparation import prepare
from sf.shared.progress import Phase, Progress
from tests.environments.hanging import Hanging
from tests.helpers.lab import make_config

SHORT = {
    "constructor": {"env_init_timeout": 0.3},
    "reset": {"env_reset_timeout": 0.6},
    "step": {"env_step_timeout": 0.7},
    "close": {"env_reset_timeout": 0.6},
}
"""Limits of the calls that hang; the others may take their time on a machine that is busy."""


@pytest.mark.parametrize(
    ("where", "told"),
    [
        (
            "constructor",
            r"the constructor of Hangs has not returned for 0\.9 s\. .*3 times --env_init_timeout=0\.3\.",
        ),
        ("reset", r"reset\(\) of Hangs has not returned for 0\.6 s\. .*or raise the limit, --env_reset_timeout=0\.6\."),
        ("step", r"step\(\) of Hangs has not returned for 0\.7 s\. .*or raise the limit, --env_step_timeout=0\.7\."),
        ("close", r"close\(\) of Hangs has not returned for 0\.6 s\. .*or raise the limit, --env_reset_timeout=0\.6\."),
    ],
)
def test_a_call_that_hangs_is_noted_and_refused_with_its_stack(
    where: str, told: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(disposable, "NOTE_S", 0.0)
    monkeypatch.setattr(disposable, "NEXT_NOTE_S", 0.0)
    monkeypatch.setattr(disposable, "LOOK_S", 0.1)
    source = EnvSource("Hangs", {"where": where, "terminated": True}, Hanging)
    config = make_config("Hangs", num_envs_per_worker=1, **SHORT[where])
    with pytest.raises(EnvError, match=f"^A first look at Hangs: {told}"):
        look_in_child(config, source)
    printed = capfd.readouterr()
    call = "the constructor" if where == "constructor" else rf"{where}\(\)"
    assert re.search(
        rf"A first look at Hangs waits for {call} of Hangs \(\d+ s so far of at most 0\.\d s, ", printed.out
    )
    assert "hangs. Its stacks follow." in printed.out
    assert "in hang_in" in printed.err


def test_limits_are_those_of_one_call() -> None:
    """And not those of all of them together: each time that the word changes the clock begins anew."""
    progress = Progress(np.zeros(1, np.int64), 0)
    calls = Calls(progress, "Slow", {Phase.STEP: Limit(10.0, "--flag")}, 0.0)
    now_s = 0.0
    for step in range(5):
        progress.enter(Phase.STEP, step)
        for _ in range(9):
            now_s += 1.0
            assert calls.late(now_s) == ""
    assert calls.doing(now_s) == "step() of Slow, environment 4, (8 s so far of at most 10 s, --flag)"
    for _ in range(3):
        now_s += 1.0
        late = calls.late(now_s)
    assert late == (
        "step() of Slow, environment 4, has not returned for 10 s. Check it on its own, or raise the limit, --flag."
    )
    progress.enter(Phase.RESET)
    assert calls.late(now_s + 1.0) == ""
    assert calls.doing(now_s + 1.0) == "reset() of Slow (0 s so far)"


def test_work_in_this_process_that_is_slow_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with told_if_slow("something quick"):
        pass
    monkeypatch.setattr(disposable, "NOTE_S", 0.0)
    before = set(threading.enumerate())
    with told_if_slow("something slow"):
        for thread in set(threading.enumerate()) - before:
            thread.join()
    printed = capsys.readouterr().out
    assert "Waiting for something slow." in printed
    assert "quick" not in printed


def test_a_run_looks_in_this_way(tmp_path: Path) -> None:
    register_env("Hangs", Hanging)
    config = make_config("Hangs", env_kwargs='{"where": "step"}', train_dir=str(tmp_path), **SHORT["step"])
    with pytest.raises(EnvError, match=r"step\(\) of Hangs has not returned for 0\.7 s"):
        prepare(config)
