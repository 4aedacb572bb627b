"""Whole runs with several learners per policy (row C-X2): how they train, end, and break."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from sf.errors import LearnerLost
from sf.run.preparation import prepare
from sf.run.supervisor import train_prepared
from sf.run.wiring import Shared
from sf.shared.progress import Phase
from sf.shared.records import learner_record
from sf.shared.role import RoleSpec
from tests.helpers.commands import EXPERIMENT, run, running, summary_of, wait_for_training
from tests.helpers.events import read_events
from tests.helpers.lab import make_config

SMALL = ("--env=CartPole-v1", "--num_workers=2", "--num_envs_per_worker=4", "--seed=1", "--num_learners=2")
INFERENCE = pytest.mark.parametrize("inference", ["--policy_workers_per_policy=1", "--policy_workers_per_policy=0"])
EIGHT_STEPS = ("--num_epochs=4", "--num_batches_per_epoch=2")
"""On each sampling round of 256 transitions."""
A2C = ("--async_rl=False", "--num_epochs=1", "--num_batches_per_epoch=1", "--batch_size=256")


@pytest.mark.more
@INFERENCE
def test_cx2_two_learners_train_and_end_well(tmp_path: Path, inference: str) -> None:
    finished = run(tmp_path, *SMALL, *EIGHT_STEPS, inference, "--train_for_env_steps=15000")
    assert finished.code == 0, finished.err
    assert finished.err == ""
    assert "learner-0-1" in finished.out
    policy = summary_of(tmp_path)["policies"][0]
    assert summary_of(tmp_path)["exit_reason"] == "train_for_env_steps reached"
    assert 15_000 <= summary_of(tmp_path)["frames"] < 16_000
    assert policy["policy_version"] == summary_of(tmp_path)["frames"] // 256 * 8
    assert policy["lag"]["max"] >= 0


@pytest.mark.more
@INFERENCE
def test_cx2_lag_is_zero_in_synchronous_mode(tmp_path: Path, inference: str) -> None:
    """No slot is free before the first learner has published, whichever learner it belongs to."""
    finished = run(tmp_path, *SMALL, *A2C, inference, "--train_for_env_steps=30000")
    assert finished.code == 0, finished.err
    curves = read_events(tmp_path / EXPERIMENT / ".summary" / "0")
    for name in ("min", "avg", "max"):
        assert {value for _, value in curves[f"train/version_diff_{name}"]} == {0.0}
    assert summary_of(tmp_path)["frames"] == summary_of(tmp_path)["policies"][0]["policy_version"] * 256


@pytest.mark.slow
def test_cx2_two_policies_with_two_learners_each(tmp_path: Path) -> None:
    finished = run(tmp_path, *SMALL, "--num_policies=2", "--use_rnn=True", "--train_for_env_steps=3000")
    assert finished.code == 0, finished.err
    assert all(policy["policy_version"] > 0 for policy in summary_of(tmp_path)["policies"])


@pytest.mark.more
def test_fault_h5_cx2_a_run_continues_with_another_number_of_learners(tmp_path: Path) -> None:
    frames, versions = 0, [0]
    for num_learners in (2, 1):
        frames += 2000
        flags = *EIGHT_STEPS, f"--num_learners={num_learners}", f"--train_for_env_steps={frames}"
        finished = run(tmp_path, *SMALL[:-1], *flags)
        assert finished.code == 0, finished.err
        versions.append(summary_of(tmp_path)["policies"][0]["policy_version"])
        assert frames <= summary_of(tmp_path)["frames"] < frames + 1000
        assert versions[-1] == summary_of(tmp_path)["frames"] // 256 * 8


def test_fault_h1_h7_no_port_is_opened(tmp_path: Path) -> None:
    """Learners meet in shared memory: no port can be in use, and nobody can connect to one."""
    with running(tmp_path, *SMALL) as command:
        wait_for_training(command)
        members = command.members()
        assert {"sf-learner-0", "sf-learner-0-1"} <= {member.cmdline()[0].split()[0] for member in members}
        assert [connection for member in members for connection in member.net_connections("inet")] == []
        command.process.send_signal(signal.SIGTERM)
        assert command.finish().code == 143


@pytest.mark.more
@pytest.mark.parametrize("victim", ["sf-learner-0", "sf-learner-0-1"])
def test_fault_h2_h6_cx2_killed_learner_ends_the_run_with_its_name(tmp_path: Path, victim: str) -> None:
    with running(tmp_path, *SMALL) as command:
        wait_for_training(command)
        (process,) = [found for found in command.named(victim) if found.cmdline()[0].split()[0] == victim]
        process.kill()
        started = time.monotonic()
        finished = command.finish()
    assert finished.code == 7
    assert time.monotonic() - started < 10
    assert "did not stop" not in finished.out + finished.err, "nobody had to be waited for"
    assert f"{victim.removeprefix('sf-')} (pid {process.pid}) was killed by SIGKILL" in finished.err
    saved = list((tmp_path / EXPERIMENT / "checkpoint_p0").glob("checkpoint_*"))
    assert bool(saved) == (victim == "sf-learner-0-1"), "the first learner saves what is left"


@pytest.mark.more
@pytest.mark.parametrize("victim", [pytest.param("learner-0", marks=pytest.mark.slow), "learner-0-1"])
def test_fault_h3_learner_that_hangs_is_named_and_not_the_one_that_waits_for_it(tmp_path: Path, victim: str) -> None:
    """With five seconds for an optimizer step instead of ten minutes."""
    config = make_config(
        train_dir=str(tmp_path), num_learners=2, num_workers=2, async_rl=True, train_for_env_steps=10**9,
        train_for_seconds=100,
    )  # fmt: skip
    prepared = prepare(replace(config, run=replace(config.run, serial_mode=False)))

    arenas, is_over = [], threading.Event()

    def with_short_limits(shared: Shared, specs: list[RoleSpec]) -> list[RoleSpec]:
        arenas.append(shared.arena)
        limits = {Phase.START: 60.0, Phase.STEP: 5.0, Phase.WAIT: 5.0}
        return [replace(spec, deadlines_s=limits) if spec.kind == "learner" else spec for spec in specs]

    def stop_it() -> None:
        while not is_over.wait(0.05):
            if arenas and learner_record(arenas[0], 0).read()["version"] > 0:
                for child in psutil.Process().children(recursive=True):
                    with contextlib.suppress(psutil.Error, IndexError):
                        if child.cmdline()[0].split()[0] == f"sf-{victim}":
                            child.suspend()
                            return

    thread = threading.Thread(target=stop_it)
    thread.start()
    try:
        with pytest.raises(
            LearnerLost, match=rf"{victim} \(pid \d+\) (was busy|did nothing at all) for longer than 5 s"
        ):
            train_prepared(prepared, change=with_short_limits)
    finally:
        is_over.set()
        thread.join()


@pytest.mark.more
def test_fault_h4_cx2_a_signal_lets_all_learners_finish_the_same_iteration(tmp_path: Path) -> None:
    with running(tmp_path, *SMALL, *EIGHT_STEPS) as command:
        wait_for_training(command)
        command.process.send_signal(signal.SIGTERM)
        finished = command.finish()
    assert finished.code == 143
    assert finished.err == ""
    assert summary_of(tmp_path)["policies"][0]["policy_version"] % 8 == 0
