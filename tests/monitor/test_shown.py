"""What is shown is what was meant: every counter of a recorded run, from shared memory to each place that shows it.

All counters have values of their own, so that one under the name of another is noticed. What is expected is written out
or computed here, apart from the code that shows it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sf.monitor import Monitor
from sf.monitor.expected_lag import ExpectedLag
from sf.run.callbacks import Callbacks
from sf.run.session import Session
from sf.shared.episodes import Episode, EpisodeRing
from sf.shared.messages import EvaluationDone, TrainSummary
from sf.shared.records import LAG_COUNTS, Record, inference_record, learner_record, rollout_record
from sf.shared.slot_fields import Discard
from sf.shared.slots import Slots
from tests.helpers.events import read_events, read_histograms
from tests.helpers.lab import make_lab
from tests.helpers.monitored import Tape

LEARNER_AT_THE_END = {
    0: {
        "version": 37, "env_steps": 5120, "first_env_steps": 1024, "iterations": 5, "lag_min": 1.0, "lag_avg": 2.5,
        "lag_max": 7.0, "wait": 10.0, "batch": 11.0, "update": 12.0, "publish": 13.0, "save": 14.0, "gpu_mem": 15.0,
        "gpu_cache": 16.0, "skipped_steps": 3,
        "steps": 29, "lag_sum": 58.0, "lag_acting": 14.5, "lag_queued": 29.0, "lag_most": 8.0, "left_out": 17,
    },
    1: {
        "version": 41, "env_steps": 6144, "first_env_steps": 2048, "iterations": 6, "lag_min": 0.0, "lag_avg": 4.25,
        "lag_max": 9.0, "wait": 20.0, "batch": 21.0, "update": 22.0, "publish": 23.0, "save": 24.0, "gpu_mem": 25.0,
        "gpu_cache": 26.0, "skipped_steps": 4, "steps": 32, "lag_sum": 104.0, "lag_acting": 32.0,
        "lag_queued": 8.0, "lag_most": 11.0, "left_out": 23,
    },
}  # fmt: skip
LAG_COUNTS_AT_THE_END = {0: [5, 0, 7], 1: [0, 3, 2, 1]}
INFERENCE_AT_THE_END = [  # two workers of policy 0, then two of policy 1
    {"samples": 100 + 1000 * i, "requests": 20 + 8 * i, "forwards": 4 + i, "refreshes": 30 + 10 * i,
     "refresh_seconds": 0.6 + 0.2 * i, "weights_version": 33 + i, "wait": 1.0 + i, "gather": 2.0 + i,
     "forward": 0.5 + 0.25 * i, "scatter": 4.0 + i, "weights": 5.0 + i, "gpu_mem": 6.0 + i, "gpu_cache": 7.0 + 3 * i}
    for i in range(4)
]  # fmt: skip
ROLLOUT_AT_THE_END = [
    {"env_steps": 4000, "episodes": 3, "dropped": 5, "clipped": 600, "step": 30.0, "wait": 31.0, "write": 32.0},
    {"env_steps": 6000, "episodes": 4, "dropped": 6, "clipped": 900, "step": 40.0, "wait": 41.0, "write": 42.0},
]
EPISODES = [
    Episode(0, 10.0, 5, 1.0), Episode(1, -3.0, 7, 2.0), Episode(0, 20.0, 9, 4.0), Episode(0, 60.0, 10, 10.0),
]  # fmt: skip
LARGE_VERSION = 2**24 + 1
"""No float32."""
SECONDS = 10.0
"""Between the first look and the last one."""


@dataclass
class Shown:
    """Everything that a run has shown."""

    lines: list[str]
    summary: dict[str, Any]
    curves: dict[int, dict[str, float]]
    """Policy to tag to the last value."""
    metrics: dict[int, dict[str, Any]]
    """The same of metrics.jsonl."""


def hand_out(slots: Slots) -> None:
    """Five slots are learned, the worker of three dies, two stay full, and four are being filled."""
    for _ in range(5):
        slots.start_filling(0)
        slots.finish_filling(0)
        for policy_id in (0, 1):
            slots.take(0, policy_id)
            slots.release(0, policy_id)
    for _ in range(3):
        slots.start_filling(1)
        slots.discard(1, Discard.WORKER_DIED)
    for slot in range(2, 8):
        slots.start_filling(slot)
        if slot < 4:
            slots.finish_filling(slot)


SLOTS = {"allocated": 14, "learned": 5, "free": 4, "in_flight": 0}
DISCARDED = {"worker_died": 3, "unused": 0, "not_learned": 2}


def write(record: Record, **counters: float) -> None:
    for name, value in counters.items():
        record[name] = value
    record.publish()


@pytest.fixture
def shown(tmp_path: Path) -> Shown:
    """A run of two policies with two inference workers each, of which every record is known."""
    lab = make_lab(
        tmp_path, num_policies=2, num_workers=2, policy_workers_per_policy=2, env_frameskip=4, reward_clip=1.0,
        async_rl=True, stats_avg=2, batch_size=64, num_batches_per_epoch=1, worker_num_splits=2, stop_at_reward=1e9,
    )  # fmt: skip
    for policy_id, end in LEARNER_AT_THE_END.items():  # it was resumed
        before = end["first_env_steps"]
        write(learner_record(lab.arena, policy_id), env_steps=before, first_env_steps=before, version=8)
    tape = Tape()
    monitor = Monitor(lab.config, tmp_path, 1, tape, ExpectedLag(1.0, 4.5, 12.0, is_exact=False))
    session = Session(lab.config, lab.shared, monitor, Callbacks())
    monitor.watch(dict, session.faults)
    session.started_s = 100.0
    monitor.begin(session.snapshot(100.0))
    monitor.poll(session.snapshot(100.0))
    for policy_id, end in LEARNER_AT_THE_END.items():
        write(learner_record(lab.arena, policy_id), **end)
    for policy_id, counts in LAG_COUNTS_AT_THE_END.items():
        lab.arena[LAG_COUNTS][0, policy_id, : len(counts)] = counts
    for index, counters in enumerate(INFERENCE_AT_THE_END):
        write(inference_record(lab.arena, index), **counters)
    for index, counters in enumerate(ROLLOUT_AT_THE_END):
        write(rollout_record(lab.arena, index), **counters)
    hand_out(lab.slots)
    rings = [EpisodeRing(lab.arena, worker) for worker in range(2)]
    for index, episode in enumerate(EPISODES):
        rings[index // 3].append(episode)
    episodes = [episode for ring in session.rings for episode in ring.new_episodes()]
    monitor.poll(session.snapshot(100.0 + SECONDS), episodes)
    session.take([
        *TrainSummary.of(0, LARGE_VERSION, 5120, {"kl_loss": 0.25, "exploration_loss": -0.5}),
        EvaluationDone(1, 40, 6000, 9, 1.5, 0.25, -2.0, 4.0, 33.0, num_cut=2),
    ])  # fmt: skip
    session.finish("train_for_env_steps reached", 0)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    metrics: dict[int, dict[str, Any]] = {0: {}, 1: {}}
    for point in lines:
        metrics[point["policy_id"]] |= point
    curves = {
        policy: {tag: curve[-1][1] for tag, curve in read_events(tmp_path / ".summary" / str(policy)).items()}
        for policy in (0, 1)
    }
    return Shown(tape.text.splitlines(), json.loads((tmp_path / "summary.json").read_text()), curves, metrics)


def test_a15_a18_a19_a20_report_line(shown: Shown) -> None:
    """Frames of both policies, 4096 each since the first look; samples of all four inference workers."""
    reports = [line for line in shown.lines if "Fps is" in line]
    fps, samples = 8192 / SECONDS, 100 + 1100 + 2100 + 3100
    expected = (
        f"Fps is (10 sec: {fps:.1f}, 60 sec: {fps:.1f}, 300 sec: {fps:.1f}). Total num frames: 11264. "
        f"Throughput: 0: {1200 / SECONDS:.1f}, 1: {5200 / SECONDS:.1f}. Samples: {samples}. "
        "Policy #0 lag: (min: 1.0, avg: 2.5, max: 7.0)"
    )
    assert reports[-1].endswith(expected)


def test_a16_reward_line_and_the_outcome(shown: Shown) -> None:
    assert shown.lines[-1].endswith(
        "Reached a mean return of 30.000 over 3 episodes with policy 0 and a mean return of -3.000 over 1 episode with "
        "policy 1 after 11,264 frames, 8,192 of them since this start, in 10.0 s. The run has ended: "
        "train_for_env_steps reached."
    )
    assert "Avg episode reward: [(0, '30.000'), (1, '-3.000')]" in "\n".join(shown.lines)
    for begin in (
        "Policy #0 lag over the run: avg 2.0 (acting 0.5, queued 1.0, epochs 0.5), max 8.0",
        "Policy #1 lag over the run: avg 3.2 (acting 1.0, queued 0.2, epochs 2.0), max 11.0",
    ):
        assert f"{begin} (expected: avg 4.5, max 12)" in shown.lines
    assert shown.summary["expected_lag"] == {"min": 1.0, "avg": 4.5, "max": 12.0, "is_exact": False}
    assert any(line.endswith("Collected {0: 5120, 1: 6144}, FPS: 819.2") for line in shown.lines)


def test_a17_weight_line_is_of_the_worker_that_has_refreshed_most_often(shown: Shown) -> None:
    lines = [line for line in shown.lines if "Updated weights" in line]
    assert [line.partition("Updated weights ")[2] for line in lines] == [
        "for policy 0, policy_version 34 (0.0200)",  # 0.8 s in 40 refreshes
        "for policy 1, policy_version 36 (0.0200)",  # 1.2 s in 60
    ]


def test_evaluation_line(shown: Shown) -> None:
    line = next(line for line in shown.lines if "Evaluation of" in line)
    assert line.endswith(
        "Evaluation of policy 1, policy_version 40, 6000 frames: reward 1.500 ± 0.250 (min -2.000, max 4.000) in 9 "
        "episodes, 2 of them cut because they were too long (--max_episode_steps)"
    )


# Written out: of policy 0, requests 20 + 28 in 4 + 5 forward passes, which took 0.5 + 0.75 s; waits were 1 + 2 s.
CURVES: dict[int, dict[str, float]] = {
    0: {
        "perf/_fps": 819.2, "perf/_sample_throughput": 120.0,
        "reward/reward": 40.0, "reward/reward_min": 20.0, "reward/reward_max": 60.0,
        "len/len": 9.5, "len/len_min": 9.0, "len/len_max": 10.0,
        "policy_stats/avg_true_objective": 7.0, "policy_stats/avg_true_objective_min": 4.0,
        "policy_stats/avg_true_objective_max": 10.0,
        "stats/avg_request_count": 48 / 9, "stats/step_policy": 1.25 / 9, "stats/wait_policy": 3.0 / 9,
        "stats/gpu_mem_learner": 15.0, "stats/gpu_cache_learner": 16.0,
        "stats/gpu_mem_policy_worker": 6.5, "stats/gpu_cache_policy_worker": 8.5,
        "stats/clipped_rewards": 0.15, "lag/acting": 0.5, "lag/queued": 1.0, "lag/epochs": 0.5,
        "faults/skipped_steps": 7.0, "faults/dropped_nonfinite": 11.0, "faults/failed_saves": 0.0,
        "faults/unread_episodes": 0.0,
        **{f"slots/{side}": count for side, count in SLOTS.items()},
        **{f"faults/discarded_{why}": count for why, count in DISCARDED.items()},
        "train/kl_loss": 0.25, "train/exploration_loss": -0.5, "train/num_sgd_steps": LARGE_VERSION,
    },
    1: {
        "perf/_fps": 819.2, "perf/_sample_throughput": 520.0,
        "reward/reward": -3.0, "reward/reward_min": -3.0, "reward/reward_max": -3.0,
        "len/len": 7.0, "len/len_min": 7.0, "len/len_max": 7.0,
        "policy_stats/avg_true_objective": 2.0, "policy_stats/avg_true_objective_min": 2.0,
        "policy_stats/avg_true_objective_max": 2.0,
        "stats/avg_request_count": 80 / 13, "stats/step_policy": 2.25 / 13, "stats/wait_policy": 7.0 / 13,
        "stats/gpu_mem_learner": 25.0, "stats/gpu_cache_learner": 26.0,
        "stats/gpu_mem_policy_worker": 8.5, "stats/gpu_cache_policy_worker": 14.5,
        "lag/acting": 1.0, "lag/queued": 0.25, "lag/epochs": 2.0,
        "eval/reward": 1.5, "eval/reward_std": 0.25, "eval/reward_min": -2.0, "eval/reward_max": 4.0, "eval/len": 33.0,
        "eval/episodes": 9.0, "eval/policy_version": 40.0, "eval/frames": 6000.0,
    },
}  # fmt: skip


def of_the_machine(tag: str) -> bool:
    """Whether only the machine of the moment knows the value."""
    return "memory" in tag or tag == "faults/checkpoint_age"


@pytest.mark.parametrize("policy", [0, 1])
def test_a22_curves(shown: Shown, policy: int) -> None:
    found = {tag: value for tag, value in shown.curves[policy].items() if not of_the_machine(tag)}
    there = {tag: value for tag, value in CURVES[policy].items() if value or not tag.startswith("faults/")}
    assert found == pytest.approx(there)


@pytest.mark.parametrize("policy", [0, 1])
def test_a22_metrics_are_the_curves(shown: Shown, policy: int) -> None:
    assert {tag: shown.metrics[policy][tag] for tag in CURVES[policy]} == pytest.approx(CURVES[policy])
    assert shown.metrics[0]["train/num_sgd_steps"] == LARGE_VERSION


@pytest.mark.parametrize("policy", [0, 1])
def test_histogram_of_lag_has_a_bar_for_each_number_of_steps(shown: Shown, policy: int, tmp_path: Path) -> None:
    """Once, because later points have nothing new."""
    counts = LAG_COUNTS_AT_THE_END[policy]
    ((_, bars),) = read_histograms(tmp_path / ".summary" / str(policy))["lag/histogram"]
    assert bars == {lag + 0.5: count for lag, count in enumerate(counts)}
    assert shown.metrics[policy]["lag/histogram"] == counts


def test_summary(shown: Shown) -> None:
    """Steps of environments are frames without frame skip."""
    summary = shown.summary
    assert {name: summary[name] for name in ("frames", "env_steps", "new_frames", "wall_time_s", "fps")} == {
        "frames": 11264, "env_steps": 2816, "new_frames": 8192, "wall_time_s": 10.0, "fps": 819.2,
    }  # fmt: skip
    assert summary["clipped_rewards"] == pytest.approx(0.15)
    assert summary["policies"] == [
        {
            "frames": 5120, "samples": 1200, "policy_version": 37, "lag": {"min": 1.0, "avg": 2.5, "max": 7.0},
            "too_old": 17, "cut_short": 0,
            "lag_of_run": {"avg": 2.0, "max": 8.0, "acting": 0.5, "queued": 1.0, "epochs": 0.5, "histogram": [5, 0, 7]},
            "reward": 30.0, "episodes": 3,
        },
        {
            "frames": 6144, "samples": 5200, "policy_version": 41, "lag": {"min": 0.0, "avg": 4.25, "max": 9.0},
            "too_old": 23, "cut_short": 0,
            "lag_of_run": {
                "avg": 3.25, "max": 11.0, "acting": 1.0, "queued": 0.25, "epochs": 2.0, "histogram": [0, 3, 2, 1],
            },
            "reward": -3.0, "episodes": 1,
        },
    ]  # fmt: skip
    assert summary["seconds"] == {
        "rollout-0": {"step": 30.0, "wait": 31.0, "write": 32.0},
        "rollout-1": {"step": 40.0, "wait": 41.0, "write": 42.0},
        **{
            f"inference-{i // 2}-{i % 2}": {
                "forward": 0.5 + 0.25 * i, "wait": 1.0 + i, "gather": 2.0 + i, "scatter": 4.0 + i, "weights": 5.0 + i,
            }
            for i in range(4)
        },
        "learner-0": {"update": 12.0, "wait": 10.0, "batch": 11.0, "publish": 13.0, "save": 14.0},
        "learner-1": {"update": 22.0, "wait": 20.0, "batch": 21.0, "publish": 23.0, "save": 24.0},
    }  # fmt: skip
    assert summary["faults"]["faults/skipped_steps"] == 7.0
    assert summary["slots"] == SLOTS | {"discarded": DISCARDED}
    line = "Slots: 14 allocated = 5 learned + 5 discarded (3 worker died, 2 not learned) + 4 free"
    assert line in shown.lines


def test_time_shares_are_of_the_process_and_the_activity(shown: Shown) -> None:
    text = "\n".join(shown.lines)
    assert re.search(r"rollout-0 +write +34\.4% +wait +33\.3% +step +32\.3%", text)
    assert re.search(r"learner-1 +save +21\.8% +publish +20\.9% +update +20\.0% +batch +19\.1% +wait +18\.2%", text)
