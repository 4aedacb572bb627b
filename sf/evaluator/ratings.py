"""Scores and Elo ratings out of the results of games between pairs of players.

Results are two tables of counts for n players. `wins`, [n, n], has the games that the player of the row has won
against that of the column, so that its transpose has the losses. `draws`, [n, n], is symmetric.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from sf.shared.arena import Array

ELO_OF_LOGIT = 400 / math.log(10)
"""Elo points of a difference of 1 in the logit of the expected score."""
PRIOR_DRAWS = 1.0
"""Draws of every player against an imagined one in the middle, which keep the ratings finite."""
NUM_SAMPLES = 1000
"""Tables that are drawn for the intervals of the ratings."""
NORMAL_QUANTILE = 1.959964
"""That of the normal distribution at 0.975, for a confidence of 95 %."""
LARGEST_STEP, MAX_STEPS, PRECISION = 1.0, 200, 1e-9
"""Newton's method: the largest step of a logit, and when it ends."""


class Estimates(NamedTuple):
    """Numbers with their bounds at a confidence of 95 %; three arrays of one shape."""

    values: Array
    low: Array
    high: Array


def scores(wins: Array, draws: Array) -> Estimates:
    """The score of each player against each other one, [n, n]: wins and half of the draws by games, 0 to 1.

    The bounds are those of Wilson (1927) for a probability. They are somewhat too wide where games are drawn. All
    three are nan where two players have not met.

    Raises:
        ValueError: these are no results.
    """
    _expect_results(wins, draws)
    return _shares(wins + draws / 2, wins + wins.T + draws)


def total_scores(wins: Array, draws: Array) -> Estimates:
    """The same for each player against all others together, [n]."""
    _expect_results(wins, draws)
    return _shares((wins + draws / 2).sum(1), (wins + wins.T + draws).sum(1))


def elo_ratings(wins: Array, draws: Array) -> Estimates:
    """Elo ratings, [n], with the mean 0: 400 points more are ten times the odds.

    They are the most likely ones of the model of Bradley and Terry (1952), in which a draw counts as half a win and
    half a loss. The prior is one draw of each player with an imagined one of rating 0. The bounds are quantiles of the
    ratings of tables that are drawn from the results. A pair draws out of its games and one further game, which
    ends each way with the probability 1/3, because a player that has always won may lose as well.

    Raises:
        ValueError: these are no results.
    """
    _expect_results(wins, draws)
    points, games = wins + draws / 2, wins + wins.T + draws
    ratings = _most_likely(points, games) * ELO_OF_LOGIT
    low, high = np.quantile(_most_likely(*_drawn(wins, draws)) * ELO_OF_LOGIT, (0.025, 0.975), axis=0)
    return Estimates(ratings, np.minimum(low, ratings), np.maximum(high, ratings))


def _shares(points: Array, games: Array) -> Estimates:
    """Points by games, with Wilson's bounds."""
    with np.errstate(invalid="ignore"):
        share = np.where(games > 0, points / np.maximum(games, 1), np.nan)
        square = NORMAL_QUANTILE**2
        middle = (points + square / 2) / (games + square)
        half = NORMAL_QUANTILE / (games + square) * np.sqrt(games * share * (1 - share) + square / 4)
    return Estimates(share, np.maximum(middle - half, 0.0), np.minimum(middle + half, 1.0))


def _most_likely(points: Array, games: Array) -> Array:
    """Logits with the mean 0 that maximise the likelihood, by Newton's method.

    Args:
        points, games: [..., n, n] of the player of the row against that of the column.

    Returns:
        [..., n]
    """
    num_players = points.shape[-1]
    logits = np.zeros(points.shape[:-1])
    for _ in range(MAX_STEPS):
        expected = _sigmoid(logits[..., :, None] - logits[..., None, :])
        against_prior = _sigmoid(logits)
        gradient = (points - games * expected).sum(-1) + PRIOR_DRAWS * (0.5 - against_prior)
        weights = games * expected * (1 - expected)
        diagonal = weights.sum(-1) + PRIOR_DRAWS * against_prior * (1 - against_prior)
        curvature = diagonal[..., None] * np.eye(num_players) - weights
        step = np.linalg.solve(curvature, gradient[..., None])[..., 0]
        logits += step * np.minimum(1.0, LARGEST_STEP / np.maximum(np.abs(step).max(-1, keepdims=True), PRECISION))
        if np.abs(step).max() < PRECISION:
            break
    centred: Array = logits - logits.mean(-1, keepdims=True)
    return centred


def _sigmoid(logits: Array) -> Array:
    inverse: Array = 1 + np.exp(-logits)
    return 1 / inverse


def _drawn(wins: Array, draws: Array) -> tuple[Array, Array]:
    """Points and games, [NUM_SAMPLES, n, n], of results that are drawn; the same results give the same ones."""
    random, num_players = np.random.default_rng(0), len(wins)
    points, games = (np.zeros((NUM_SAMPLES, num_players, num_players)) for _ in range(2))
    for row, column in zip(*np.triu_indices(num_players, 1), strict=True):
        counts = np.array([wins[row, column], draws[row, column], wins[column, row]])
        num_games = int(counts.sum())
        drawn = random.multinomial(num_games, (counts + 1 / 3) / (num_games + 1), NUM_SAMPLES)
        points[:, row, column] = drawn @ (1, 0.5, 0)
        points[:, column, row] = drawn @ (0, 0.5, 1)
        games[:, row, column] = games[:, column, row] = num_games
    return points, games


def _expect_results(wins: Array, draws: Array) -> None:
    size = len(wins)
    are_square = wins.shape == draws.shape == (size, size)
    if not are_square or wins.diagonal().any() or draws.diagonal().any() or (draws != draws.T).any():
        raise ValueError(
            f"The tables are wins={wins.tolist()} and draws={draws.tolist()}, expected [n, n] each with a diagonal of "
            "zeros, and draws symmetric."
        )
    if (wins < 0).any() or (draws < 0).any():
        raise ValueError(f"The tables are wins={wins.tolist()} and draws={draws.tolist()}, expected counts from 0.")
