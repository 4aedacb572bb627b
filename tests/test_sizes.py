"""Sizes that follow from a look at the environment."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sf.envs.step_time import Stopwatch
from sf.supervisor import prepare
from tests.lab import make_config


def prepared_sizes(path: Path, **flags: Any) -> tuple[int | None, int | None, int | None]:
    config = make_config("tests.fault_envs:Fault-v0", train_dir=str(path), async_rl=True, **flags)
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
    assert capsys.readouterr().out == "", "nothing was left to choose"


@pytest.mark.alone
def test_what_simulators_compute_counts() -> None:
    """An environment that waits for a process which computes does not wait."""
    watch = Stopwatch()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as simulator:
        try:
            with watch.running():
                time.sleep(1.0)
            watch.steps = 10
            found = watch.result()
        finally:
            simulator.kill()
    assert 0.1 <= found.wall_s < 0.12
    assert found.cpu_s > 0.02
    assert found.waiting < 5
