"""A match: every pair of some policies plays episodes against each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np

from sf.envs import EnvSource
from sf.evaluator.cast import Cast
from sf.evaluator.playing import play
from sf.evaluator.tally import Episodes, Tally
from sf.policy import Policy
from sf.processes.telling import told_while
from sf.shared.arena import Array
from sf.spaces import ActionBounds, EnvInfo


class Results(NamedTuple):
    """Counts of games, [n, n] each, of the player of the row against that of the column."""

    wins: Array
    draws: Array
    """Symmetric."""

    @property
    def losses(self) -> Array:
        """The wins of the other."""
        return self.wins.T


@dataclass
class _Progress:
    """Episodes that were played, read by the thread that tells of them."""

    wanted: int
    done: int = 0
    of_this_play: int = 0

    def look(self, tally: Tally, _: int) -> None:
        self.of_this_play = tally.num_done

    def add(self, episodes: int) -> None:
        self.done, self.of_this_play = self.done + episodes, 0

    def told(self, seconds: float) -> str:
        done = self.done + self.of_this_play
        return f"The match has played {done:,} of {self.wanted:,} episodes, {seconds:.0f} s so far."


def play_match(
    policies: Sequence[Policy],
    source: EnvSource,
    info: EnvInfo,
    num_episodes: int,
    seed: int,
    action_bounds: ActionBounds,
    tell: Callable[[str], object],
) -> Results:
    """The results of all pairs.

    The agents of an environment are dealt to two sides in turn: agent a belongs to side a modulo 2. The sides change in
    the middle of the episodes of a pair. The side with the larger mean return has won the episode.

    Args:
        policies: they act on stored observations.
        source: makes the environments.
        info: their spaces.
        num_episodes: of each pair.
        seed: of environments and actions; every pair has seeds of its own, whatever pairs come after it.
        action_bounds: how Box actions are kept in their bounds.
        tell: receives sentences about the progress.

    Raises:
        EnvError: an environment or a scripted policy fails.
    """
    pairs = list(combinations(range(len(policies)), 2))
    wins, draws = (np.zeros((len(policies), len(policies)), np.int64) for _ in range(2))
    progress = _Progress(num_episodes * len(pairs))
    with told_while(progress.told, tell):
        for pair in pairs:
            for change, share in enumerate(((num_episodes + 1) // 2, num_episodes // 2)):
                if not share:
                    continue
                first, second = pair[::-1] if change else pair
                own_seed = int(np.random.SeedSequence([seed, *pair[::-1], change]).generate_state(1)[0])
                sides = Cast([policies[first], policies[second]], action_bounds)
                played = play(sides, source, info, share, own_seed, progress.look)
                progress.add(share)
                returns = returns_of_sides(played)
                if missing := share - len(returns):
                    tell(f"{missing} of {share} games count for nothing, because no agent of one side has come.")
                wins[first, second] += np.count_nonzero(returns[:, 0] > returns[:, 1])
                wins[second, first] += np.count_nonzero(returns[:, 0] < returns[:, 1])
                draws[[first, second], [second, first]] += np.count_nonzero(returns[:, 0] == returns[:, 1])
    return Results(wins, draws)


def returns_of_sides(played: Sequence[Episodes]) -> Array:
    """Mean return of the agents of each side, [episodes, sides], of the games in which all sides have had agents.

    Args:
        played: the episodes of each side, each of them with those of all of its agents.
    """
    sides = [_means(episodes) for episodes in played]
    games = sorted(set(sides[0]).intersection(*sides))
    return np.array([[side[game] for side in sides] for game in games]).reshape(-1, len(sides))


def _means(episodes: Episodes) -> dict[tuple[int, int], float]:
    """Mean return of the agents of one side in each game, with its environment; one may have several lives in it."""
    returns: dict[tuple[int, int], dict[int, float]] = {}
    columns = episodes.envs, episodes.games, episodes.agents, episodes.rewards
    for env, game, agent, reward in zip(*columns, strict=True):
        of_agents = returns.setdefault((env, game), {})
        of_agents[agent] = of_agents.get(agent, 0.0) + reward
    return {game: float(np.mean(list(of_agents.values()))) for game, of_agents in returns.items()}
