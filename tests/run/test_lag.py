"""Policy lag with the real roles, stepped in turn: what serial mode does (row A29), and the processes as well."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sf_envs.counter import Counter

from sf.envs import register_env
from sf.learner import worker
from sf.learner.batch import Batch
from sf.learner.metrics import train_summary_interval_s
from sf.learner.training import StepReport
from sf.learner.worker import Learner
from sf.monitor import Console, Monitor
from sf.run.callbacks import Callbacks
from sf.run.notes import note_on_batches_held
from sf.run.preparation import prepare
from sf.run.session import Session
from sf.run.topology import Sizes
from sf.shared.ledger import Ledger
from sf.shared.messages import TrainSummary
from tests.helpers.lab import Lab, make_config, make_lab, step_until

register_env("test/Counter", Counter)


class Recorder:
    """Looks over the shoulder of a learner."""

    def __init__(self, learner: Learner):
        self.reports: list[StepReport] = []
        self.batches: list[dict[str, Any]] = []
        self.versions_at_start: list[int] = []
        self._steps, self._learner = learner.update.steps, learner
        learner.update.steps = self.steps  # type: ignore[method-assign]

    def steps(self, batch: Batch) -> Iterator[StepReport]:
        self.versions_at_start.append(self._learner.update.version)
        self.batches.append(
            {
                "policy_version": batch.policy_version.clone(),
                "valid": batch.valid.clone(),
                "rewards": batch.rewards.clone(),
            }
        )
        for report in self._steps(batch):
            self.reports.append(report)
            yield report

    @property
    def lags(self) -> list[tuple[float, float, float]]:
        return [(report.lag_min, report.lag_avg, report.lag_max) for report in self.reports]


def run_lab(lab: Lab, steps: int) -> tuple[Recorder, list[Any]]:
    """Runs all roles until the learner has made at least `steps` optimizer steps."""
    roles = lab.build_all()
    recorder = Recorder(roles[0])
    step_until(roles, lambda: len(recorder.reports) >= steps)
    return recorder, roles


@pytest.mark.parametrize(("epochs", "batches"), [(2, 4), (1, 1), (1, 4), (3, 2), (4, 1), (2, 2)])
def test_a5_sync_staircase(tmp_path: Path, epochs: int, batches: int) -> None:
    """The n-th optimizer step of an iteration has lag exactly n for every transition; A29: in serial mode too."""
    lab = make_lab(tmp_path, num_epochs=epochs, num_batches_per_epoch=batches)
    recorder, _ = run_lab(lab, 3 * epochs * batches)
    per_iteration = epochs * batches
    expected = [step % per_iteration for step in range(len(recorder.reports))]
    assert recorder.lags == [(n, n, n) for n in expected]
    assert [report.version for report in recorder.reports] == list(range(1, len(recorder.reports) + 1))


def test_a5_oracle(tmp_path: Path, oracles: dict[str, Any]) -> None:
    for index, case in enumerate(oracles["A5"]["cases"]):
        inputs = dict(case["inputs"])
        iterations = inputs.pop("num_iterations")
        lab = make_lab(tmp_path / str(index), **inputs)
        recorder, _ = run_lab(lab, iterations * inputs["num_epochs"] * inputs["num_batches_per_epoch"])
        lags = [lag for lag, _, _ in recorder.lags]
        assert lags[: len(case["expected"]["lag_sequence"])] == case["expected"]["lag_sequence"]


def test_a8_formula(tmp_path: Path, oracles: dict[str, Any]) -> None:
    """In sync mode with one round per iteration the maximum lag is F - 1 and the mean (F - 1) / 2, exactly."""
    for index, case in enumerate(oracles["A8"]["cases"]):
        inputs, expected = dict(case["inputs"]), case["expected"]
        inputs.pop("agents_per_env")
        # Two workers in one process: serial mode would run one worker with all environments, which is the same work.
        inputs |= {"num_workers": 1, "num_envs_per_worker": inputs["num_workers"] * inputs["num_envs_per_worker"]}
        lab = make_lab(tmp_path / str(index), **inputs)
        assert lab.shared.topology.samples_per_round == expected["samples_per_round"]
        recorder, _ = run_lab(lab, 2 * expected["F"])
        one_iteration = recorder.lags[expected["F"] : 2 * expected["F"]]
        assert max(lag for _, _, lag in one_iteration) == expected["max_lag"]
        assert np.mean([lag for _, lag, _ in one_iteration]) == expected["mean_lag"]


def test_a2_version_counts_optimizer_steps_and_survives_a_resume(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, num_epochs=2, num_batches_per_epoch=2)
    recorder, roles = run_lab(lab, 8)
    learner = roles[0]
    assert learner.update.version == len(recorder.reports) == 8
    learner.close()
    frames = learner.frames
    resumed = lab.build("learner-0")
    assert resumed.update.version == 8
    assert resumed.frames == frames == 4 * 64 // 2


def test_a23_learner_tells_of_a_step_ever_more_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a fortieth of the time so far, up to an interval that grows with the version.

    Half a second of a fake clock passes in each iteration.
    """
    lab = make_lab(tmp_path)
    roles = lab.build_all()
    learner = roles[0]
    now = 100.0
    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=lambda: now))
    told: dict[float, int] = {}
    for iteration in range(160):
        step_until(roles, lambda: learner.record["iterations"] > iteration)  # noqa: B023
        for message in lab.told:
            if isinstance(message, TrainSummary):
                told[now - 100.0] = message.version
        lab.told.clear()
        now += 0.5
    seconds = list(told)
    assert seconds[:41] == [0.5 * index for index in range(41)], "every iteration, and then not all of them"
    assert seconds[41:43] == [21.0, 22.0]
    assert seconds[-1] - seconds[-2] == 2.0 == train_summary_interval_s(0), "at 80 s"
    assert [told[second] for second in (0.0, 20.0, 22.0)] == [1, 41, 45]


def test_a10_zero_lag_a2c(tmp_path: Path) -> None:
    """(a) to (d) and (f) over 60 iterations; (e) is in test_update_parity.py, all with processes in test_labels.py."""
    lab = make_lab(tmp_path, num_envs_per_worker=8, rollout=16)
    roles = lab.build_all()
    learner, inference = roles[0], roles[1]
    recorder = Recorder(learner)
    samples_at_step: list[int] = []
    summaries: list[dict[str, float]] = []
    train = learner._train

    def spy(batch: Batch) -> None:
        samples_at_step.append(int(inference.record["samples"]))
        learner.summaries.forget()
        train(batch)
        summaries.append(learner.update.summary())

    learner._train = spy
    step_until(roles, lambda: len(recorder.reports) >= 60)
    assert len(recorder.reports) == len(recorder.batches)  # (a)
    for iteration, batch in enumerate(recorder.batches):
        assert (batch["policy_version"] == iteration).all()  # (b), the first step of each trajectory too
    assert set(recorder.lags) == {(0.0, 0.0, 0.0)}  # (c)
    for summary in summaries:  # (d)
        assert summary["ratio_min"] == pytest.approx(1, abs=1e-5)
        assert summary["ratio_max"] == pytest.approx(1, abs=1e-5)
        assert summary["ratio_mean"] == pytest.approx(0, abs=1e-5)
        assert summary["fraction_clipped"] == 0
        assert summary["kl_divergence"] == pytest.approx(0, abs=1e-5)
    batch_size = 8 * 16
    assert samples_at_step == [(t + 1) * batch_size for t in range(len(samples_at_step))]  # (f)


def test_a12_sampling_stops_at_the_quota_while_the_learner_is_frozen(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, num_epochs=1, num_batches_per_epoch=2)
    roles = lab.build_all()
    learner, others = roles[0], roles[1:]
    per_iteration = lab.shared.topology.samples_per_round
    for iteration in range(4):
        while any([role.step() for role in others]):
            pass
        assert others[0].record["samples"] == per_iteration * (iteration + 1)
        assert learner.step()


@pytest.mark.more
def test_a6_more_data_than_one_update_needs_is_old_before_it_is_used(tmp_path: Path) -> None:
    """S = 8 mb B against S = mb, asynchronous."""
    common: dict[str, Any] = {"async_rl": True, "num_envs_per_worker": 8, "rollout": 8}
    surplus, _ = run_lab(make_lab(tmp_path / "a", batch_size=8, **common), 160)
    exact, _ = run_lab(make_lab(tmp_path / "b", batch_size=64, **common), 160)
    mean_surplus = np.mean([lag for _, lag, _ in surplus.lags[-80:]])
    mean_exact = np.mean([lag for _, lag, _ in exact.lags[-80:]])
    assert mean_surplus > 1
    assert mean_surplus > mean_exact


def test_a13_back_pressure_bounds_the_datasets_in_flight(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, async_rl=True, num_batches_to_accumulate=3, num_epochs=1, num_batches_per_epoch=1)
    roles = lab.build_all()
    learner, others = roles[0], roles[1:]
    plateaus = []
    for _ in range(3):
        while any([role.step() for role in others]):
            full = len(lab.slots.waiting_for(0)) * lab.shared.topology.rows * lab.shared.topology.rollout
            assert full <= 3 * (lab.config.learner.batch_size or 0)
        plateaus.append(others[0].record["samples"])
        assert learner.step()
    round_ = lab.shared.topology.samples_per_round
    assert plateaus == [3 * round_, 4 * round_, 5 * round_]


@pytest.mark.parametrize(
    ("envs", "splits", "batch_size", "accumulate"),
    [(10, 2, 36 * 8, 2), (3, 1, 8 * 8, 2), (8, 2, 28 * 8, 2), (8, 2, 12 * 8, 1), (4, 2, 3 * 8, 1), (6, 3, 8, 2)],
)
def test_a13_sampling_continues_whatever_the_sizes(
    tmp_path: Path, envs: int, splits: int, batch_size: int, accumulate: int
) -> None:
    """Datasets that end inside a slot must not keep the slots from filling."""
    sizes: dict[str, Any] = {"num_envs_per_worker": envs, "worker_num_splits": splits, "batch_size": batch_size}
    lab = make_lab(tmp_path, **sizes, async_rl=True, num_batches_to_accumulate=accumulate)
    recorder, _ = run_lab(lab, 8)
    assert len(recorder.reports) >= 8


@pytest.mark.parametrize(
    ("batch_size", "async_rl", "held"),
    [(64, True, 8), (256, True, 2), (512, True, 2), (288, True, 1.78), (512, False, 1)],
)
def test_a13_what_is_held_beyond_the_setting_is_told_before_the_start(
    tmp_path: Path, batch_size: int, async_rl: bool, held: float
) -> None:
    """64 environments with trajectories of 8 hold 512 transitions at least, however small a dataset is."""
    lab = make_lab(tmp_path, num_envs_per_worker=64, batch_size=batch_size, async_rl=async_rl)
    _, *others = lab.build_all()
    while any([role.step() for role in others]):
        pass
    collected = len(lab.slots.waiting_for(0)) * lab.shared.topology.rows * lab.shared.topology.rollout
    assert collected / batch_size == pytest.approx(held, abs=0.01)
    told = note_on_batches_held(lab.config, Sizes.of(lab.config, lab.specs[0].arguments["context"].info))
    assert told.startswith("Warning: up to 8 batches are collected") if held > 2 else not told


def test_a13_the_sentence_says_what_to_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(make_config(num_envs_per_worker=64, batch_size=64, async_rl=True))
    assert (
        "Warning: up to 8 batches are collected before sampling pauses, more than num_batches_to_accumulate=2, and "
        "policy lag grows with them. Environments collect whole trajectories: there is room for 64 of rollout=8 steps, "
        "and a batch (batch_size=64 x num_batches_per_epoch=1) takes 8. Larger batches or fewer environments keep to "
        "the number.\n"
    ) in capsys.readouterr().out


def test_nothing_is_dropped_or_learned_twice(tmp_path: Path) -> None:
    """Every step of every environment reaches the learner once, in order, whatever the sizes."""
    flags = {"env_kwargs": '{"episode_steps": 0}', "async_rl": True, "batch_size": 24, "rollout": 8}
    lab = make_lab(tmp_path, "test/Counter", num_envs_per_worker=4, **flags)
    roles = lab.build_all()
    seen: list[tuple[int, int]] = []
    batcher = roles[0].source
    assemble = batcher._assemble

    def spy(pieces: Any) -> Batch:
        batch: Batch = assemble(pieces)
        numbers, _, steps = batch.observations["obs"][:-1].unbind(-1)
        seen.extend(zip(numbers.flatten().int().tolist(), steps.flatten().int().tolist(), strict=True))
        return batch

    batcher._assemble = spy
    step_until(roles, lambda: roles[0].record["iterations"] >= 20)
    assert len(seen) == len(set(seen)) == 20 * 24
    for number in {number for number, _ in seen}:
        steps = sorted(step for n, step in seen if n == number)
        assert steps == list(range(len(steps)))


def test_a24_transitions_beyond_max_policy_lag_are_left_out(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, async_rl=True, batch_size=8, max_policy_lag=4, num_envs_per_worker=8)
    recorder, roles = run_lab(lab, 40)
    assert max(lag for lag, _, _ in recorder.lags) < 4
    assert roles[0].frames > 8 * len(recorder.reports)  # some datasets were skipped, and counted


def test_skipped_datasets_have_no_summary(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lab = make_lab(tmp_path, async_rl=True, batch_size=8, max_policy_lag=2, num_envs_per_worker=8)
    roles = lab.build_all()
    roles[0]._wants_summary = lambda now: True
    step_until(roles, lambda: roles[0].record["iterations"] >= 40)
    skipped = caplog.text.count("Skipped a dataset")
    assert 0 < skipped < 40
    assert [message.is_last for message in lab.told].count(True) == 40 - skipped
    ledger = Ledger.of(lab.slots, has_ended=False)
    assert ledger.is_balanced
    assert min(ledger.learned, ledger.discarded["unused"]) > 0
    assert len({message.version for message in lab.told}) == 40 - skipped


def test_sync_repeats_bit_by_bit(tmp_path: Path) -> None:
    flats = []
    for name in ("a", "b"):
        _, roles = run_lab(make_lab(tmp_path / name, num_epochs=2, num_batches_per_epoch=2), 20)
        flats.append(roles[0].network.flat.clone())
    assert torch.equal(*flats)


def mean_lag(lab: Lab, learner_is_slow: bool, steps: int = 120) -> float:
    """A slow learner gets its turn only when everybody else has gone as far as the slots allow."""
    learner, *others = lab.build_all()
    recorder = Recorder(learner)
    while len(recorder.reports) < steps:
        while any([role.step() for role in others]) and learner_is_slow:
            pass
        learner.step()
    return float(np.mean([lag for _, lag, _ in recorder.lags[steps // 2 :]]))


BASE: dict[str, Any] = {
    "async_rl": True, "num_envs_per_worker": 8, "rollout": 8,
    "batch_size": 16, "num_epochs": 1, "num_batches_per_epoch": 2,
}  # fmt: skip


@functools.cache
def lag_of_base(learner_is_slow: bool, num_batches_per_epoch: int) -> float:
    """Several rows compare with the same run."""
    with tempfile.TemporaryDirectory() as path:
        base = BASE | {"num_batches_per_epoch": num_batches_per_epoch}
        return mean_lag(make_lab(Path(path), **base), learner_is_slow)


@pytest.mark.parametrize(
    ("flag", "value", "direction", "learner_is_slow"),
    [
        ("batch_size", 32, -1, False),
        ("num_epochs", 3, 1, False),
        ("num_batches_per_epoch", 4, 1, True),
        ("num_envs_per_worker", 16, 1, False),
        ("num_workers", 2, 1, False),
        ("rollout", 16, 1, False),
        ("async_rl", False, -1, True),
    ],
)
def test_a9_direction_of_each_flag(
    tmp_path: Path, flag: str, value: Any, direction: int, learner_is_slow: bool
) -> None:
    """The order of turns is fixed, so the comparison is exact."""
    base = BASE | ({"num_batches_per_epoch": 4} if flag == "async_rl" else {})
    before = lag_of_base(learner_is_slow, base["num_batches_per_epoch"])
    after = mean_lag(make_lab(tmp_path / "after", **(base | {flag: value})), learner_is_slow)
    assert (after - before) * direction > 0, (before, after)


def test_a28_lag_does_not_grow(tmp_path: Path) -> None:
    """The slope of the average lag over time is about 0."""
    recorder, _ = run_lab(make_lab(tmp_path, **BASE), 400)
    lags = np.array([lag for _, lag, _ in recorder.lags[20:]])
    slope = np.polyfit(np.arange(len(lags)), lags, 1)[0]
    assert abs(slope) * len(lags) < 1, "less than one version over the whole run"
    assert lags.max() < 20


def test_a18_the_line_shows_the_last_minibatch_processed(tmp_path: Path) -> None:
    """A print right after the step with index 3 of a sync iteration with E = 2, B = 4 shows 3.0 three times."""
    lab = make_lab(tmp_path, num_epochs=2, num_batches_per_epoch=4)
    lines: list[str] = []
    monitor = Monitor(lab.config, tmp_path, 1, Console(now=lambda: datetime(2000, 1, 2, 3, 4, 5)))
    monitor._console.print_with(lines.append)
    session = Session(lab.config, lab.shared, monitor, Callbacks())
    monitor.poll(session.snapshot(0.0))
    roles = lab.build_all()
    learner = roles[0]
    publish = learner.record.publish

    def spy() -> None:
        publish()
        if learner.record["version"] == 8 + 4:
            monitor.poll(session.snapshot(5.0))

    learner.record.publish = spy
    step_until(roles, lambda: learner.update.version >= 16)
    reports = [line for line in lines if "Policy #0 lag" in line]
    assert reports[0].endswith("Policy #0 lag: (min: 3.0, avg: 3.0, max: 3.0)\n")
    monitor._scalars.close()
