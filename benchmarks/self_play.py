"""``python benchmarks/self_play.py [--only=NAME]``: how strong self-play makes a policy, measured exactly.

Rock, paper, scissors with a weighty rock has one strategy that nobody can exploit. The average of all snapshots should
come near to it, as fictitious play does, while the newest policy may go round in circles. Tic-tac-toe has an exact best
answer to every policy. The measure is the reward of the best answer, and the reward against a random player as a share
of the best possible one. Results are kept in a JSON file, so that the command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sf_envs import rock_paper_scissors, tictactoe_values
from sf_envs.tictactoe import observe

import sf
from sf.policy import StepType, TimeStep, checkpoints
from sf.policy.checkpoints import SavedNetwork
from sf.population.self_play import SELF_PLAY

SEEDS = 1, 2, 3
PAYOFF_RANGE = float(np.ptp(rock_paper_scissors.PAYOFFS))


def probabilities(saved: SavedNetwork, observations: Sequence[Any]) -> list[list[float]]:
    """[observations, choices] of a policy with one action of choices."""
    policy = saved.trained_policy(validate_args=False)
    stacked: Any
    if isinstance(observations[0], dict):
        stacked = {key: torch.as_tensor(np.array([one[key] for one in observations])) for key in observations[0]}
    else:
        stacked = torch.as_tensor(np.array(observations))
    n = len(observations)
    time_step = TimeStep(torch.full((n,), int(StepType.MID)), torch.zeros(n), torch.ones(n), stacked)
    step: Any = policy.distribution(time_step, policy.get_initial_state(n))
    found: list[list[float]] = step.action.probs.tolist()
    return found


def pool_of(path: Path) -> list[SavedNetwork]:
    """The snapshots, oldest first."""
    pool = json.loads((path / SELF_PLAY).read_text())["pool"]
    return [checkpoints.load(path / one["path"]) for one in pool["snapshots"]]


def measure_rock_paper_scissors(path: Path) -> dict[str, float]:
    """Exploitability as a share of the range of rewards, of the mean over all snapshots and of the newest policy."""
    seen = [np.ones(1, np.float32)]
    average = np.mean([probabilities(saved, seen)[0] for saved in pool_of(path)], axis=0)
    newest = probabilities(checkpoints.load_newest(path / "checkpoint_p0"), seen)[0]
    exploitability = rock_paper_scissors.exploitability
    return {
        "average, share of the range": exploitability(average) / PAYOFF_RANGE,
        "newest, share of the range": exploitability(newest) / PAYOFF_RANGE,
        "rock": float(average[0]),
        "paper": float(average[1]),
        "scissors": float(average[2]),
    }


def measure_tictactoe(path: Path) -> dict[str, float]:
    """Rewards of the newest policy, exactly."""
    saved = checkpoints.load_newest(path / "checkpoint_p0")
    boards = reachable()
    of_board = dict(zip(boards, probabilities(saved, [observe(board, True) for board in boards]), strict=True))

    def drawn(board: Any, legal: Sequence[int]) -> list[float]:
        shares = np.array([of_board[board][move] for move in legal])
        return list(shares / shares.sum())

    def likeliest(board: Any, legal: Sequence[int]) -> list[float]:
        best = max(legal, key=lambda move: of_board[board][move])
        return [float(move == best) for move in legal]

    uniform = tictactoe_values.uniform_strategy
    most = np.mean([tictactoe_values.best_response_value(uniform, first) for first in (True, False)])
    measured = {"best against the random player": float(most)}
    for name, strategy in {"drawn": drawn, "likeliest": likeliest}.items():
        values = [
            tictactoe_values.outcomes(strategy, uniform).value, -tictactoe_values.outcomes(uniform, strategy).value
        ]  # fmt: skip
        measured[f"{name}, share of the best"] = float(np.mean(values) / most)
        measured[f"{name}, exploitability"] = tictactoe_values.exploitability(strategy)
    return measured


def reachable() -> list[tuple[int, ...]]:
    """All boards on which a game goes on, as the player on move sees them."""
    found, todo = set(), [tictactoe_values.EMPTY]
    while todo:
        board = todo.pop()
        if board in found or tictactoe_values.is_lost(board) or not tictactoe_values.legal_moves(board):
            continue
        found.add(board)
        todo += [tictactoe_values.after(board, move) for move in tictactoe_values.legal_moves(board)]
    return sorted(found)


GAMES: dict[str, tuple[dict[str, Any], Callable[[Path], dict[str, float]]]] = {
    "rock_paper_scissors": (
        {
            "env": "sf/RockPaperScissors-v0", "train_for_env_steps": 200_000, "self_play_snapshot_every": 2000,
            "self_play_pool_size": 1000, "num_policies": 3, "self_play_games": 20, "exploration_loss_coeff": 0.3,
        },
        measure_rock_paper_scissors,
    ),
    "tictactoe": (
        {
            "env": "sf/TicTacToe-v0", "train_for_env_steps": 1_000_000, "self_play_snapshot_every": 50_000,
            "num_policies": 4, "frozen_policies": '{"3": "sf_envs.tictactoe:random_player"}', "updates": "balanced",
            "encoder_mlp_layers": [128, 128], "exploration_loss_coeff": 0.1, "lr_schedule": "linear",
        },
        measure_tictactoe,
    ),
}  # fmt: skip


def main() -> None:
    """Trains what is not in the file yet and prints all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=sorted(GAMES))
    parser.add_argument("--train_dir", type=Path, default=Path("train_dir/self_play"))
    parser.add_argument("--flags", type=json.loads, default={}, help="further flags of sf.train, as JSON")
    arguments = parser.parse_args()
    arguments.train_dir.mkdir(parents=True, exist_ok=True)
    kept = arguments.train_dir / "results.json"
    results = json.loads(kept.read_text()) if kept.exists() else {}
    for name, (flags, measure) in GAMES.items():
        for seed in SEEDS if arguments.only in (None, name) else ():
            key, began_s = f"{name}, seed {seed}", time.monotonic()
            if key not in results:
                settings = {"self_play": True, "seed": seed} | flags | arguments.flags
                sf.train(train_dir=str(arguments.train_dir), experiment=f"{name}_{seed}", **settings)
                measured = measure(arguments.train_dir / f"{name}_{seed}")
                results[key] = {"seconds": time.monotonic() - began_s} | measured
                kept.write_text(json.dumps(results, indent=2) + "\n")
    for key, measured in results.items():
        print(key, ", ".join(f"{name} {value:.3f}" for name, value in measured.items()), sep=": ")


if __name__ == "__main__":
    main()
