"""Exact values of strategies in tic-tac-toe, by dynamic programming over all of its positions.

A board is a tuple of nine cells, row by row, as the player on move sees it: 1 is its own mark, -1 that of the other
and 0 an empty cell. The board tells which player that is, because the first one is on move when both have equally many
marks. A strategy returns the probability of each legal move.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

Board: TypeAlias = tuple[int, ...]
Strategy: TypeAlias = Callable[[Board, tuple[int, ...]], Sequence[float]]
"""Board and legal moves to the probability of each of these moves, in their order."""

EMPTY: Board = (0,) * 9
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


class Outcomes(NamedTuple):
    """Probabilities of the ends of a game for one player."""

    win: float
    draw: float
    loss: float

    @property
    def value(self) -> float:
        """Mean reward, -1 to 1."""
        return self.win - self.loss


def legal_moves(board: Board) -> tuple[int, ...]:
    """The empty cells."""
    return tuple(cell for cell, mark in enumerate(board) if mark == 0)


def after(board: Board, move: int) -> Board:
    """The board after a move, as the other player sees it."""
    return tuple(-1 if cell == move else -mark for cell, mark in enumerate(board))


def is_lost(board: Board) -> bool:
    """Whether the other player has three marks in a line."""
    return any(board[a] == board[b] == board[c] == -1 for a, b, c in LINES)


@functools.cache
def minimax(board: Board) -> int:
    """Result for the player on move if both play as well as possible: -1, 0 or 1."""
    if is_lost(board):
        return -1
    return max((-minimax(after(board, move)) for move in legal_moves(board)), default=0)


@functools.cache
def best_moves(board: Board) -> tuple[int, ...]:
    """The legal moves that keep the value of `minimax`."""
    return tuple(move for move in legal_moves(board) if -minimax(after(board, move)) == minimax(board))


def uniform_strategy(board: Board, legal: tuple[int, ...]) -> Sequence[float]:
    """All legal moves are equally likely."""
    return [1 / len(legal)] * len(legal)


def perfect_strategy(board: Board, legal: tuple[int, ...]) -> Sequence[float]:
    """All best moves are equally likely."""
    best = best_moves(board)
    return [(move in best) / len(best) for move in legal]


def outcomes(first: Strategy, second: Strategy) -> Outcomes:
    """Probabilities that the first player wins, draws and loses.

    Raises:
        ValueError: a strategy returns no probabilities.
    """

    @functools.cache
    def on_move(board: Board) -> Outcomes:
        """For the player on move."""
        if is_lost(board):
            return Outcomes(0.0, 0.0, 1.0)
        if not (legal := legal_moves(board)):
            return Outcomes(0.0, 1.0, 0.0)
        win = draw = loss = 0.0
        for move, probability in zip(legal, _probabilities(second if sum(board) else first, board, legal), strict=True):
            if probability > 0:
                theirs = on_move(after(board, move))
                win, draw, loss = (
                    win + probability * theirs.loss, draw + probability * theirs.draw, loss + probability * theirs.win
                )  # fmt: skip
        return Outcomes(win, draw, loss)

    return on_move(EMPTY)


def best_response_value(strategy: Strategy, is_first: bool) -> float:
    """Mean reward of the player that answers best to a strategy, -1 to 1; at least 0.

    Args:
        strategy: of the other player, known to the one that answers.
        is_first: whether the player that answers has the first move.

    Raises:
        ValueError: the strategy returns no probabilities.
    """

    @functools.cache
    def on_move(board: Board) -> float:
        """For the player on move."""
        if is_lost(board):
            return -1.0
        if not (legal := legal_moves(board)):
            return 0.0
        values = [-on_move(after(board, move)) for move in legal]
        if (sum(board) == 0) == is_first:
            return max(values)
        return float(np.dot(_probabilities(strategy, board, legal), values))

    return on_move(EMPTY) if is_first else -on_move(EMPTY)


def exploitability(strategy: Strategy) -> float:
    """Mean reward of the best answers to a strategy as first and as second player; 0 for perfect play."""
    return (best_response_value(strategy, is_first=True) + best_response_value(strategy, is_first=False)) / 2


def _probabilities(strategy: Strategy, board: Board, legal: tuple[int, ...]) -> Sequence[float]:
    found = strategy(board, legal)
    if len(found) != len(legal) or min(found) < 0 or abs(sum(found) - 1) > 1e-4:
        raise ValueError(
            f"The strategy returned {found} for the board {board}, expected a probability for each of the moves "
            f"{legal}, with the sum 1."
        )
    return found
