"""The smallest game whose best strategy is random, and not evenly so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

Array = npt.NDArray[Any]

ROCK, PAPER, SCISSORS = range(3)
PAYOFFS = np.array([[0.0, -1.0, 2.0], [1.0, 0.0, -1.0], [-2.0, 1.0, 0.0]])
"""[own move, move of the other] reward: 1 for a win, 2 for a win with rock, and the negative for the loser."""
EQUILIBRIUM = np.array([0.25, 0.5, 0.25])
"""[3] probabilities of the only strategy against which no other one gains anything."""


def exploitability(strategy: Sequence[float] | Array) -> float:
    """Mean reward of the best answer to a mixed strategy; 0 for the equilibrium, and 2 at most.

    Args:
        strategy: [3] probabilities of rock, paper and scissors.

    Raises:
        ValueError: these are no probabilities.
    """
    probabilities = np.asarray(strategy, np.float64)
    if probabilities.shape != (3,) or (probabilities < 0).any() or abs(probabilities.sum() - 1) > 1e-4:
        raise ValueError(f"The strategy is {strategy}, expected three probabilities whose sum is 1.")
    return float((PAYOFFS @ probabilities).max())


class RockPaperScissors:
    """Two agents choose rock, paper or scissors at the same time, and the episode is over.

    A win pays 1, a win with rock pays 2, and the loser pays the same. In the equilibrium paper comes half of the time,
    and rock and scissors a quarter each. An observation, [1], is always 1. The metrics `rock`, `paper` and
    `scissors` say which share of its moves an agent spends on each.
    """

    num_agents = 2

    def __init__(self) -> None:
        self.observation_space: spaces.Space[Any] = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space: spaces.Space[Any] = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[list[Array], list[Any]]:
        """Begins an episode; all of them are alike."""
        return self._seen(), [{}, {}]

    def step(self, actions: Sequence[int]) -> tuple[list[Array], list[float], list[bool], list[bool], list[Any]]:
        """Pays both agents."""
        own, other = (int(action) for action in actions)
        reward = float(PAYOFFS[own, other])
        names = "rock", "paper", "scissors"
        infos = [{"metrics": {name: float(names[move] == name) for name in names}} for move in (own, other)]
        return self._seen(), [reward, -reward], [True, True], [False, False], infos

    def close(self) -> None:
        """Nothing to close."""

    def _seen(self) -> list[Array]:
        return [np.ones(1, np.float32)] * 2


def rock(observation: Any, random: np.random.Generator) -> int:
    """Player that always takes rock."""
    return ROCK


def paper(observation: Any, random: np.random.Generator) -> int:
    """Player that always takes paper."""
    return PAPER


def scissors(observation: Any, random: np.random.Generator) -> int:
    """Player that always takes scissors."""
    return SCISSORS


def equilibrium(observation: Any, random: np.random.Generator) -> int:
    """Player of the equilibrium."""
    return int(random.choice(3, p=EQUILIBRIUM))
