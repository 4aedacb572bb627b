"""Learners and whole runs with `--replay=staleness`: what they collect, and slots that they give back."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sf.errors import ExitCode
from sf.learner.batch import Batch
from sf.learner.peers import Peers
from sf.learner.source import ReleasedAtOnce
from tests.helpers.commands import run
from tests.helpers.lab import make_lab, step_until
from tests.helpers.updates import one_thread_and_seed


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    one_thread_and_seed()


@pytest.mark.parametrize("max_staleness", [3, 4, 7])
def test_asynchronous_runs_collect_what_a_small_limit_lets_train(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, max_staleness: int
) -> None:
    """With sampling that is always faster than training; four steps on each batch."""
    sizes: dict[str, Any] = {"num_epochs": 2, "num_batches_per_epoch": 2, "batch_size": 32}
    lab = make_lab(tmp_path, replay="staleness", async_rl=True, max_staleness=max_staleness, **sizes)
    learner, *others = lab.build_all()
    steps, lags = learner.update.steps, []

    def beside_sampling(batch: Batch) -> Any:
        for report in steps(batch):
            lags.append(report.lag_max)
            yield report
            while any([role.step() for role in others]):
                pass

    learner.update.steps = beside_sampling
    step_until([learner, *others], lambda: learner.record["iterations"] == 12)
    assert "Passed over" not in caplog.text
    assert len(lags) == 12 * 4
    assert max(lags) == max_staleness
    assert learner.update.statistics.moments["returns"].count.item() == 12 * 64


def test_slots_of_a_dataset_without_a_step_count_as_unused(tmp_path: Path) -> None:
    """Except those of which another dataset has taken a part that was trained on."""
    sizes: dict[str, Any] = {"num_envs_per_worker": 8, "worker_num_splits": 1, "batch_size": 48}
    lab = make_lab(tmp_path, replay="staleness", async_rl=True, max_policy_lag=4, **sizes)
    learner, *others = lab.build_all()
    step_until(others, lambda: len(lab.slots.waiting_for(0)) == 2)  # 16 trajectories, a dataset takes 6
    assert learner.step()
    learner.update.version += 10
    assert learner.step()
    assert learner.record["iterations"] == 2
    assert lab.slots.unused.sum() == 0, "its first two trajectories were in the first dataset"
    step_until(others, lambda: len(lab.slots.waiting_for(0)) == 1)
    learner.update.version += 20
    assert learner.step()
    assert lab.slots.unused.sum() == 1, "all of the second slot"


class OthersWait(Peers):
    """Most other ranks always have their share."""

    def others_wait(self) -> bool:
        return True


def test_a_late_rank_gives_back_the_slots_of_a_part_of_its_share(tmp_path: Path) -> None:
    """They go back at once where the batch is copied into a buffer, as those of a whole share do."""
    lab = make_lab(tmp_path, async_rl=True, replay="staleness", rollout=8, num_envs_per_worker=8, worker_num_splits=2)
    roles = lab.build_all()
    learner, workers = roles[0], roles[1:]
    learner.peers, learner.cuts.least = OthersWait(), 1
    seen: list[int] = []
    for _ in range(3):
        step_until(workers, lambda: len(lab.slots.waiting_for(0)) > 0)
        batch = learner.cuts.next(learner.source, learner.peers)
        assert batch is not None
        seen.append(batch.rewards.shape[1])
        assert learner.cuts.was_cut == (seen[-1] < learner._batcher.trajectories)
        assert isinstance(learner.source, ReleasedAtOnce)
        learner.source.release()
    assert len(seen) == 3


def test_parts_of_late_ranks_are_counted_and_told_once(tmp_path: Path) -> None:
    learner = make_lab(tmp_path).build("learner-0")
    told = []
    for num_ranks in (0, 1, 2, 0):
        told.append("A rank has contributed the part of its batch" in learner.cuts.note(learner.record, num_ranks))
    assert told == [False, True, False, False]
    assert learner.record["cut_short"] == 3


@pytest.mark.parametrize("async_rl", [True, False])
def test_slots_are_free_before_training_where_sampling_goes_on(tmp_path: Path, async_rl: bool) -> None:
    lab = make_lab(tmp_path, replay="staleness", async_rl=async_rl)
    roles = lab.build_all()
    learner = roles[0]
    assert isinstance(learner.source, ReleasedAtOnce) is async_rl
    step_until(roles[1:], lambda: len(lab.slots.waiting_for(0)) == lab.slots.topology.num_groups)
    filled, released_when_training = lab.slots.filled.sum(), []
    steps = learner.update.steps

    def looked_at(batch: Batch) -> Any:
        released_when_training.append(int(lab.slots.released.sum()))
        yield from steps(batch)

    learner.update.steps = looked_at
    assert learner.step()
    assert released_when_training == [filled if async_rl else 0]
    assert lab.slots.released.sum() == filled


@pytest.mark.slow
def test_e20_run_learns_cartpole_and_says_that_a_resumed_buffer_is_empty(tmp_path: Path) -> None:
    base = "--env=CartPole-v1", f"--train_dir={tmp_path}", "--experiment=replayed", "--replay=staleness", "--seed=1"
    flags = *base, "--serial_mode=True"  # a seed is one result, whatever else the machine does
    finished = run(tmp_path / "first", *flags, "--stop_at_reward=400", "--train_for_env_steps=600000")
    assert finished.code == ExitCode.FINISHED, finished.err
    assert "stop_at_reward reached" in finished.out
    assert "Policy lag is not forecast: replay=staleness draws transitions of any age.\n" in finished.out
    assert re.search(
        r"^Policy #0 lag over the run: avg [\d.]+ \(acting 0.0, queued [\d.]+, epochs 0.0\), max [\d.]+$",
        finished.out,
        re.M,
    )
    assert "expected_lag" not in json.loads((tmp_path / "replayed" / "summary.json").read_text())
    tags: set[str] = set()
    for line in (tmp_path / "replayed" / "metrics.jsonl").read_text().splitlines():
        tags |= json.loads(line).keys()
    wanted = {"staleness/batch_min", "staleness/batch_mean", "staleness/batch_max", "ESS", "max_ratio", "mean_ratio"}
    assert {f"train/{name}" for name in wanted | {"kl_approx"}} <= tags
    resumed = run(tmp_path / "second", *flags, "--train_for_seconds=1")
    assert resumed.code == ExitCode.FINISHED, resumed.err
    assert "The replay buffer of policy 0 begins empty: checkpoints do not hold it." in resumed.out
