"""Console lines to the character, and the windows behind their numbers; rows A15 to A20."""

from __future__ import annotations

import math
import re
from datetime import datetime
from typing import Any

import pytest

from sf.console import prefix, rounded
from sf.monitor.lines import FpsWindows, Throughput, collected_line, outcome_line, report_line, reward_line, weight_line

NOW = datetime(2000, 1, 2, 3, 4, 5, 678_900)


def number(value: Any) -> float:
    return math.nan if value == "nan" else float(value)


def groups(oracle: dict[str, Any], line: str) -> dict[str, str]:
    match = re.fullmatch(oracle["regex"], line)
    assert match, line
    return match.groupdict()


def test_a15_prefix_is_local_time_with_milliseconds_and_padded_pid() -> None:
    assert prefix(NOW, 1234) == "[2000-01-02 03:04:05,678][01234] "
    assert prefix(NOW.replace(microsecond=999), 4194304) == "[2000-01-02 03:04:05,000][4194304] "


def test_a15_report_line_to_the_character(oracles: dict[str, Any]) -> None:
    full, empty = (case["inputs"]["line"] for case in oracles["A15"]["cases"])
    start = prefix(NOW, 1234)
    assert start + report_line([20480.0, 19660.8, 19660.8], 983040, [4956.2], 247808, (0.0, 1.4, 4.0)) == full
    nothing = report_line([math.nan] * 3, 0, [math.nan, math.nan], 0, (-1.0, -1.0, -1.0))
    assert start + nothing == empty


def test_a15_report_line_is_parsed_by_its_expression(oracles: dict[str, Any]) -> None:
    for case in oracles["A15"]["cases"]:
        assert groups(oracles["A15"], case["inputs"]["line"]) == case["expected"]
    line = prefix(NOW, 7) + report_line([1.0, 2.0, 3.0], 12, [4.0, 5.55], 9, (0.0, 0.25, 1.0))
    found = groups(oracles["A15"], line)
    assert (found["throughput"], found["lag_avg"]) == ("0: 4.0, 1: 5.5", "0.2")  # one decimal, halves to even


def test_a16_reward_line_to_the_character(oracles: dict[str, Any]) -> None:
    assert reward_line({0: 1.25}) == oracles["A16"]["cases"][0]["expected"]["message"]
    two = prefix(NOW.replace(microsecond=679_000), 1234) + reward_line({1: -3.5, 0: 1.25})
    assert two == oracles["A16"]["cases"][1]["inputs"]["line"]
    groups(oracles["A16"], two)


def test_a17_weight_line_to_the_character(oracles: dict[str, Any]) -> None:
    line = prefix(NOW.replace(microsecond=677_000), 1240) + weight_line(0, 926, 0.0015)
    assert line == oracles["A17"]["cases"][0]["inputs"]["line"]
    assert groups(oracles["A17"], line) == oracles["A17"]["cases"][0]["expected"]


@pytest.mark.parametrize(
    ("rewards", "frames", "new_frames", "why", "line"),
    [
        (
            {0: (476.214, 100)}, 250_709, 250_709, "stop_at_reward reached",
            "Reached a mean return of 476.214 over 100 episodes after 250,709 frames in 1.2 s. The run has ended: "
            "stop_at_reward reached.",
        ),
        (
            {0: (-1.5, 1), 1: (0.0, 7)}, 900, 400, "stopped by SIGINT",
            "Reached a mean return of -1.500 over 1 episode with policy 0 and a mean return of 0.000 over 7 episodes "
            "with policy 1 after 900 frames, 400 of them since this start, in 1.2 s. The run has ended: stopped by "
            "SIGINT.",
        ),
        (
            {}, 64, 64, "EnvCrashed: Toy-v0 raised.\nIts traceback: ...",
            "No episode has ended after 64 frames in 1.2 s. The run has ended: EnvCrashed: Toy-v0 raised.",
        ),
    ],
)  # fmt: skip
def test_outcome_says_what_was_reached_at_what_price_and_why_it_ended(
    rewards: Any, frames: int, new_frames: int, why: str, line: str
) -> None:
    assert outcome_line(rewards, frames, new_frames, 1.234, why) == line


@pytest.mark.parametrize("rewards", [{}, {0: (1.0, 7)}], ids=["no episodes", "those of an earlier start"])
def test_outcome_of_a_resume_that_had_nothing_left_to_learn(rewards: Any) -> None:
    line = outcome_line(rewards, 99_738, 0, 0.0, "train_for_env_steps reached", has_nothing_left=True)
    assert line == "Nothing was left to learn after 99,738 frames. The run has ended: train_for_env_steps reached."


def test_a19_windows_look_back_2_12_and_60_reports(oracles: dict[str, Any]) -> None:
    for case in oracles["A19"]["cases"]:
        windows = FpsWindows()
        for time_s, frames in zip(case["inputs"]["report_times_s"], case["inputs"]["frames"], strict=True):
            windows.record(time_s, frames)
        expected = [number(value) for value in case["expected"]["fps"]]
        assert windows.values() == pytest.approx(expected, abs=oracles["A19"]["tolerance"], nan_ok=True)


def test_a19_the_longest_window_forgets_what_is_older() -> None:
    windows = FpsWindows()
    for report in range(200):
        windows.record(5.0 * report, report * report)
    newest = 199
    expected = [(newest**2 - (newest - back) ** 2) / (5 * back) for back in (2, 12, 60)]
    assert windows.values() == pytest.approx(expected)


def test_a20_throughput_spans_ten_reports_at_most() -> None:
    throughput = Throughput()
    assert math.isnan(throughput.value())
    throughput.record(0.0, 0)
    assert math.isnan(throughput.value())
    for report in range(1, 30):
        throughput.record(5.0 * report, report * report)
    assert throughput.value() == pytest.approx((29**2 - 20**2) / 45)


def test_a20_two_reports_at_one_moment_are_no_division_by_zero() -> None:
    throughput = Throughput()
    throughput.record(1.0, 5)
    throughput.record(1.0, 9)
    assert math.isnan(throughput.value())


def test_collected_line() -> None:
    assert collected_line({0: 500, 1: 700}, 123.45) == "Collected {0: 500, 1: 700}, FPS: 123.5"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.824, "0.824"), (1.25, "1.250"), (0.0, "0.000"), (-200.0, "-200.000"), (0.001, "0.001"), (1e-6, "1e-06"),
     (-0.00042, "-0.00042"), (math.nan, "nan")],
)  # fmt: skip
def test_a16_rewards_have_three_decimals_unless_these_would_show_nothing(value: float, shown: str) -> None:
    assert reward_line({0: value}) == f"Avg episode reward: [(0, '{shown}')]"
    assert rounded(0.004, 2) == "0.004"
