"""Scores and ratings of players: against plain loops and against results with known answers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sf.evaluator.ratings import PRIOR_DRAWS, elo_ratings, scores, total_scores
from sf.shared.arena import Array

NO_DRAWS = np.zeros((2, 2), int)


def results(*counts: tuple[int, int, int, int, int], num_players: int) -> tuple[Array, Array]:
    """Tables of (row, column, wins, draws, losses)."""
    wins, draws = (np.zeros((num_players, num_players), int) for _ in range(2))
    for row, column, won, drawn, lost in counts:
        wins[row, column], wins[column, row] = won, lost
        draws[row, column] = draws[column, row] = drawn
    return wins, draws


def expected_score(difference: float) -> float:
    """Elo's formula."""
    return 1 / (1 + 10 ** (-difference / 400))


def climbed(wins: Array, draws: Array) -> Array:
    """Ratings by small steps uphill, the sums written as loops."""
    num_players = len(wins)
    ratings: Array = np.zeros(num_players)
    for _ in range(4_000):
        slope = np.zeros(num_players)
        for i in range(num_players):
            slope[i] = PRIOR_DRAWS * (0.5 - expected_score(ratings[i]))
            for j in range(num_players):
                games = wins[i, j] + wins[j, i] + draws[i, j]
                slope[i] += wins[i, j] + draws[i, j] / 2 - games * expected_score(ratings[i] - ratings[j])
        ratings += 5 * slope
    ratings -= ratings.mean()
    return ratings


def drawn_results(true: Array, num_games: int, random: np.random.Generator) -> tuple[Array, Array]:
    """Games of players with known ratings, a fifth of them drawn."""
    counts = []
    for i in range(len(true)):
        for j in range(i):
            score = expected_score(true[i] - true[j])
            share = min(0.2, 2 * score, 2 * (1 - score))
            won, drawn, lost = random.multinomial(num_games, (score - share / 2, share, 1 - score - share / 2))
            counts.append((i, j, int(won), int(drawn), int(lost)))
    return results(*counts, num_players=len(true))


class TestScores:
    def test_half_of_the_draws_count(self) -> None:
        found = scores(*results((0, 1, 6, 2, 2), (1, 2, 0, 4, 0), num_players=3))
        assert found.values[0, 1] == 0.7
        assert found.values[1, 0] == pytest.approx(0.3)
        assert found.values[1, 2] == found.values[2, 1] == 0.5
        assert np.isnan([found.values[0, 2], found.low[0, 2], found.high[0, 2], found.values[0, 0]]).all()

    def test_bounds_are_wilsons(self) -> None:
        """Newcombe 1998, table I: 81 of 263 and 0 of 20."""
        found = scores(*results((0, 1, 81, 0, 182), (0, 2, 0, 0, 20), num_players=3))
        assert (found.low[0, 1], found.high[0, 1]) == pytest.approx((0.2553, 0.3662), abs=5e-5)
        assert (found.low[0, 2], found.high[0, 2]) == pytest.approx((0.0, 0.1611), abs=5e-5)
        assert found.low[1, 0] == pytest.approx(1 - found.high[0, 1])

    def test_total_is_that_of_all_games(self) -> None:
        found = total_scores(*results((0, 1, 6, 2, 2), (0, 2, 0, 0, 10), num_players=3))
        assert found.values == pytest.approx([0.35, 0.3, 1.0])

    @pytest.mark.parametrize(
        ("wins", "draws"), [([[1, 0], [0, 0]], NO_DRAWS), ([[0, -1], [0, 0]], NO_DRAWS), ([[0, 1, 2]], NO_DRAWS),
                            ([[0, 1], [1, 0]], [[0, 1], [0, 0]])],
    )  # fmt: skip
    def test_what_are_no_results_is_refused(self, wins: list[list[int]], draws: Array) -> None:
        for function in (scores, total_scores, elo_ratings):
            with pytest.raises(ValueError, match=r"The tables are wins=.* and draws=.*, expected"):
                function(np.array(wins), np.array(draws))


class TestElo:
    @pytest.mark.parametrize("seed", range(3))
    def test_the_same_as_small_steps_uphill(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        table = drawn_results(random.normal(0, 200, 4), 30, random)
        assert elo_ratings(*table).values == pytest.approx(climbed(*table), abs=0.01)

    def test_expected_scores_are_the_observed_ones(self) -> None:
        random = np.random.default_rng(0)
        wins, draws = drawn_results(np.array([-300.0, -50, 100, 250, 900]), 100_000, random)
        ratings = elo_ratings(wins, draws).values
        games = wins + wins.T + draws
        expected = [
            sum(games[i, j] * expected_score(ratings[i] - ratings[j]) for j in range(5) if j != i) for i in range(5)
        ]
        assert (wins + draws / 2).sum(1) == pytest.approx(expected, rel=1e-4)

    def test_known_differences(self) -> None:
        """Odds of 10 are 400 points; two draws of the prior in 110,000 games change nothing that shows."""
        found = elo_ratings(*results((0, 1, 100_000, 0, 10_000), num_players=2))
        assert found.values == pytest.approx([200, -200], abs=0.1)
        assert elo_ratings(*results((0, 1, 0, 50, 0), num_players=2)).values == pytest.approx([0, 0])

    def test_a_circle_has_equal_ratings(self) -> None:
        found = elo_ratings(*results((0, 1, 9, 0, 1), (1, 2, 9, 0, 1), (2, 0, 9, 0, 1), num_players=3))
        assert found.values == pytest.approx([0, 0, 0], abs=1e-6)

    def test_a_player_that_wins_always_has_a_finite_rating_and_an_interval(self) -> None:
        for num_games in (1, 100, 100_000):
            found = elo_ratings(*results((0, 1, num_games, 0, 0), (0, 2, num_games, 0, 0), num_players=3))
            assert np.isfinite(found).all()
            assert found.values[0] > 0 > found.values[1] == pytest.approx(found.values[2])
            assert found.low[0] < found.high[0]

    def test_players_that_never_met_are_rated_by_others(self) -> None:
        wins, draws = results((0, 1, 75, 0, 25), (1, 2, 75, 0, 25), (3, 4, 1, 0, 1), num_players=6)
        ratings = elo_ratings(wins, draws).values
        assert ratings[0] - ratings[2] == pytest.approx(2 * 400 * math.log10(3), rel=0.05)
        assert ratings[5] == pytest.approx(ratings[3]) == pytest.approx(ratings[4]), "no games, and even ones"

    def test_intervals_have_the_true_ratings_as_often_as_they_say(self) -> None:
        random, true = np.random.default_rng(1), np.array([-150.0, 0, 150])
        covered = []
        for _ in range(60):
            found = elo_ratings(*drawn_results(true, 100, random))
            covered += ((found.low <= true) & (true <= found.high)).tolist()
        assert 0.9 <= np.mean(covered) <= 0.99

    def test_the_same_results_give_the_same_intervals_and_more_games_narrower_ones(self) -> None:
        table = results((0, 1, 60, 10, 30), num_players=2)
        first, second = elo_ratings(*table), elo_ratings(*table)
        assert np.array_equal(first, second)
        many = elo_ratings(table[0] * 100, table[1] * 100)
        assert (first.high - first.low)[0] == pytest.approx(10 * (many.high - many.low)[0], rel=0.15)
