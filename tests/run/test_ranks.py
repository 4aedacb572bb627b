"""Whole runs that `torchrun` starts as several ranks (row C-X2): how they train, end, break and go on."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import psutil
import pytest

from sf.errors import ConfigError
from sf.machine.rank import Rank
from sf.run.ranks import refuse_with_ranks
from tests.helpers.commands import NAME, Running, newest_version, run, started, summary_of, wait_for_training
from tests.helpers.lab import make_config

TORCHRUN = (
    sys.executable, "-m", "torch.distributed.run", "--standalone", "--log-dir=torchrun", "--nproc-per-node=2"
)  # fmt: skip
TRAIN = ("-m", "sf.cli.train")
SMALL = (
    "--env=CartPole-v1", NAME, "--num_workers=1", "--num_envs_per_worker=8", "--seed=1", "--num_epochs=4",
    "--num_batches_per_epoch=2",
)  # fmt: skip
"""Eight steps on the 256 transitions of each rank."""


def ranks(path: Path, *flags: str, torchrun: Sequence[str] = ()) -> contextlib.AbstractContextManager[Running]:
    return started(path, *TORCHRUN, *torchrun, *TRAIN, *flags, mark=str(path))


def supervisors(command: Running, rank: int) -> list[psutil.Process]:
    """The main process of a rank, if this launcher has started it."""
    return [one for one in command.named("sf-train") if one.environ()["RANK"] == str(rank)]


def supervisor(command: Running, rank: int) -> psutil.Process:
    (found,) = supervisors(command, rank)
    return found


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.mark.alone
def test_cx2_two_ranks_end_at_the_frames_of_both_and_leave_one_directory(tmp_path: Path) -> None:
    with ranks(tmp_path, *SMALL, "--train_for_env_steps=15000") as command:
        finished = command.finish()
    assert finished.code == 0, finished.err
    summary = summary_of(tmp_path)
    assert summary["exit_reason"].endswith("train_for_env_steps reached"), "that of the rank which saw it first"
    assert 15_000 <= summary["frames"] < 15_512
    assert summary["frames"] == summary["policies"][0]["policy_version"] // 8 * 512
    assert [one.name for one in tmp_path.glob("train_dir/*")] == ["default_experiment"]
    assert finished.out.count("Checkpoints, curves and configuration are in") == 1
    assert finished.out.count("The run has ended") == 1
    with ranks(tmp_path, *SMALL, "--train_for_env_steps=15000") as command:
        again = command.finish()
    assert again.code == 0, again.err
    assert again.out.count(f"{summary['frames']} frames were learned before in ") == 1
    assert "so nothing was started" in again.out
    assert "The run has ended" not in again.out


@pytest.mark.alone
@pytest.mark.parametrize("rank", [0, 1])
def test_cx2_a_signal_to_one_rank_ends_both_in_order(
    tmp_path: Path, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with ranks(tmp_path, *SMALL) as command:
        wait_for_training(command)
        supervisor(command, rank).terminate()
        finished = command.finish()
    assert finished.code == 1, "that of torchrun"
    assert "exitcode: 143" in finished.err
    assert "Rank" not in finished.out + finished.err, "no rank was lost"
    told = {0: "stopped by SIGTERM", 1: "another rank stopped: stopped by SIGTERM"}
    summary = summary_of(tmp_path)
    assert (summary["exit_reason"], summary["exit_code"]) == (told[rank], 143)
    assert summary["policies"][0]["policy_version"] % 8 == 0, "both have finished the same iteration"
    assert newest_version(tmp_path) == summary["policies"][0]["policy_version"]


@pytest.mark.alone
@pytest.mark.parametrize("victim", ["sf-train", "sf-learner-0"])
def test_fault_h6_cx2_a_killed_rank_ends_the_run_and_the_checkpoint_is_whole(tmp_path: Path, victim: str) -> None:
    with ranks(tmp_path, *SMALL) as command:
        wait_for_training(command)
        (killed,) = [one for one in command.named(victim) if one.environ()["RANK"] == "1"]
        killed.kill()
        finished = command.finish()
    assert finished.code == 1
    assert "did not stop" not in finished.out + finished.err
    assert "LearnerLost: Rank 1 of 2 has ended without telling the others, so all of them end.\n" in finished.err
    assert "sf/run/supervisor.py" not in finished.err, "a traceback of ours says nothing more"
    assert newest_version(tmp_path) > 0


def test_cx2_what_does_not_go_together_with_ranks_is_refused_in_one_sentence_each() -> None:
    config = make_config(num_learners=2, serial_mode=True, replay="staleness", restart_learner=True)
    refuse_with_ranks(config, Rank())
    with pytest.raises(ConfigError) as refused:
        refuse_with_ranks(config, Rank(0, 2))
    told = [problem.split(" with the 2 ranks of torchrun: ")[0] for problem in refused.value.problems]
    assert told == ["serial_mode=True", "num_learners=2", "replay=staleness", "restart_learner=True"]


@pytest.mark.more
def test_cx2_ranks_with_different_flags_are_refused(tmp_path: Path) -> None:
    """The variable is set by torchrun and read by a shell, which gives each rank its flag."""
    flags = f"{' '.join(SMALL)} --gamma=0.9$RANK $MORE"
    shell = f"[ $RANK = 1 ] || MORE=--num_policies=2; exec {sys.executable} -m sf.cli.train {flags}"
    with started(tmp_path, *TORCHRUN, "--no-python", "sh", "-c", shell, mark=str(tmp_path)) as command:
        finished = command.finish()
    assert finished.code == 1
    assert "ConfigError: Rank 1 was started with " in finished.err
    assert "gamma=0.91 (0.9 for rank 0)" in finished.err
    assert "num_policies=1 (2 for rank 0)" in finished.err


@pytest.mark.alone
def test_fault_h6_cx2_torchrun_starts_all_ranks_again_and_they_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the first start was told to begin anew. The directory of the killed rank goes."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    flags = *SMALL, "--train_for_env_steps=40000", "--restart_behavior=overwrite"
    with ranks(tmp_path, *flags, torchrun=["--max-restarts=1"]) as command:
        wait_for_training(command)
        supervisor(command, 1).kill()
        finished = command.finish()
    assert finished.code == 0, finished.err
    assert finished.out.count("Resumed from") == 1
    assert 40_000 <= summary_of(tmp_path)["frames"] < 40_512
    assert summary_of(tmp_path)["new_frames"] < summary_of(tmp_path)["frames"]
    assert not list(tmp_path.glob("sf-rank-*"))


@pytest.mark.alone
def test_cx2_rank_0_alone_sees_that_the_reward_of_both_policies_is_reached(tmp_path: Path) -> None:
    with ranks(tmp_path, *SMALL, "--num_policies=2", "--stop_at_reward=15") as command:
        finished = command.finish()
    assert finished.code == 0, finished.err
    summary = summary_of(tmp_path)
    assert summary["exit_reason"] == "stop_at_reward reached"
    assert [one["policy_version"] % 8 for one in summary["policies"]] == [0, 0], (
        "ranks have finished the same iterations"
    )
    assert finished.out.count("The run has ended") == 1
    with ranks(tmp_path, *SMALL, "--num_policies=2", f"--train_for_env_steps={summary['frames']}") as command:
        again = command.finish()
    assert again.code == 0, again.err
    assert again.out.count(f"{summary['frames']} frames were learned before in ") == 1
    assert "so nothing was started" in again.out
    assert "The run has ended" not in again.out


@pytest.mark.alone
def test_fault_h6_cx2_ranks_on_two_machines_start_again_together(tmp_path: Path) -> None:
    """Each machine has its own ``torchrun``, and only that of the killed rank counts a restart."""
    meeting = "--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=test"
    launcher = *TORCHRUN[:3], "--log-dir=torchrun", *meeting, "--nproc-per-node=1", "--max-restarts=3", *TRAIN
    flags = *SMALL, "--train_for_env_steps=100000", "--restart_behavior=overwrite", f"--train_dir={tmp_path}/train_dir"
    places = [tmp_path / "a", tmp_path / "b"]
    for place in places:
        place.mkdir()
    with contextlib.ExitStack() as both:
        machines = [both.enter_context(started(place, *launcher, *flags, mark=str(place))) for place in places]

        def told(text: str) -> int:
            return sum(machine.out.count(text) for machine in machines)

        def goes_on(starts: int, reports: int) -> bool:
            return told("Resumed from") == starts and told("Fps is") > reports

        for number, rank in enumerate((1, 0)):
            machines[0].wait_for(partial(goes_on, number, told("Fps is")), "training")
            (killed,) = [one for machine in machines for one in supervisors(machine, rank)]
            killed.kill()
        ended = [machine.finish() for machine in machines]
    assert [one.code for one in ended] == [0, 0], "".join(one.err for one in ended)
    assert sum(one.out.count("Resumed from") for one in ended) == 2
    assert 100_000 <= summary_of(tmp_path)["frames"] < 100_512


@pytest.mark.alone
def test_fault_h5_cx2_a_run_continues_with_another_number_of_ranks(tmp_path: Path) -> None:
    flags = *SMALL, "--batch_size=128"
    with ranks(tmp_path, *flags, "--train_for_env_steps=2000") as command:
        assert command.finish().code == 0
    finished = run(tmp_path, *flags, "--train_for_env_steps=4000")
    assert finished.code == 0, finished.err
    assert "resumed with 1 ranks (were 2). --batch_size=128 is that of one rank, so a minibatch has 128" in finished.out
    assert "The learning rate stays as given, --learning_rate=" in finished.out
    assert 4_000 <= summary_of(tmp_path)["frames"] < 4_256


def test_cx2_variables_that_do_not_fit_are_told_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    finished = run(tmp_path, *SMALL)
    assert finished.code == 2
    assert (
        "ConfigError: The environment variables of torchrun do not fit together: there is no WORLD_SIZE" in finished.err
    )
    assert finished.err.count("\n") == 1
    assert not (tmp_path / "train_dir").exists()


@pytest.mark.alone
def test_cx2_rank_0_tells_of_a_run_whose_end_others_reach_first(tmp_path: Path) -> None:
    """The others need not wait for an evaluator."""
    with ranks(tmp_path, *SMALL, "--eval_every_steps=3000", "--train_for_env_steps=2000") as command:
        finished = command.finish()
    assert finished.code == 0, finished.err
    assert summary_of(tmp_path)["frames"] >= 2000
    assert "The run has ended" in finished.out


@pytest.mark.slow
def test_late_rank_contributes_what_it_has(tmp_path: Path) -> None:
    flags = "--env=tests.helpers.late_rank:LateRank-v0", "--num_workers=2", "--num_envs_per_worker=4", "--rollout=32"
    more = NAME, "--num_epochs=1", "--num_batches_per_epoch=1", "--batch_size=256", "--seed=1"
    torchrun = (*TORCHRUN[:-1], "--nproc-per-node=3")
    with started(
        tmp_path, *torchrun, *TRAIN, *flags, *more, "--train_for_env_steps=15000", mark=str(tmp_path)
    ) as command:
        finished = command.finish()
    assert finished.code == 0, finished.err
    summary = summary_of(tmp_path)
    assert summary["frames"] >= 15_000
    assert summary["policies"][0]["cut_short"] > 0
    assert finished.out.count("A rank has contributed the part of its batch") == 1
