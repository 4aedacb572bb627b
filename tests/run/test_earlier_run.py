"""Runs that find an earlier one in their directory: they continue it, set it aside, or are refused."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest

from sf.cli.train import _next_steps
from sf.config import RunConfig
from sf.errors import ExitCode
from sf.storage.experiment import OVERWRITTEN
from sf.storage.unsaved import frames_not_saved
from tests.helpers.commands import (
    CARTPOLE,
    EXPERIMENT,
    fault_run,
    run,
    running,
    summary_of,
    wait_for_first_step,
)
from tests.helpers.events import read_events
from tests.run.test_run import SMALL


@pytest.mark.more
def test_fault_a10_killed_run_leaves_no_summary_of_an_earlier_one(tmp_path: Path) -> None:
    assert run(tmp_path, *SMALL, "--train_for_env_steps=500").code == 0
    assert summary_of(tmp_path)["exit_code"] == 0
    with running(tmp_path, *SMALL) as command:
        command.wait_for_text("Fps is")
        command.process.kill()
        command.process.wait()
    assert not (tmp_path / EXPERIMENT / "summary.json").exists()


@pytest.mark.more
def test_resume_continues_counters_and_schedule(tmp_path: Path) -> None:
    run(tmp_path, *SMALL, "--train_for_env_steps=10000")
    first = summary_of(tmp_path)
    finished = run(tmp_path, *SMALL, "--train_for_env_steps=20000")
    assert finished.code == 0, finished.err
    assert "Settings that differ from those of the last start: train_for_env_steps=20000 (was 10000)\n" in finished.out
    second = summary_of(tmp_path)
    assert second["frames"] >= 20_000
    assert second["new_frames"] == second["frames"] - first["frames"]
    assert second["policies"][0]["policy_version"] > first["policies"][0]["policy_version"]
    steps = [step for step, _ in read_events(tmp_path / EXPERIMENT / ".summary" / "0")["train/lr"]]
    assert steps == sorted(steps)
    third = run(tmp_path, *SMALL, "--train_for_env_steps=5000")
    assert (third.code, summary_of(tmp_path)) == (0, second)
    assert (
        f"{second['frames']} frames were learned before in {tmp_path / EXPERIMENT}, and --train_for_env_steps=5000 "
        "counts them, so nothing was started. Raise it to go on, take another --experiment, or begin anew with "
        "--restart_behavior=restart.\n"
    ) in third.out


@pytest.mark.more
@pytest.mark.parametrize("behavior", ["restart", "overwrite"])
def test_restart_behavior(tmp_path: Path, behavior: str) -> None:
    run(tmp_path, *SMALL, "--train_for_env_steps=4000")
    finished = run(tmp_path, *SMALL, "--train_for_env_steps=4000", f"--restart_behavior={behavior}")
    summary = summary_of(tmp_path)
    assert summary["new_frames"] == summary["frames"]
    kept = list((tmp_path / "train_dir").glob("default_experiment.before-*"))
    assert len(kept) == (behavior == "restart")
    deleted = f"The earlier run in {tmp_path / EXPERIMENT} was deleted."
    assert (f"The earlier run is in {kept[0]} now." if kept else deleted) in finished.out
    assert "Settings that differ" not in finished.out
    assert "Settings that differ" not in run(tmp_path, *SMALL, "--train_for_env_steps=4000").out
    assert all((path / "summary.json").is_file() for path in kept)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / EXPERIMENT, *kept)} == {0o700}


@pytest.mark.more
def test_a_run_that_breaks_before_it_has_learned_anything_overwrites_nothing(tmp_path: Path) -> None:
    run(tmp_path, *CARTPOLE, "--train_for_env_steps=4000")
    flags = "--rollout=128", "--restart_behavior=overwrite"
    broken = run(tmp_path, *fault_run(tmp_path, "step-always-raise"), *flags)
    assert "Nothing was trained yet" in broken.out
    (kept,) = (tmp_path / EXPERIMENT / OVERWRITTEN).iterdir()
    assert f"The earlier run is in {kept} until this one has saved something learned." in broken.out
    assert (kept / "checkpoint_p0").is_dir()
    assert "was deleted" not in broken.out


@pytest.mark.more
def test_fault_d11_experiment_in_use(tmp_path: Path) -> None:
    with running(tmp_path, *SMALL) as command:
        wait_for_first_step(command)
        second = tmp_path / "second"
        second.mkdir()
        refused = run(second, *SMALL, f"--train_dir={tmp_path / 'train_dir'}")
        assert refused.code == 4
        assert f"is in use by a living run: pid {command.process.pid} on" in refused.err
        unwell = run(second, *fault_run(second, "init-always-raise"), f"--train_dir={tmp_path / 'train_dir'}")
        assert unwell.code == 4, "before the first look at an environment"
        command.process.kill()  # the kernel gives the lock of the dead back
        command.process.wait()
        command.expect_nobody(5.0)
    after = run(second, *SMALL, f"--train_dir={tmp_path / 'train_dir'}", "--train_for_env_steps=1000")
    assert after.code == 0, after.err


@pytest.mark.more
def test_checkpoint_of_another_model_is_refused_and_nothing_is_overwritten(tmp_path: Path) -> None:
    run(tmp_path, *SMALL, "--train_for_env_steps=2000")
    before = {name: (tmp_path / EXPERIMENT / name).read_text() for name in ("config.json", "summary.json")}
    refused = run(tmp_path, *SMALL, "--train_for_env_steps=4000", "--encoder_mlp_layers", "32")
    assert refused.code == 4, refused.err
    assert "was made with another environment, model or normalization:" in refused.err
    assert "config.model.encoder_mlp_layers: expected [32], found [64, 64]" in refused.err
    assert {name: (tmp_path / EXPERIMENT / name).read_text() for name in before} == before


def test_what_comes_next_after_a_run_that_has_saved_nothing(tmp_path: Path) -> None:
    told = _next_steps(RunConfig(env="CartPole-v1", train_dir=str(tmp_path)), "auto")
    assert told == f"Nothing was trained yet; {tmp_path / 'default_experiment'} holds no checkpoint."
    (tmp_path / "default_experiment" / "checkpoint_p0" / "checkpoint_000000000_0").mkdir(parents=True)
    told = _next_steps(RunConfig(env="CartPole-v1", train_dir=str(tmp_path)), "auto")
    assert told == f"Nothing was trained yet; {tmp_path / 'default_experiment'} holds an untrained checkpoint."
    (tmp_path / "default_experiment" / "summary.json").write_text('{"frames": 2048}')
    told = _next_steps(RunConfig(env="CartPole-v1", train_dir=str(tmp_path)), "auto")
    assert told == f"What was trained is lost; {tmp_path / 'default_experiment'} holds an untrained checkpoint."
    (tmp_path / "default_experiment" / "checkpoint_p0" / "checkpoint_000000016_2048").mkdir()
    assert "play the policy:" in _next_steps(RunConfig(env="CartPole-v1", train_dir=str(tmp_path)), "auto")


@pytest.mark.more
def test_what_no_checkpoint_has_is_told_as_lost(tmp_path: Path) -> None:
    """By the run that loses it, and by the one that goes on without it."""
    flags = *CARTPOLE, "--save_every_sec=1000", "--save_best_every_sec=1000"
    with running(tmp_path, *flags) as command:
        command.wait_for(lambda: re.search(r"policy_version [1-9]\d", command.out), "ten steps")
        command.wait_for_text("Fps is")
        command.named("sf-learner-0")[0].kill()
        finished = command.finish(60)
    assert finished.code == ExitCode.INTERNAL
    frames = summary_of(tmp_path)["frames"]
    lost = f"({frames:,} frames that were learned from after the newest checkpoint are lost)"
    assert lost in summary_of(tmp_path)["exit_reason"]
    assert lost in finished.out
    resumed = run(tmp_path, *CARTPOLE, "--train_for_env_steps=1000")
    assert resumed.code == 0, resumed.err
    found = re.search(
        r"An earlier start has learned from ([\d,]+) frames, and there is no .*BEGINS AT ZERO", resumed.out
    )
    assert found
    assert 0 < int(found[1].replace(",", "")) <= frames
    assert "that were learned from" not in resumed.out


def test_frames_that_no_checkpoint_has(tmp_path: Path) -> None:
    for policy, frames in (0, 500), (0, 900), (2, 300):
        (tmp_path / f"checkpoint_p{policy}" / f"checkpoint_{frames:09d}_{frames}").mkdir(parents=True)
    assert frames_not_saved(tmp_path, [900, 0, 300]) == 0
    assert frames_not_saved(tmp_path, [1000, 70, 300]) == 170
    (tmp_path / "checkpoint_p0/best/checkpoint_000000950_950").mkdir(parents=True)
    assert frames_not_saved(tmp_path, [1000, 0, 0]) == 50
