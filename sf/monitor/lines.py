"""The lines on the console, to the character, and the windows behind their numbers.

Pure functions and counters without a clock: the caller knows the time. They read nothing and print nothing, so that
any process can use them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence

from sf.console import rounded
from sf.monitor.expected_lag import ExpectedLag
from sf.monitor.lag_sight import LagCounted
from sf.shared.messages import EvaluationDone

REPORT_INTERVAL_S = 5.0
REFRESHES_PER_LINE = 10
"""There is a line when an inference worker has picked up weights for the tenth, twentieth, ... time since the last."""

FPS_WINDOWS = (2, 12, 60)
"""Reports that the three rates of the report line look back: 10, 60 and 300 seconds."""
THROUGHPUT_REPORTS = 10
NO_WORDS: Mapping[int, str] = {}


def report_line(
    fps: Sequence[float], frames: int, throughput: Sequence[float], samples: int, lag: tuple[float, float, float]
) -> str:
    """The line that says how fast and how far the run is.

    Args:
        fps: frames per second over 10, 60 and 300 seconds.
        frames: all frames, of all policies.
        throughput: samples per second of each policy.
        samples: all samples since this start.
        lag: minimum, mean and maximum of policy 0.
    """
    windows = ", ".join(f"{name} sec: {value:.1f}" for name, value in zip((10, 60, 300), fps, strict=True))
    rates = ", ".join(f"{policy}: {value:.1f}" for policy, value in enumerate(throughput))
    shown = "min: {:.1f}, avg: {:.1f}, max: {:.1f}".format(*lag)
    return (
        f"Fps is ({windows}). Total num frames: {frames}. Throughput: {rates}. Samples: {samples}. "
        f"Policy #0 lag: ({shown})"
    )


def reward_line(rewards: Mapping[int, float]) -> str:
    """The mean return of each policy that has finished an episode."""
    means = [(policy, rounded(reward)) for policy, reward in sorted(rewards.items())]
    return f"Avg episode reward: {means}"


def agents_line(by_agent: Mapping[int, str]) -> str:
    """The mean return of each agent under each policy, in words; nothing where environments have one agent."""
    return ". ".join(f"Policy #{policy} {words}" for policy, words in sorted(by_agent.items()) if words)


def weight_line(policy_id: int, version: int, mean_copy_s: float) -> str:
    """How new the weights are that act.

    Args:
        policy_id: of the policy.
        version: of the weights that an inference worker has.
        mean_copy_s: mean seconds in which it takes new ones.
    """
    return f"Updated weights for policy {policy_id}, policy_version {version} ({mean_copy_s:.4f})"


def collected_line(frames: Mapping[int, int], fps: float) -> str:
    """The line at the end: frames of each policy, and the rate over the whole run since this start."""
    return f"Collected {dict(frames)}, FPS: {fps:.1f}"


def lag_line(policy_id: int, counted: LagCounted, expected: ExpectedLag | None) -> str:
    """The policy lag of a whole run, its sources, and the lag that the sizes of the run promise if they do."""
    acting, queued, epochs = counted.by_source
    measured = f"avg {counted.mean:.1f} (acting {acting:.1f}, queued {queued:.1f}, epochs {epochs:.1f})"
    promised = ""
    if expected is not None:
        is_late = counted.largest > expected.max and not expected.is_exact
        why = "; larger where a worker waits for a core or its environments" if is_late else ""
        promised = f" (expected: avg {expected.avg:.4g}, max {expected.max:.4g}{why})"
    return f"Policy #{policy_id} lag over the run: {measured}, max {counted.largest:.1f}{promised}"


def outcome_line(
    rewards: Mapping[int, tuple[float, int]],
    frames: int,
    new_frames: int,
    seconds: float,
    why: str,
    has_nothing_left: bool = False,
    words: Mapping[int, str] = NO_WORDS,
) -> str:
    """The last line: what was reached, at what price, and why the run ended.

    Args:
        rewards: policy to its mean return, and the number of its last episodes over which that is; without the
            policies that have finished none.
        frames: all frames, of all policies.
        new_frames: those since this start.
        seconds: of wall time since this start.
        why: such as "stop_at_reward reached".
        has_nothing_left: everything was learned before this start.
        words: policy to what its mean return does not say, such as the returns of each agent.
    """
    first_line = why.partition("\n")[0].rstrip(".")
    if has_nothing_left:
        return f"Nothing was left to learn after {frames:,} frames. The run has ended: {first_line}."
    several = len(rewards) > 1 or 0 not in rewards
    reached = [
        f"a mean return of {rounded(mean)} over {episodes} episode{'s' if episodes > 1 else ''}"
        + (f" with policy {policy}" if several else "")
        + (f" ({words[policy]})" if words.get(policy) else "")
        for policy, (mean, episodes) in sorted(rewards.items())
    ]
    before = "" if new_frames == frames else f", {new_frames:,} of them since this start,"
    what = f"Reached {' and '.join(reached)}" if reached else "No episode has ended"
    return f"{what} after {frames:,} frames{before} in {seconds:.1f} s. The run has ended: {first_line}."


def evaluation_line(done: EvaluationDone) -> str:
    if not done.episodes:
        return f"Evaluation of policy {done.policy_id}: no agent of it has come in these episodes."
    return (
        f"Evaluation of policy {done.policy_id}, policy_version {done.version}, {done.frames} frames: "
        f"reward {rounded(done.reward)} ± {rounded(done.reward_std)} (min {rounded(done.reward_min)}, "
        f"max {rounded(done.reward_max)}) in {done.episodes} episodes"
        + (f", {done.num_cut} of them cut because they were too long (--max_episode_steps)" if done.num_cut else "")
    )


class FpsWindows:
    """Frames per second over the last reports; a young run shows what it has."""

    def __init__(self) -> None:
        self._reports: deque[tuple[float, int]] = deque(maxlen=max(FPS_WINDOWS) + 1)

    def record(self, time_s: float, frames: int) -> None:
        """Adds one report."""
        self._reports.append((time_s, frames))

    def values(self) -> list[float]:
        """The rate of each window, nan with fewer than two reports."""
        newest = len(self._reports) - 1
        return [_rate(self._reports, max(0, newest - back)) for back in FPS_WINDOWS]


class Throughput:
    """Samples per second of one policy over at most ten reports."""

    def __init__(self) -> None:
        self._reports: deque[tuple[float, int]] = deque(maxlen=THROUGHPUT_REPORTS)

    def record(self, time_s: float, samples: int) -> None:
        """Adds one report."""
        self._reports.append((time_s, samples))

    def value(self) -> float:
        """The rate, nan with fewer than two reports."""
        return _rate(self._reports, 0)


def _rate(reports: Sequence[tuple[float, int]], then: int) -> float:
    """Counts per second from report `then` to the newest one."""
    if len(reports) < 2:
        return math.nan
    (then_s, count_then), (now_s, count_now) = reports[then], reports[-1]
    return (count_now - count_then) / (now_s - then_s) if now_s > then_s else math.nan
