"""What the monitor prints, and when: rows A15 to A20 and A25."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import pytest

from sf.monitor import Lag, PolicySnapshot, Snapshot
from sf.monitor.episodes import EpisodeWindows
from sf.shared.messages import CheckpointSaved
from tests.helpers.monitored import Start, episode


def test_a15_a_report_every_five_seconds(start: Start, oracles: dict[str, Any]) -> None:
    run = start()
    run.go(20.5)
    reports = run.tape.lines("Fps is")
    found = [re.fullmatch(oracles["A15"]["regex"], line) for line in reports]
    assert [match and match["frames"] for match in found] == ["500", "1000", "1500", "2000"], (
        "none before there is a rate"
    )
    assert [match and match["fps10"] for match in found] == ["100.0"] * 4


def test_a16_reward_line_follows_the_report_once_an_episode_has_ended(start: Start, oracles: dict[str, Any]) -> None:
    run = start()
    run.go(4)
    assert run.tape.lines("reward") == []
    run.go(6.5, lambda: [episode()])
    lines = run.tape.lines()
    assert [("Fps" in line, "'1.250'" in line) for line in lines] == [(True, False), (False, True)] * 2
    assert re.fullmatch(oracles["A16"]["regex"], lines[-1])


def test_a16_reward_is_the_mean_of_the_last_100_episodes() -> None:
    windows = EpisodeWindows(num_policies=2, stats_avg=3)
    windows.add([episode(-7.0)] * 50 + [episode(1.0)] * 60 + [episode(2.0)] * 40)
    assert windows.mean_rewards() == {0: pytest.approx((60 + 80) / 100)}
    assert windows.counts == [150, 0]
    windows.recall([episode(2.0)] * 100)
    assert (windows.mean_rewards(), windows.counts) == ({0: 2.0}, [150, 0])
    assert windows.scalars(0)["reward/reward_min"] == 2.0  # TensorBoard covers stats_avg episodes
    assert windows.scalars(1) == {}


def test_a18_lag_of_the_newest_minibatch_is_shown(start: Start) -> None:
    run = start()
    run.go(4)
    run.policy = PolicySnapshot(lag=Lag(3.0, 3.0, 3.0))
    run.go(2)
    run.policy = PolicySnapshot(lag=Lag(1.0, 2.0, 3.5))
    run.go(5)
    lags = [line.partition("lag: ")[2] for line in run.tape.lines("Fps is")]
    assert lags == ["(min: 3.0, avg: 3.0, max: 3.0)", "(min: 1.0, avg: 2.0, max: 3.5)"]


def test_a17_one_line_between_two_reports_for_ten_refreshes_and_more(start: Start, oracles: dict[str, Any]) -> None:
    """The oracle, and several intervals in a row: refreshes count on where no line was due."""
    for case in oracles["A17"]["cases"][1:]:
        run = start()
        run.go(0.5)
        run.policy = PolicySnapshot(refreshes=case["inputs"]["refreshes"])
        run.go(9)
        assert len(run.tape.lines("Updated weights")) == case["expected"]["lines"]
    run, told = start(), []
    for refreshes, version in ((0, 0), (9, 8), (10, 9), (10, 9), (37, 40), (39, 42), (40, 43)):
        before = len(run.tape.lines("Updated weights"))
        run.policy = PolicySnapshot(refreshes=refreshes, weights_version=version, refresh_s=0.0015)
        run.go(5)
        told += [line for line in run.tape.lines("Updated weights")[before:]]
    assert all(re.fullmatch(oracles["A17"]["regex"], line) for line in told)
    assert [line.partition("] Updated")[2] for line in told] == [
        f" weights for policy 0, policy_version {version} (0.0015)" for version in (9, 40, 43)
    ]


def test_a_short_run_ends_with_a_report_of_its_own(start: Start) -> None:
    """Less than five seconds, and one that ends at the moment of a report."""
    run = start()
    run.go(2)
    run.monitor.poll(run.snapshot(), [episode(1.25)])
    run.finish()
    reports, rewards = run.tape.lines("Fps is"), run.tape.lines("Avg episode reward")
    assert ["Total num frames: 200." in line for line in reports] == [True]
    assert "(10 sec: 100.0" in reports[-1]
    assert len(rewards) == 1
    run = start()
    run.go(5.5)
    run.now -= 0.5
    run.finish()
    assert len(run.tape.lines("Fps is")) == 1


def test_nothing_is_reported_before_something_is_learned(start: Start) -> None:
    """No rate that is no number, and no lag of -1."""
    run = start(fps=0)
    run.go(21)
    assert run.tape.lines("Fps is") == []
    run.finish()
    assert "nan" not in run.tape.text
    assert "-1.0" not in run.tape.text


def test_a20_frames_count_the_frameskip_and_samples_do_not(start: Start, oracles: dict[str, Any]) -> None:
    run = start()
    for second in range(11):
        policy = PolicySnapshot(frames=10_000 + 4 * 50 * second, samples=50 * second)
        run.monitor.poll(Snapshot(float(second), (policy,)))
    match = re.fullmatch(oracles["A15"]["regex"], run.tape.lines("Fps is")[-1])
    assert match
    assert (match["frames"], match["samples"]) == ("12000", "500")
    assert float(match["fps10"]) / float(match["throughput"][3:]) == pytest.approx(4)


def test_a25_one_warning_when_the_lag_first_exceeds_30(start: Start) -> None:
    """On average between two reports: what the last minibatch of an iteration reaches for a moment is no reason."""
    run = start()
    told = []
    for lags in ((29.0,) * 5, (30.0,) * 5, (20.0, 20.0, 20.0, 20.0, 60.0), (31.25,) * 5, (50.0,) * 5, (10.0,) * 5):
        for lag in lags:
            run.policy = PolicySnapshot(lag=Lag(0.0, lag, 2 * lag))
            run.go(1)
        told.append(len(run.tape.lines("Warning")))
    assert told == [0, 0, 0, 0, 1, 1]  # each interval is told of at the report that follows it
    (warning,) = run.tape.lines("Warning")
    assert warning.endswith(
        "Warning: the average policy lag is 31.2 optimizer steps, the age of 2.6 batches, with which some tasks learn "
        "less (docs/policy-lag.md). One "
        "sampling round makes 12 optimizer steps here. A larger --batch_size, fewer --num_epochs or fewer "
        "--num_envs_per_worker lower the lag, --async_rl=False bounds it."
    )


def test_checkpoints_are_announced(start: Start) -> None:
    run = start()
    run.monitor.checkpoint_saved(CheckpointSaved(0, "best", "x/checkpoint_1", 12))
    run.monitor.checkpoint_saved(CheckpointSaved(1, "periodic", "", 13, error="no space"))
    first, second = run.tape.lines()
    assert first.endswith("] Saved x/checkpoint_1 (best, policy_version 12)")
    assert second.endswith("] Warning: the checkpoint of policy 1 was not written: no space")


def test_a15_last_lines_say_what_was_collected_and_where_time_went(start: Start) -> None:
    run = start()
    run.go(10)
    run.finish()
    *_, table, first, second, third, verdict, slots, collected, outcome = run.tape.lines()
    assert table == "Time shares:"
    assert first == "  rollout-0      step  75.0%  wait  25.0%"
    assert second == "  inference-0-0  wait  75.0%  forward  25.0%"
    assert third == "  learner-0      update  50.0%  wait  50.0%"
    assert verdict.startswith("The environments hold the run back")
    assert slots == "Slots: 7 allocated = 4 learned + 1 discarded (1 worker died) + 2 free"
    assert collected.endswith("] Collected {0: 1000}, FPS: 100.0")
    assert outcome.endswith(" frames in 10.0 s. The run has ended: train_for_env_steps reached.")


def test_fault_e5_lost_output_does_not_change_the_exit_code() -> None:
    code = "from sf.monitor import Console; c = Console(); [c.line('x' * 1000) for _ in range(1000)]"
    reader, writer = os.pipe()
    process = subprocess.Popen([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    os.close(reader)
    assert process.communicate()[1] == b""
    assert process.returncode == 0
