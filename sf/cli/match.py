"""``sf-eval --match``: players against each other, with a table of their scores and Elo ratings."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sf.cli.experiments import environment, trust
from sf.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from sf.cli.evaluate import EvaluationConfig
    from sf.evaluator.match import Results
    from sf.evaluator.players import Player
    from sf.evaluator.ratings import Estimates
    from sf.spaces import ActionBounds


def match(config: EvaluationConfig) -> int:
    """The command; returns its exit code.

    Raises:
        UsageError: there are no two players, the environment is for one agent, or a flag has no meaning here.
        SfError: a player cannot be loaded, has other spaces, or fails.
    """
    if problems := list(_problems(config)):
        raise UsageError("\n".join(problems))
    import torch

    from sf.envs import probe
    from sf.evaluator.match import play_match
    from sf.evaluator.players import find_players
    from sf.evaluator.playing import LONGEST_EPISODE
    from sf.processes.telling import told_while

    trust(config.encoder, config.env, [*config.functions, *(word for word in config.match if ":" in word)])
    torch.set_num_threads(1)  # faster for small networks and batches
    with told_while(lambda seconds: f"Loading torch and players, {seconds:.0f} s so far.", _tell):
        players = find_players(config.match, Path(config.train_dir), config.checkpoint, config.deterministic)
        _expect_two(players)
        run = next((player.run for player in players if player.run is not None), None)
        if run is None and config.env is None:
            raise UsageError("--match: none of the players knows an environment. Give it like --env=sf/TicTacToe-v0.")
        source = environment(config.env, config.env_kwargs, run, config.max_episode_steps, LONGEST_EPISODE)
        info = probe(source)
        if info.num_agents == 1:
            raise UsageError(
                f"--match: {info.env_id} has one agent, and a match needs at least two. Compare policies there with "
                "--experiment."
            )
        bounds = _action_bounds(players)
        policies = [player.acting_policy(info, bounds) for player in players]
    results = play_match(policies, source, info, config.num_episodes, config.seed, bounds, _tell)
    say = _as_json if config.json else _as_text
    print(say(players, results, info.env_id, config.num_episodes))
    return ExitCode.FINISHED


def _problems(config: EvaluationConfig) -> Iterator[str]:
    """Flags that have no meaning for a match."""
    if config.experiment or config.policy:
        yield "--match names all players itself. Leave --experiment and --policy out, and put theirs there."
    if config.csv is not None:
        yield "--csv has a line for each episode of one policy, and a match has none. Use --json for the results."
    if config.num_workers not in (None, 1):
        yield f"--num_workers={config.num_workers}: a match plays in one process. Leave it out."


def _expect_two(players: Sequence[Player]) -> None:
    names = [player.name for player in players]
    if len(names) < 2:
        raise UsageError(f"--match has one player ({names[0]}), and a match needs at least two: --match a b.")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"--match names {', '.join(twice)} twice. Name each player once.")


def _action_bounds(players: Sequence[Player]) -> ActionBounds:
    """Those of the first network; functions act in any."""
    from sf.evaluator.players import NetworkPlayer

    return next((player.action_bounds for player in players if isinstance(player, NetworkPlayer)), "scale")


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _as_text(players: Sequence[Player], results: Results, env_id: str, num_episodes: int) -> str:
    """Two tables, the best player first."""
    from sf.evaluator.ratings import elo_ratings, scores, total_scores
    from sf.evaluator.summary import aligned

    elo, score, total = elo_ratings(*results), scores(*results), total_scores(*results)
    order = sorted(range(len(players)), key=lambda index: -elo.values[index])
    named = [(row, f"{place} {players[row].name}") for place, row in enumerate(order, start=1)]
    cross: list[tuple[str, ...]] = [("score in %", *(f"against {place}" for place in range(1, len(order) + 1)))]
    cross += [
        (name, *("" if row == column else _percent(score, (row, column)) for column in order)) for row, name in named
    ]
    ratings: list[tuple[str, ...]] = [("player", "Elo", "low", "high", "score in %", "wins", "draws", "losses")]
    ratings += [
        (
            name,
            *(str(round(float(numbers[row]))) for numbers in elo),
            _percent(total, row),
            *(str(counts[row].sum()) for counts in (results.wins, results.draws, results.losses)),
        )
        for row, name in named
    ]
    titles = [f"{player.name}: {player.title}" for player in players if player.title != player.name]
    head = f"{num_episodes} episodes of {env_id} for each pair, with bounds at 95% confidence"
    return "\n".join([*titles, head, "", aligned(cross), "", aligned(ratings)])


def _percent(score: Estimates, place: Any) -> str:
    value, low, high = (100 * float(numbers[place]) for numbers in score)
    return f"{value:.1f} ({low:.1f} to {high:.1f})"


def _as_json(players: Sequence[Player], results: Results, env_id: str, num_episodes: int) -> str:
    """The same as data; scores are from 0 to 1."""
    from sf.evaluator.ratings import elo_ratings, scores, total_scores

    elo, score, total = elo_ratings(*results), scores(*results), total_scores(*results)
    all_counts = {"wins": results.wins, "draws": results.draws, "losses": results.losses}
    rated = {
        player.name: {
            "title": player.title,
            "elo": _numbers(elo, index),
            "score": _numbers(total, index),
            **{name: int(counts[index].sum()) for name, counts in all_counts.items()},
        }
        for index, player in enumerate(players)
    }
    pairs = [
        {
            "players": [players[row].name, players[column].name],
            "score": _numbers(score, (row, column)),
            **{name: int(counts[row, column]) for name, counts in all_counts.items()},
        }
        for row, column in combinations(range(len(players)), 2)
    ]
    return json.dumps({"env": env_id, "num_episodes": num_episodes, "players": rated, "pairs": pairs}, indent=2)


def _numbers(estimates: Estimates, place: Any) -> dict[str, float]:
    names = "value", "low", "high"
    return {name: float(numbers[place]) for name, numbers in zip(names, estimates, strict=True)}
