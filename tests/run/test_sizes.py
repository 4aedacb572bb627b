"""Sizes that follow from a look at the environment."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sf.envs import EnvSource, probe_and_time, step_time
from sf.envs.step_time import Stopwatch
from sf.run.preparation import prepare
from tests.environments.toys import Toy
from tests.helpers.lab import make_config


def prepared_sizes(path: Path, **flags: Any) -> tuple[int | None, int | None, int | None]:
    config = make_config("tests.environments.fault:Fault-v0", train_dir=str(path), async_rl=True, **flags)
    rollout = prepare(config).config.rollout
    return rollout.num_workers, rollout.num_envs_per_worker, rollout.worker_num_splits


@pytest.mark.alone
def test_environment_that_waits_gets_more_workers_than_cores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the flags that are printed choose the same."""
    waits = {"env_kwargs": '{"step_s": 0.005}'}
    chosen = prepared_sizes(tmp_path, **waits, num_workers=None, num_envs_per_worker=None)
    assert chosen == (32, 2, 2)
    printed = capsys.readouterr().out
    assert re.search(r"One environment takes [56]\S+ us for a step, \S+ of them computing\. Chosen: ", printed), printed
    flags = {name: int(value) for name, value in re.findall(r"--(\w+)=(\d+)", printed)}
    assert prepared_sizes(tmp_path, **waits, **flags) == chosen
    assert "Chosen" not in capsys.readouterr().out, "nothing was left to choose"


COMPUTING = """
import time
from sf.envs.step_time import Stopwatch
watch = Stopwatch()
with watch.step():
    until = time.process_time() + 0.5
    while time.process_time() < until:
        pass
found = watch.result()
assert 0.45 < found.cpu_s < 0.6, found
assert not found.waits, found
"""


@pytest.mark.alone
def test_an_environment_on_a_busy_core_does_not_wait() -> None:
    """Two others want the core on which it computes."""
    on_one_core = f"import os; os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}})\n"
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            spinner = subprocess.Popen([sys.executable, "-c", f"{on_one_core}while True: pass"])
            stack.callback(stack.enter_context(spinner).kill)
        subprocess.run([sys.executable, "-c", on_one_core + COMPUTING], check=True)


class WithSimulator(Toy):
    """Waits in each step for a process that computes, and ends it when it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.simulator = subprocess.Popen([sys.executable, "-c", "while True: pass"])

    def step(self, action: Any) -> Any:
        time.sleep(0.02)
        return super().step(action)

    def close(self) -> None:
        self.simulator.kill()
        self.simulator.wait()


@pytest.mark.alone
def test_what_simulators_compute_in_a_first_look_counts() -> None:
    look = probe_and_time(EnvSource("Simulated", factory=WithSimulator), 0.5)
    assert look.step_time.cpu_s > 0.002


def test_only_the_wait_for_a_core_inside_a_call_is_no_time_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten calls of 5 ms, 1 of them computed and 2 lost to others; 7 ms between two of them, 4 of them lost."""
    clock = {"perf_counter": 100.0, "process_time": 10.0, "queued": 1.0}

    def pass_ms(wall: float, cpu: float, queued: float) -> None:
        for name, ms in zip(clock, (wall, cpu, queued), strict=True):
            clock[name] += ms / 1000

    with monkeypatch.context() as patch:
        for name in ("perf_counter", "process_time"):
            patch.setattr(time, name, partial(clock.get, name))
        patch.setattr(step_time, "queued_s", partial(clock.get, "queued"))
        patch.setattr(step_time, "_cpu_of_children_s", lambda: 0.0)
        watch = Stopwatch()
        for _ in range(10):
            with watch.step():
                pass_ms(5, 1, 2)
            pass_ms(7, 3, 4)
        found = watch.result()
    assert found.wall_s == pytest.approx(0.003)
    assert found.cpu_s == pytest.approx(0.001)


def test_a_first_step_that_compiles_is_no_step_time_and_resets_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine steps, of which the first one takes 10 s, and a reset of 0.9 s among them."""
    clock = {"now": 0.0}
    with monkeypatch.context() as patch:
        for name in ("perf_counter", "process_time"):
            patch.setattr(time, name, lambda: clock["now"])
        patch.setattr(step_time, "queued_s", lambda: 0.0)
        patch.setattr(step_time, "_cpu_of_children_s", lambda: 0.0)
        watch = Stopwatch()
        for seconds in (10.0, *[0.001] * 8):
            with watch.step():
                clock["now"] += seconds
        with watch.reset():
            clock["now"] += 0.9
        found = watch.result()
    assert found.wall_s == pytest.approx(0.101)
    assert found.cpu_s == pytest.approx(0.101)


@pytest.mark.alone
def test_what_simulators_compute_counts() -> None:
    """An environment that waits for a process which computes does not wait."""
    watch = Stopwatch(copies=10)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as simulator:
        try:
            with watch.step():
                time.sleep(1.0)
            found = watch.result()
        finally:
            simulator.kill()
    assert 0.09 < found.wall_s < 0.12
    assert found.cpu_s > 0.02
    assert found.waiting < 5
