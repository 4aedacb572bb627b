"""A game in turns under an interface in which all agents act in every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces

from sf_envs.tictactoe_values import EMPTY, Board, after, best_moves, is_lost, legal_moves

Observation: TypeAlias = dict[str, Any]

PASS = 9
"""The only legal action of an agent that is not on move; the others are cells, row by row."""


class TicTacToe:
    """Two agents set marks in turn until one has three in a line, or the board is full.

    Both agents act in every step. The one that is not on move passes, which its mask makes the only legal action. A
    win pays 1, a loss -1 and a draw 0. The first agent on move is drawn for each episode.

    An observation has the `board`, [9], with 1 for own marks, -1 for those of the other and 0 for empty cells. The
    entry `on_move` is 1 for the agent whose turn it is and 0 for the other. The `action_mask`, [10], has a 1 for each
    legal action.
    """

    num_agents = 2

    def __init__(self) -> None:
        parts: dict[str, Any] = {
            "board": spaces.Box(-1.0, 1.0, (9,), np.float32),
            "on_move": spaces.Discrete(2),
            "action_mask": spaces.MultiBinary(10),
        }
        self.observation_space: spaces.Space[Any] = spaces.Dict(parts)
        self.action_space: spaces.Space[Any] = spaces.Discrete(10)
        self.random = np.random.default_rng(0)
        self.board: Board = EMPTY
        """As the agent on move sees it."""
        self.on_move = 0
        """The agent whose turn it is."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[list[Observation], list[Any]]:
        """Empties the board and draws the agent that begins."""
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.board, self.on_move = EMPTY, int(self.random.integers(2))
        return self._seen(), [{}, {}]

    def step(self, actions: Sequence[int]) -> tuple[list[Observation], list[float], list[bool], list[bool], list[Any]]:
        """Sets a mark of the agent on move.

        Raises:
            ValueError: an action is illegal.
        """
        move, other = int(actions[self.on_move]), int(actions[1 - self.on_move])
        legal = legal_moves(self.board)
        if move not in legal or other != PASS:
            raise ValueError(
                f"The actions are {move} of the agent on move and {other} of the other. Legal are {legal} and {PASS}."
            )
        self.board, self.on_move = after(self.board, move), 1 - self.on_move
        has_won = is_lost(self.board)
        rewards = [float(has_won), float(has_won)]
        rewards[self.on_move] *= -1  # three in a line are of the agent that was on move before
        over = has_won or not legal_moves(self.board)
        return self._seen(), rewards, [over, over], [False, False], [{}, {}]

    def close(self) -> None:
        """Nothing to close."""

    def _seen(self) -> list[Observation]:
        return [observe(self.board, agent == self.on_move) for agent in range(2)]


def observe(board: Board, is_on_move: bool) -> Observation:
    """The observation of one agent.

    Args:
        board: as the agent on move sees it.
        is_on_move: whether the observation is for this agent, or for the other.
    """
    marks = np.array(board, np.float32)
    mask = np.zeros(10, np.int8)
    mask[list(legal_moves(board) if is_on_move else ()) or [PASS]] = 1
    return {"board": marks if is_on_move else -marks, "on_move": int(is_on_move), "action_mask": mask}


def perfect(observation: Observation, random: np.random.Generator) -> int:
    """Player that never loses: one of the best moves, at random."""
    if not observation["on_move"]:
        return PASS
    return int(random.choice(best_moves(tuple(int(mark) for mark in observation["board"]))))


def random_player(observation: Observation, random: np.random.Generator) -> int:
    """Player for which all legal moves are equally likely."""
    return int(random.choice(np.flatnonzero(observation["action_mask"])))
