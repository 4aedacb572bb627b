"""Whatever is waited for before a run is told, and an environment that hangs is refused with its call and its stack."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

from sf.envs import EnvSource, register_env
from sf.errors import EnvError
from sf.processes import disposable, telling
from sf.processes.calls import Calls, Limit
from sf.run.first_look import _LookProgress, look_in_child
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
    monkeypatch.setattr(telling, "FIRST_S", 0.0)
    monkeypatch.setattr(disposable, "LOOK_S", 0.1)
    source = EnvSource("Hangs", {"where": where, "terminated": True}, Hanging)
    ((limit, _),) = SHORT[where].items()
    config = make_config("Hangs", num_envs_per_worker=1, **SHORT[where])
    with pytest.raises(EnvError, match=f"^A first look at Hangs: {told}"):
        look_in_child(config, source)
    printed = capfd.readouterr()
    call = {"constructor": "the constructor", "step": "step 1 of 8"}.get(where, rf"{where}\(\)")
    taken = rf"The present call has taken \d+ s of at most 0\.\d s, .*{limit}"
    assert re.search(rf"Looking at Hangs: {call}, \d+ s so far\. {taken}", printed.out)
    assert "hangs. Its stacks follow." in printed.out
    assert "in hang_in" in printed.err


class Exits(Hanging):
    """Ends its process at a call instead."""

    def hang_in(self, call: str) -> None:
        if call == self.where:
            os._exit(3)


@pytest.mark.parametrize(("where", "call"), [("reset", r"reset\(\)"), ("step", "step 1 of 8")])
def test_the_call_that_ends_the_process_is_told(where: str, call: str) -> None:
    source = EnvSource("Exits", {"where": where, "terminated": True}, Exits)
    with pytest.raises(EnvError, match=rf"^A first look at Exits failed: .* exited with code 3 during {call}\.$"):
        look_in_child(make_config("Exits", num_envs_per_worker=1), source)


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
    assert calls.told(now_s) == (
        "Looking at Slow: step() of environment 4, 45 s so far. The present call has taken 8 s of at most 10 s, --flag."
    )
    for _ in range(3):
        now_s += 1.0
        late = calls.late(now_s)
    assert late == (
        "step() of Slow, environment 4, has not returned for 10 s. Check it on its own, or raise the limit, --flag."
    )
    progress.enter(Phase.RESET)
    assert calls.late(now_s + 1.0) == ""
    assert calls.told(now_s + 1.0).endswith("reset(), 49 s so far. The present call has taken 0 s.")


def test_a_look_says_which_step_of_how_many_goes_on() -> None:
    """And not where there are more, nor in another call; the step of an environment that is made later is its own."""
    words, steps = np.zeros(1, np.int64), np.zeros(1, np.int64)
    progress = _LookProgress(words, steps)
    calls = Calls(Progress(words, 0), "Slow", {}, 0.0, steps, num_steps=8)
    assert calls.told(1.0).startswith("Looking at Slow: the start of its process, 1 s so far.")
    for phase, told in (
        (Phase.INIT, "the constructor"),
        (Phase.RESET, "reset()"),
        *((Phase.STEP, f"step {step} of 8") for step in range(1, 9)),
        (Phase.STEP, "step 9"),
        (Phase.RESET, "reset()"),
        (Phase.STEP, "step 10"),
    ):
        progress.enter(phase)
        calls.late(11.0)
        assert calls.told(11.0) == f"Looking at Slow: {told}, 11 s so far. The present call has taken 0 s."
    progress.enter(Phase.INIT, 1)
    calls.late(11.0)
    assert "the constructor of environment 1, 11 s so far" in calls.told(11.0)
    progress.enter(Phase.STEP, 1)
    calls.late(11.0)
    assert "step 1 of 8" in calls.told(11.0)


def test_a_run_looks_in_this_way(tmp_path: Path) -> None:
    register_env("Hangs", Hanging)
    config = make_config("Hangs", env_kwargs='{"where": "step"}', train_dir=str(tmp_path), **SHORT["step"])
    with pytest.raises(EnvError, match=r"step\(\) of Hangs has not returned for 0\.7 s"):
        prepare(config)
