"""TensorBoard files and metrics.jsonl: rows S7, A22 and A23."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sf.learner.metrics import train_summary_interval_s
from sf.monitor import PolicySnapshot
from sf.monitor.scalars import ScalarLog
from sf.monitor.stats import memory_scalars
from sf.shared.cadence import Thinning, Timer
from tests.helpers.events import read_events, read_layouts, read_overview
from tests.helpers.monitored import Start, episode


def frames_in(path: Path, policy_id: int = 0) -> list[int]:
    """Frames of the points in a metrics.jsonl; the last look of a run and its end are at the same place."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return list(dict.fromkeys(line["frames"] for line in lines if line["policy_id"] == policy_id))


def test_a22_tags_of_a_short_run(start: Start, tmp_path: Path) -> None:
    run = start()
    pids = {"learner-0": os.getpid(), "inference-0-0": os.getpid(), "rollout-0": 2**22 + 1}
    run.monitor.watch(lambda: pids, lambda: {"faults/restarts": 3.0})
    run.go(3, lambda: [episode()])
    run.monitor.train_summary(0, 300, {"version_diff_min": 0.0, "loss": 0.5})
    run.finish()
    curves = read_events(tmp_path / ".summary" / "0")
    spreads = ("reward/reward", "len/len", "policy_stats/avg_true_objective")
    assert set(curves) == {
        *("perf/_fps", "perf/_sample_throughput"),
        *(f"{tag}{end}" for tag in spreads for end in ("", "_min", "_max")),
        *("stats/avg_request_count", "stats/step_policy", "stats/wait_policy"),
        *("stats/master_process_memory_mb", "stats/memory_learner", "stats/memory_policy_worker"),
        *("train/version_diff_min", "train/loss", "faults/restarts"),
    }
    assert curves["reward/reward"] == [(100, 1.25), (200, 1.25), (300, 1.25), (300, 1.25)]
    assert curves["policy_stats/avg_true_objective_max"][-1] == (300, 2.5)
    assert curves["perf/_fps"] == [(100, 100.0), (200, 100.0), (300, 100.0), (300, 100.0)]
    assert curves["stats/avg_request_count"] == [(300, 2.0)]
    assert 10 < curves["stats/memory_learner"][0][1] < 10_000


def test_a22_tag_without_a_source_is_absent(start: Start, tmp_path: Path) -> None:
    run = start(fps=0)
    run.go(11)
    run.finish()
    curves = set(read_events(tmp_path / ".summary" / "0"))
    assert curves == {"perf/_fps", "perf/_sample_throughput", "stats/master_process_memory_mb"}


def test_a22_reported_stats_are_written(start: Start, tmp_path: Path) -> None:
    run = start()
    run.policy = PolicySnapshot(stats={"gpu_mem_learner": 123.0})
    run.finish()
    assert read_events(tmp_path / ".summary" / "0")["stats/gpu_mem_learner"] == [(0, 123.0)]


def test_s7_one_directory_per_policy_and_steps_that_never_decrease(start: Start, tmp_path: Path) -> None:
    run = start(num_policies=2)
    run.go(12, lambda: [episode(), episode(policy_id=1)])
    run.monitor.train_summary(1, 900, {"loss": 1.0})  # made before the last point of the averaged curves
    run.go(12, lambda: [episode(), episode(policy_id=1)])
    run.finish()
    assert sorted(path.name for path in (tmp_path / ".summary").iterdir()) == ["0", "1"]
    for policy in ("0", "1"):
        steps = [step for curve in read_events(tmp_path / ".summary" / policy).values() for step, _ in curve]
        assert steps
    second = read_events(tmp_path / ".summary" / "1")
    assert second["train/loss"] == [(1100, 1.0)]
    steps = [step for step, _ in second["reward/reward"]]
    assert steps == sorted(steps)
    assert set(steps) == set(range(100, 2500, 100)) - {1200}, "where the learner has spoken, the next second is later"


def test_a23_averaged_curves_start_with_the_first_entry_and_come_ever_more_rarely_up_to_the_interval(
    start: Start, tmp_path: Path
) -> None:
    run = start(experiment_summaries_interval=7, stats_avg=4)
    run.go(8, lambda: [episode(1.0)])
    run.go(342, lambda: [episode(3.0)])
    run.finish()
    curve = read_events(tmp_path / ".summary" / "0")["reward/reward"]
    assert [value for _, value in curve[:11]] == [1.0] * 7 + [1.5, 2.5] + [3.0] * 2
    frames = [frames for frames, _ in curve]
    assert frames[:40] == list(range(100, 4100, 100)), "a second apart, as long as that is a fortieth of the time"
    assert all(second - first <= second / 40 + 50 for first, second in itertools.pairwise(frames[40:]))
    assert [second - first for first, second in itertools.pairwise(frames[-6:-2])] == [700] * 3
    assert 100 < len(frames) < 150


def test_a_point_has_what_a_learner_has_said_beside_the_averages_of_then(start: Start, tmp_path: Path) -> None:
    run = start()
    run.monitor.poll(run.snapshot())
    for frames in (20, 45, 70):
        run.monitor.train_summary(0, frames, {"loss": frames / 10})
        run.monitor.train_summary(0, frames, {"entropy": 0.5})  # in another message
        run.monitor.poll(run.snapshot(), [episode(frames)])
        run.now += 0.25
    run.monitor.train_summary(0, 90, {"loss": 9.0})
    run.monitor.train_summary(0, 95, {"loss": 9.5})  # between two looks
    run.monitor.poll(run.snapshot())
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    shown = [(line["frames"], line["train/loss"], line.get("train/entropy"), line["reward/reward"]) for line in lines]
    assert shown == [(20, 2.0, 0.5, 20.0), (45, 4.5, 0.5, 32.5), (70, 7.0, 0.5, 45.0), (90, 9.0, None, 45.0),
                     (95, 9.5, None, 45.0)]  # fmt: skip


def test_thinning_makes_about_a_hundred_points_of_seconds_and_of_days() -> None:
    for seconds, step_s in ((2.0, 0.01), (60.0, 0.5), (3600.0, 1.0)):
        thinning, points, now = Thinning(), 0, 50.0
        while now < 50.0 + seconds:
            if thinning.is_due(now, most_s=60.0):
                points += 1
                thinning.made(now)
            now += step_s
        assert 70 <= points <= 250, (seconds, points)


def test_a23_train_summaries_grow_rarer_with_the_version() -> None:
    given = {0: 2.0, 50_000: 31.0, 100_000: 60.0, 550_000: 90.0, 1_000_000: 120.0, 10**9: 120.0}
    assert {version: train_summary_interval_s(version) for version in given} == given


def test_the_first_group_in_tensorboard_has_reward_lag_and_fps(start: Start, tmp_path: Path) -> None:
    """Groups are sorted by the codes of their letters."""
    run = start()
    run.go(6, lambda: [episode()])
    run.monitor.train_summary(0, 600, {"version_diff_avg": 1.5, "version_diff_min": 1.0, "version_diff_max": 2.0})
    run.finish()
    curves, overview = (read(tmp_path / ".summary" / "0") for read in (read_events, read_overview))
    assert overview == {
        "Overview/reward": curves["reward/reward"],
        "Overview/policy_lag": curves["train/version_diff_avg"],
        "Overview/fps": curves["perf/_fps"],
    }
    assert max(overview) < min(curves)
    (layout,) = read_layouts(tmp_path / ".summary" / "0")
    (category,) = layout.category
    margins = [series for chart in category.chart for series in chart.margin.series]
    assert ("train/version_diff_avg", "train/version_diff_min", "train/version_diff_max") in [
        (one.value, one.lower, one.upper) for one in margins
    ]
    named = [tag for one in margins for tag in (one.value, one.lower, one.upper)]
    assert set(named) <= set(curves)


def test_the_divergence_has_one_curve_in_tensorboard_and_its_other_estimates_are_on_record(
    start: Start, tmp_path: Path
) -> None:
    run = start()
    estimates = {"kl_divergence": 0.2, "kl_divergence_max": 2.0}
    others = {"old_approx_kl": 0.1, "half_mean_squared_log_ratio": 0.3, "approx_kl": 0.2}
    run.monitor.train_summary(0, 600, estimates | others)
    run.finish()
    line, *_ = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert {tag: line[tag] for tag in line if "kl" in tag or "log_ratio" in tag} == {
        f"train/{name}": value for name, value in (estimates | others).items()
    }
    shown = {tag for tag in read_events(tmp_path / ".summary" / "0") if "kl" in tag or "log_ratio" in tag}
    assert shown == {f"train/{name}" for name in estimates}


def test_a_fault_has_a_curve_in_tensorboard_as_soon_as_it_has_happened(start: Start, tmp_path: Path) -> None:
    run, faults = start(), {"faults/restarts": 0.0, "faults/failed_saves": 0.0}
    run.monitor.watch(dict, lambda: faults)
    run.go(6)
    faults["faults/restarts"] = 1.0
    run.go(6)
    faults["faults/restarts"] = 0.0
    run.finish()
    curves = read_events(tmp_path / ".summary" / "0")
    assert "faults/failed_saves" not in curves
    assert curves["faults/restarts"] == [*((frames, 1.0) for frames in range(600, 1200, 100)), (1200, 0.0), (1200, 0.0)]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["faults/restarts"] for line in lines] == [0.0] * 5 + [1.0] * 6 + [0.0] * 2, "the lines have all of it"


def test_learners_that_speak_often_do_not_make_full_points_more_often_than_the_interval(
    start: Start, tmp_path: Path
) -> None:
    run = start(experiment_summaries_interval=5)
    for second in range(600):
        run.monitor.train_summary(0, 100 * second, {"loss": 1.0})
        run.go(1, lambda: [episode()])
    run.finish()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    full = [line["frames"] for line in lines if "reward/reward" in line]
    assert len([line for line in lines if "train/loss" in line]) == 600
    assert all(second - first >= 500 for first, second in itertools.pairwise(full[:-2]) if first > 41_000)
    assert len(full) < 250


def test_timer_keeps_its_grid_and_leaves_out_what_was_missed() -> None:
    timer = Timer(5.0)
    due = [now for now in (0.0, 4.9, 5.1, 9.9, 10.0, 31.0, 34.9, 35.0) if timer.is_due(now)]
    assert due == [0.0, 5.1, 10.0, 31.0, 35.0]


def test_metrics_hold_the_same_scalars(start: Start, tmp_path: Path) -> None:
    run = start()
    run.go(21, lambda: [episode()])
    run.monitor.train_summary(0, 2100, {"loss": math.nan})
    run.finish()
    curves = read_events(tmp_path / ".summary" / "0")
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert {line["policy_id"] for line in lines} == {0}
    assert curves
    for tag, curve in curves.items():
        points = [(line["frames"], line[tag]) for line in lines if tag in line]
        assert [frames for frames, _ in points] == [frames for frames, _ in curve]
        for (_, value), (_, stored) in zip(points, curve, strict=True):
            assert stored == pytest.approx(value, rel=1e-6) if value is not None else math.isnan(stored)


def test_a_second_run_adds_to_the_files_of_the_first(start: Start, tmp_path: Path) -> None:
    for first_frames in (0, 300):
        run = start(first_frames=first_frames)
        run.go(3, lambda: [episode()])
        run.finish()
    assert frames_in(tmp_path / "metrics.jsonl") == [100, 200, 300, 400, 500, 600]


def test_fault_d10_points_beyond_the_checkpoint_of_a_run_that_was_killed_are_made_once(
    start: Start, tmp_path: Path
) -> None:
    killed, path = start(num_policies=2), tmp_path / "metrics.jsonl"
    killed.go(31, lambda: [episode()])
    killed.finish()
    assert frames_in(path, 0) == frames_in(path, 1) == list(range(100, 3200, 100))
    with path.open("a") as lines:
        lines.write('{"time_s": 1.0, "policy_id": 0, "fra')
    resumed = start(first_frames=1550, num_policies=2)
    resumed.go(11, lambda: [episode()])
    resumed.finish()
    assert frames_in(path, 0) == frames_in(path, 1) == [*range(100, 1600, 100), *range(1650, 2700, 100)]


def test_fault_d10_what_is_learned_before_the_first_look_belongs_to_this_start(start: Start, tmp_path: Path) -> None:
    """The supervisor may look late."""
    killed = start()
    killed.go(31)
    killed.finish()
    resumed = start(first_frames=1500)
    resumed.now += 8.0
    resumed.go(11)
    resumed.finish()
    assert frames_in(tmp_path / "metrics.jsonl") == [*range(100, 1600, 100), *range(2400, 3500, 100)]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["new_frames"], summary["fps"]) == (1900, 100.0)


def test_fault_d2_disk_that_fails_costs_points_and_warnings_ever_more_rarely(tmp_path: Path) -> None:
    warnings: list[str] = []
    log = ScalarLog(tmp_path / "gone", warnings.append)
    for frames in range(7):
        log.write(0, frames, {"a/b": 1.0})
    log.close()
    assert len(warnings) == 3
    assert re.fullmatch(
        r"Warning: a point of the curves was not written to .*gone: .*No such file.* \(point 1 .*Training goes on\.",
        warnings[0],
    )


@contextlib.contextmanager
def files_limited(num_bytes: int) -> Iterator[None]:
    """As on a full disk: a write beyond so many bytes is cut, and the next one refused."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room", [10, None], ids=["events", "lines"])
def test_curves_go_on_in_new_files_after_a_disk_was_full(room: int | None, tmp_path: Path) -> None:
    warnings: list[str] = []
    path, log = tmp_path / "metrics.jsonl", ScalarLog(tmp_path, warnings.append)
    for frames in range(200):  # until the lines are the longer file
        log.write(0, frames, {"a/b": 0.5, "c": math.nan})
    log.close()
    log = ScalarLog(tmp_path, warnings.append)
    log.write(0, 200, {"a/b": 0.5})
    with files_limited(room or path.stat().st_size + 30):
        for frames in (201, 202):
            log.write(0, frames, {"a/b": 1.5})
    log.write(0, 203, {"a/b": 2.5})
    log.write(1, 204, {"a/b": 2.5})
    log.close()
    assert [frames for frames in frames_in(path) if frames > 199] == [200, 203]
    assert frames_in(path, 1) == [204]
    assert len(warnings) == 2
    shown = [frames for frames, _ in read_events(tmp_path / ".summary" / "0")["a/b"]]
    assert {200, 203} <= set(shown)
    assert 0 in shown, "earlier points stay"
    assert all(file.stat().st_size for file in (tmp_path / ".summary" / "0").iterdir())


def test_curves_of_runs_that_follow_each_other_within_a_second_are_kept(tmp_path: Path) -> None:
    for frames in range(12):
        log = ScalarLog(tmp_path, print)
        log.write(0, frames, {"a/b": 1.5})
        log.close()
    assert read_events(tmp_path / ".summary" / "0") == {"a/b": [(frames, 1.5) for frames in range(12)]}


def test_curves_are_written_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from sf.monitor.scalars import ScalarLog; "
        "log = ScalarLog(pathlib.Path(sys.argv[1]), print); log.write(0, 5, {'a/b': 1.5}); log.close(); "
        "import sf.monitor; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    assert read_events(tmp_path / ".summary" / "0") == {"a/b": [(5, 1.5)]}


def test_a22_memory_is_that_of_the_process_under_the_name() -> None:
    """The mean over the processes of a role; one that has ended is left out."""
    code = "import sys; room = bytearray(int(sys.argv[1]) << 20); print(flush=True); input()"
    sizes = {"learner-1": 60, "inference-1-0": 120, "inference-1-1": 200, "rollout-0": 20}
    command = [sys.executable, "-S", "-c", code]
    children = {
        name: subprocess.Popen([*command, str(size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for name, size in sizes.items()
    }
    for child in children.values():
        assert child.stdout is not None
        child.stdout.readline()
    pids = {name: child.pid for name, child in children.items()} | {"inference-1-2": 2**22 + 1}
    both, acting = memory_scalars(pids, 1), memory_scalars({"rollout-0": pids["rollout-0"]}, 1)
    for child in children.values():
        child.communicate(b"\n")
    assert both["stats/memory_learner"] == pytest.approx(60, abs=20)
    assert both["stats/memory_policy_worker"] == pytest.approx(160, abs=20)
    assert acting["stats/memory_policy_worker"] == pytest.approx(20, abs=15)
    assert "stats/memory_learner" not in acting
    assert both["stats/master_process_memory_mb"] > 60
