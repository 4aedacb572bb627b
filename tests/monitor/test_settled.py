"""Decisions look at episodes that no older one can join any more, so that short episodes do not decide alone."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sf.config import RunConfig
from sf.errors import ExitCode
from sf.evaluator.playing import LONGEST_EPISODE
from sf.monitor import Monitor, PolicySnapshot, Snapshot
from sf.monitor.episodes import EpisodeWindows
from sf.monitor.goal import GoalWaits, LeftOut
from sf.monitor.settled import LONGEST, SettledEpisodes
from sf.shared.episodes import Episode
from sf.shared.ledger import Ledger
from tests.helpers.commands import EXPERIMENT, NAME, run
from tests.helpers.monitored import SECONDS, Tape, config, seen_at

SMALL = (
    "--env=tests.environments.luck:Lottery-v0",
    NAME,
    "--num_workers=1",
    "--num_envs_per_worker=8",
    "--batch_size=256",
    "--seed=1",
)


def one(row: int, reward: float = 0.0, policy_id: int = 0) -> Episode:
    return Episode(policy_id, reward, 1, reward, row=row)


def test_episodes_that_end_after_a_decision_change_nothing_of_what_is_told(tmp_path: Path) -> None:
    """They used to: a run that had ended at a mean of 1 said that it had reached 0."""
    wanted = replace(config(), run=replace(config().run, stop_at_reward=1.0, stop_at_reward_episodes=4))
    monitor = Monitor(wanted, tmp_path, 1, console=(tape := Tape()))
    start, end = (Snapshot(float(second), (PolicySnapshot(frames=second),)) for second in range(2))
    monitor.begin(start)
    monitor.poll(start, [one(row % 8, 1.0) for row in range(16)])
    monitor.settled.close()
    monitor.poll(end, [one(row % 8) for row in range(400)])
    monitor.finish("stop_at_reward reached", 0, SECONDS, Ledger(0, 0, {}, 0, 0))
    assert "Reached a mean return of 1.000 over 4 episodes" in tape.text
    assert json.loads((tmp_path / "summary.json").read_text())["policies"][0]["reward"] == 1.0


def test_a_long_episode_holds_back_those_that_began_after_it() -> None:
    settled = SettledEpisodes(num_policies=1, num_rows=2, size=10)
    settled.add([one(0, 1.0), one(0, 2.0), one(0, 3.0)])
    assert settled.num_kept(0) == 0, "the first episode of row 1 goes on"
    settled.add([one(1, 40.0)])
    assert settled.num_kept(0) == 4, "those that began before the present one of row 0"
    assert settled.mean_score(0, 4) == (1 + 2 + 3 + 40) / 4
    settled.add([one(1, 50.0)])
    assert settled.num_kept(0) == 4, "the present one of row 0 began before it"
    settled.add([one(0, 6.0)])
    assert settled.mean_score(0, 2) == (6 + 50) / 2
    assert settled.mean_score(0, 7) is None, "fewer than that"


def test_episodes_of_one_row_count_at_once() -> None:
    settled = SettledEpisodes(1, 1, 3)
    for reward in (1.0, 2.0, 3.0, 4.0):
        settled.add([one(0, reward)])
    assert settled.mean_score(0, 3) == 3.0


@pytest.mark.parametrize("most_at_once", [1, 7])
def test_settled_episodes_are_those_of_the_slow_definition(most_at_once: int) -> None:
    """Whatever the lengths, and however many are taken in at once."""
    random = np.random.default_rng(3)
    rows, policies = 5, 2
    settled = SettledEpisodes(policies, rows, size=10_000)
    began, history, number = [0] * rows, [], 0
    while number < 400:
        new = []
        for _ in range(random.integers(1, most_at_once + 1)):
            row = int(random.choice(rows, p=[0.5, 0.3, 0.15, 0.04, 0.01]))
            number += 1
            episode = one(row, float(number), int(random.integers(policies)))
            history.append((began[row], episode))
            began[row] = number
            new.append(episode)
        settled.add(new)
        cut = min(began)
        for policy in range(policies):
            wanted = sorted(e.reward for b, e in history if b < cut and e.policy_id == policy)
            assert sorted(e.reward for e in settled._settled[policy]) == wanted


def test_mean_of_the_lottery_is_that_of_all_episodes_that_began() -> None:
    """In eight rows, where the first twenty that end are mostly short ones."""
    found: list[float] = []
    first: list[float] = []
    for seed in range(30):
        random = np.random.default_rng(seed)
        settled, ended = SettledEpisodes(1, 8, 100), EpisodeWindows(1, 100)
        is_long, left = np.zeros(8, bool), np.zeros(8, int)
        for _ in range(1200):
            new = []
            for row in range(8):
                if left[row] == 0:
                    is_long[row] = random.random() < 0.25
                    left[row] = 40 if is_long[row] else 1
                left[row] -= 1
                if left[row] == 0:
                    new.append(one(row, float(not is_long[row])))
            settled.add(new)
            ended.add(new)
            if len(first) == seed and ended.num_kept(0) >= 20:
                first.append(ended.mean_rewards(20)[0])
        found.append(settled.mean_score(0, 100) or math.nan)
    assert np.mean(first) > 0.87
    assert np.mean(found) == pytest.approx(0.75, abs=4 * np.sqrt(0.75 * 0.25 / 3000))


def test_a_row_that_never_ends_does_not_take_ever_more_memory() -> None:
    settled = SettledEpisodes(1, 2, size=5, most_waiting=10)
    for number in range(100):
        settled.add([one(0, float(number))])
    assert len(settled._waiting) <= 10
    settled.add([one(1, -1.0)])
    assert settled.num_kept(0) == 5, "the newest ones that began before the present one of row 0"
    assert settled.mean_score(0, 5) == 97.0, (
        "without the first one of row 1, which is as old as those that are forgotten"
    )


def test_an_endless_episode_holds_decisions_back_for_a_time() -> None:
    settled, left_out = SettledEpisodes(1, 4, size=10), LeftOut()
    told: list[str] = []
    for step in range(30):
        settled.add([Episode(0, float(row), 1000, 0.0, row=row) for row in range(1, 4)])  # and none of row 0
        assert (settled.mean_score(0, 10) is None) == (step < 26), "27 episodes of 1,000 steps"
        told += [sentence for _ in range(2) if (sentence := left_out.look(seen_at(Snapshot(0.0, ()), settled=settled)))]
    (only,) = told
    assert only.startswith("Warning: 1 episode goes on for more than about 27,000 steps, and so --stop_at_reward and ")
    assert settled.mean_score(0, 3) == 2.0
    settled.add([Episode(0, 100.0, 30_000, 0.0, row=0)])
    assert settled.num_endless == 0
    assert settled.mean_score(0, 10) is not None
    settled.add([Episode(0, float(row), 1000, 0.0, row=row) for row in range(4)])
    assert 100.0 in [episode.reward for episode in settled._settled[0]], "it counts when it has ended"


def test_a_slow_row_whose_episodes_end_is_not_endless() -> None:
    """Its worker steps half as often as the others."""
    settled = SettledEpisodes(1, 2, size=10)
    for step in range(200):
        settled.add([Episode(0, 1.0, 1000, 0.0, row=0)])
        if step % 2:
            settled.add([Episode(0, 1.0, 1000, 0.0, row=1)])
        assert settled.num_endless == 0


def test_decisions_wait_as_long_as_evaluations_play() -> None:
    assert LONGEST == LONGEST_EPISODE


def test_a_number_that_only_some_episodes_have() -> None:
    settled = SettledEpisodes(1, 1, 3)
    settled.add([Episode(0, 1.0, 1, 1.0, {"keys": 4.0}), one(0), one(0)])
    assert settled.mean_score(0, 3, "env/keys") == 4.0
    assert settled.mean_score(0, 3, "env/doors") is None


def test_a_run_says_once_that_its_goal_waits() -> None:
    waits, ended, settled = (
        GoalWaits(RunConfig(env="Toy-v0", stop_at_reward=0.95)),
        EpisodeWindows(1, 100),
        SettledEpisodes(1, 2, 100),
    )
    for window in (ended, settled):
        window.add(one(0, 1.0) for _ in range(100))
    told = [waits.look(seen_at(Snapshot(now_s, ()), ended, settled)) for now_s in (0.0, 4.9, 5.0, 6.0)]
    assert told == [
        None,
        None,
        "The 100 episodes that ended last have a mean return of 1.000. Longer episodes that began before them go on, "
        "and --stop_at_reward=0.95 waits for those.",
        None,
    ]


def test_the_monitor_says_so_five_seconds_after_the_goal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monitor = Monitor(config(stop_at_reward=0.95), tmp_path, num_agents=1)
    told = []
    for now_s, episodes in ((0.0, []), (7.0, [one(0, 1.0)] * 100), (11.9, []), (12.0, []), (20.0, [])):
        monitor.poll(Snapshot(now_s, (PolicySnapshot(),)), episodes)
        told.append("--stop_at_reward=0.95 waits for those" in capsys.readouterr().out)
    monitor.finish("stopped", 0, SECONDS, Ledger(0, 0, {}, 0, 0))
    assert told == [False, False, False, True, False]


@pytest.mark.parametrize("flags", [{}, {"stop_at_reward": 5.0}])
def test_the_last_line_has_the_score_that_a_run_looks_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: dict[str, Any]
) -> None:
    monitor = Monitor(config(score="env/keys", **flags), tmp_path, num_agents=1)
    ended = [one(number % 8, 1.0)._replace(metrics={"keys": 3.0}) for number in range(200)]  # of all 8 rows
    for now_s, episodes in ((0.0, []), (7.0, ended)):
        monitor.poll(Snapshot(now_s, (PolicySnapshot(),)), episodes)
    monitor.finish("stopped", 0, SECONDS, Ledger(0, 0, {}, 0, 0))
    assert "Reached a mean return of 1.000 over 100 episodes (env/keys 3.000) after " in capsys.readouterr().out


@pytest.mark.more
@pytest.mark.parametrize("mode", [("--serial_mode=True",), ()])
def test_short_episodes_that_report_first_end_no_run(tmp_path: Path, mode: tuple[str, ...]) -> None:
    finished = run(tmp_path, *SMALL, *mode, "--stop_at_reward=0.95", "--train_for_env_steps=20000")
    assert finished.code == ExitCode.FINISHED, finished.err
    summary = json.loads((tmp_path / EXPERIMENT / "summary.json").read_text())
    assert summary["exit_reason"] == "train_for_env_steps reached"
