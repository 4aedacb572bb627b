"""The pool of self-play: a table of rules, and the ratings against a slow reading of Elo's formula."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from sf.config import SelfPlayConfig
from sf.population.pool import OpponentRecord, Pool


def pool_of(size: int, **settings: object) -> Pool:
    """With `size` snapshots of 100, 200, ... frames."""
    pool = Pool(SelfPlayConfig(self_play_snapshot_every=100, **settings), seed=1)  # type: ignore[arg-type]
    for index in range(size):
        pool.add(f"snapshot_{index}", 100 * index)
    return pool


def test_a_snapshot_is_due_at_once_and_then_at_intervals_of_frames() -> None:
    pool = pool_of(0)
    assert pool.is_snapshot_due(0)
    pool.add("a", 40)
    assert not pool.is_snapshot_due(139)
    assert pool.is_snapshot_due(140)


def test_the_same_checkpoint_enters_the_pool_once() -> None:
    pool = pool_of(1)
    pool.add("snapshot_0", 0)
    assert [one.path for one in pool.snapshots] == ["snapshot_0"]


def test_a_gate_waits_for_a_score_against_the_pool() -> None:
    pool = pool_of(2, self_play_gate=0.6)
    assert not pool.is_snapshot_due(1000), "without a game the score is 0.5"
    for _ in range(20):
        pool.played(0, 1.0)
    assert pool.score == pytest.approx((21 / 22 + 0.5) / 2, abs=0.02)
    assert pool.is_snapshot_due(1000)


def test_the_newer_half_stays_and_of_the_older_one_the_most_beaten_goes() -> None:
    pool = pool_of(6, self_play_pool_size=4)
    for number, score in enumerate((0.0, 1.0, 0.5, 1.0)):
        for _ in range(10):
            pool.played(number, score)
    assert [one.number for one in pool.surplus(seated=())] == [1, 3]
    assert [one.number for one in pool.snapshots] == [0, 2, 4, 5]


def test_a_snapshot_that_plays_stays() -> None:
    pool = pool_of(5, self_play_pool_size=4)
    assert [one.number for one in pool.surplus(seated=(0, 1))] == [2]
    pool = pool_of(5, self_play_pool_size=4)
    assert pool.surplus(seated=(0, 1, 2)) == []


@pytest.mark.parametrize(
    ("opponents", "expected"),
    [
        ("uniform", [1 / 4, 1 / 4, 1 / 4, 1 / 4]),
        ("latest", [1 / 6, 1 / 6, 1 / 6, 1 / 2]),
        ("hard", [0.04, 0.64, 0.25, 0.25]),
    ],
)
def test_opponents_are_drawn_as_the_flag_says(opponents: str, expected: list[float]) -> None:
    pool = pool_of(4, self_play_opponents=opponents)
    pool.snapshots[0].results = OpponentRecord(recent_games=98, recent_points=79)  # score 0.8
    pool.snapshots[1].results = OpponentRecord(recent_games=98, recent_points=19)  # score 0.2
    drawn = Counter(one.number for one in (pool.draw() for _ in range(20_000)) if one is not None)
    shares = np.array([drawn[number] for number in range(4)]) / 20_000
    np.testing.assert_allclose(shares, np.array(expected) / sum(expected), atol=0.015)


def test_the_only_snapshot_is_the_opponent_and_an_empty_pool_has_none() -> None:
    assert pool_of(0).draw() is None
    for opponents in ("uniform", "latest", "hard"):
        drawn = pool_of(1, self_play_opponents=opponents).draw()
        assert drawn is not None
        assert drawn.number == 0


def test_ratings_follow_elo() -> None:
    pool, own, theirs = pool_of(2), 0.0, [0.0, 0.0]
    random = np.random.default_rng(3)
    for _ in range(500):
        number, score = int(random.integers(2)), float(random.choice([0, 0.5, 1]))
        pool.played(number, score)
        own += 8 * (score - 1 / (1 + 10 ** ((theirs[number] - own) / 400)))
    assert pool.rating == pytest.approx(own)
    pool.add("later", 500)
    assert pool.snapshots[-1].rating == pool.rating, "as the learner was then"


def test_a_stronger_learner_is_rated_by_how_often_it_wins() -> None:
    pool, random = pool_of(1), np.random.default_rng(5)
    tail = []
    for _ in range(4000):
        pool.played(0, float(random.random() < 0.75))
        tail.append(pool.rating)
    assert np.mean(tail[1000:]) == pytest.approx(400 * np.log10(3), abs=12), "odds of three to one"


def test_recent_games_count_more() -> None:
    results, games = OpponentRecord(), [0.0] * 300 + [1.0] * 100
    for score in games:
        results.add(score)
    weights = 0.99 ** np.arange(len(games))[::-1]
    assert results.score == pytest.approx((weights @ games + 1) / (weights.sum() + 2))
    assert (results.wins, results.draws, results.losses) == (100, 0, 300)


def test_games_against_a_snapshot_that_has_gone_change_nothing() -> None:
    pool = pool_of(1)
    pool.remove(0)
    pool.played(0, 1.0)
    assert pool.rating == 0


def test_the_state_goes_on_as_it_was() -> None:
    pool = pool_of(5, self_play_opponents="hard")
    for number in range(5):
        pool.played(number, 0.5 * (number % 3))
    other = pool_of(0, self_play_opponents="hard")
    other.load_state(json.loads(json.dumps(pool.state())))
    assert other.state() == pool.state()
    assert [other.draw() for _ in range(9)] == [pool.draw() for _ in range(9)]


def test_a_lost_future_takes_its_snapshots_with_it() -> None:
    """Policy 0 goes on from 250 frames, so the snapshots of 300 and 400 frames show a policy that is lost."""
    pool = pool_of(3)
    for _ in range(10):
        pool.played(0, 1.0)
    rating = pool.rating
    pool.add("snapshot_3", 300)
    for _ in range(10):
        pool.played(3, 1.0)
    pool.add("snapshot_4", 400)
    assert [one.path for one in pool.go_back(250)] == ["snapshot_3", "snapshot_4"]
    assert [one.number for one in pool.snapshots] == [0, 1, 2]
    assert pool.rating == rating != 0.0
    assert not pool.is_snapshot_due(349)
    assert pool.is_snapshot_due(350)
    pool.add("snapshot_5", 360)
    assert pool.snapshots[-1].number == 3, "the curves of the lost one are cut as well"


def test_a_run_that_goes_on_where_it_ended_forgets_nothing() -> None:
    pool = pool_of(3)
    assert pool.go_back(200) == []
    assert len(pool.snapshots) == 3
    assert pool.is_snapshot_due(300)
    assert not pool.is_snapshot_due(299)
