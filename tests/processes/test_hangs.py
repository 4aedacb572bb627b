"""Processes that live and do not get on: who is blamed, and who is not."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from sf.processes.hangs import HangWatch
from sf.run.callbacks import Callbacks, Iteration
from sf.run.preparation import prepare
from sf.run.reasons import ExitReason
from sf.run.supervisor import train, train_prepared
from sf.run.wiring import Shared
from sf.shared.progress import Phase, Progress
from sf.shared.role import RoleSpec
from tests.helpers.commands import (
    ROOT,
    command_of,
    fault_run,
    running,
    start_slowly,
    wait_for_training,
)
from tests.helpers.lab import make_config


@pytest.mark.more
def test_fault_b1_constructor_that_takes_longer_than_workers_may_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    prepare(make_config("tests.environments.fault:Fault-v0", env_kwargs='{"init_s": 1.2}', env_init_timeout=1))
    told = r"Warning: the constructor of Fault-v0 took [\d.]+ s, and .* --env_init_timeout=1 are replaced"
    assert re.search(told, capsys.readouterr().out)


@pytest.mark.more
def test_fault_b1_b3_worker_that_hangs_while_it_makes_environments(tmp_path: Path) -> None:
    """Starting, which takes longer than the limit here, is no time of an environment."""
    start_slowly(tmp_path, 4.5)
    flags = *fault_run(tmp_path)[:-1], "--env_init_timeout=3"
    with running(tmp_path, *flags, python_path=f"{tmp_path}:{ROOT}") as command:
        wait_for_training(command)
        (tmp_path / "orders" / "init-hang").touch()
        command.named("sf-rollout-0")[0].kill()
        command.wait_for_text("Restart 2 of rollout-0")
        command.process.terminate()
        finished = command.finish()
    assert finished.code == 143, finished.err
    blamed = re.findall(r"(\S+) \(pid \d+\) took longer than (.*?) \(--env_init_timeout\), and was", finished.out)
    assert [who for who, _ in blamed] == ["rollout-0"]
    assert re.fullmatch(r"3 s to make environment \d", blamed[0][1])


@pytest.mark.slow
def test_fault_b1_hang_is_seen_however_long_callbacks_take(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """However long a callback takes, a hang counts one second of it, as of any time without a look."""
    (tmp_path / "step-hang").touch()
    arguments = json.dumps({"orders": str(tmp_path), "step_s": 0.005})
    config = make_config(
        "tests.environments.fault:Fault-v0", env_kwargs=arguments, train_dir=str(tmp_path / "runs"), num_workers=2,
        async_rl=True, env_step_timeout=4.0, train_for_env_steps=10**9, train_for_seconds=60,
    )  # fmt: skip
    looks = 0

    def slow(_: Iteration) -> bool:
        nonlocal looks
        looks += 1
        time.sleep(3.0)
        return looks == 10

    assert train(replace(config, run=replace(config.run, serial_mode=False)), Callbacks(on_iteration=slow)).code == 0
    told = capfd.readouterr().out
    assert re.search(r"took longer than 4 s to step environment \d+ \(--env_step_timeout\)\. Its stacks follow", told)
    assert "Restart 1 of rollout-" in told


def test_fault_a13_b1_b3_of_time_in_which_nobody_looked_a_second_counts() -> None:
    """Whoever waited for the supervisor to read a pipe gets on as soon as it does."""
    progress = Progress(np.zeros(1, np.int64), 0)
    progress.enter(Phase.STEP)
    watch = HangWatch(progress, {Phase.STEP: 60.0}, 0.0)
    assert watch.look(0.1) is None
    assert watch.look(1000.0) is None
    progress.enter(Phase.STEP)
    assert watch.look(1000.1) is None
    times = [1000.1 + 600.0 * gap for gap in range(1, 61)]
    assert not any(watch.look(now) for now in times), "60 looks, each after ten minutes"
    hang = watch.look(times[-1] + 0.2)
    assert hang is not None
    assert (hang.phase, hang.deadline_s) == (Phase.STEP, 60.0)


@pytest.mark.more
def test_fault_b1_inference_worker_that_does_nothing_at_all_is_replaced(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whoever waits looks around every now and then; one that was stopped does not."""
    config = make_config(train_dir=str(tmp_path), train_for_env_steps=10**9, train_for_seconds=60)
    prepared = prepare(replace(config, run=replace(config.run, serial_mode=False)))
    stopped: list[int] = []
    frames = 0

    def stop_one(iteration: Iteration) -> bool:
        nonlocal frames
        if not stopped:
            (victim,) = (one for one in psutil.Process().children(recursive=True) if "sf-inference" in command_of(one))
            victim.suspend()
            stopped.append(victim.pid)
            frames = iteration.frames
        return iteration.frames > frames + 2000

    def change(_: Shared, specs: list[RoleSpec]) -> list[RoleSpec]:
        soon = {Phase.STEP: 5.0, Phase.WAIT: 5.0}
        return [replace(spec, deadlines_s=soon) if spec.kind == "inference" else spec for spec in specs]

    end = train_prepared(prepared, Callbacks(on_iteration=stop_one), change)
    assert end.reason == ExitReason.CALLBACK.value
    told = capfd.readouterr().out
    assert re.search(rf"inference-0-0 \(pid {stopped[0]}\) .* for longer than 5 s.*\. Its stacks follow\.", told)
    assert "Restart 1 of inference-0-0 follows" in told
