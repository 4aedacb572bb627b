"""Games of two agents whose solutions are known."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from sf_envs import tictactoe_values as values
from sf_envs.rock_paper_scissors import EQUILIBRIUM, PAYOFFS, RockPaperScissors, exploitability
from sf_envs.tictactoe import PASS, TicTacToe, observe, perfect, random_player
from sf_envs.tictactoe_values import Board, best_response_value, outcomes, perfect_strategy, uniform_strategy

from sf.envs import find_env, probe


@pytest.mark.parametrize("env_id", ["sf/RockPaperScissors-v0", "sf/TicTacToe-v0"])
def test_contract_of_environments_is_kept(env_id: str) -> None:
    assert probe(find_env(env_id)).num_agents == 2


class TestRockPaperScissors:
    def test_a_step_pays_what_the_table_says_and_is_the_episode(self) -> None:
        env = RockPaperScissors()
        env.reset(seed=0)
        for moves in np.ndindex(3, 3):
            _, rewards, terminated, _, infos = env.step(moves)
            assert rewards == [PAYOFFS[moves], PAYOFFS[moves[::-1]]]
            assert terminated == [True, True]
            assert [list(info["metrics"].values()).index(1.0) for info in infos] == list(moves)
        assert (PAYOFFS == -PAYOFFS.T).all()

    def test_only_the_equilibrium_cannot_be_exploited(self) -> None:
        assert exploitability(EQUILIBRIUM) == pytest.approx(0)
        strategies = np.random.default_rng(0).dirichlet(np.ones(3), 1000)
        gains = np.array([exploitability(strategy) for strategy in strategies])
        assert (gains > 0).all()
        nearest = strategies[gains.argmin()]
        assert np.abs(nearest - EQUILIBRIUM).max() < 0.05

    def test_known_strategies(self) -> None:
        found = [exploitability(one) for one in ([1, 0, 0], [0, 1, 0], [0, 0, 1], [1 / 3] * 3)]
        assert found == pytest.approx([1, 1, 2, 1 / 3])

    @pytest.mark.parametrize("strategy", [[0.5, 0.5], [0.5, 0.6, -0.1], [1, 1, 1]])
    def test_what_is_no_strategy_is_refused(self, strategy: Any) -> None:
        with pytest.raises(ValueError, match=r"expected three probabilities whose sum is 1\."):
            exploitability(strategy)


def one_game(env: TicTacToe, players: Any, random: np.random.Generator) -> tuple[int, list[float]]:
    """Agent that began, and rewards; nothing is paid before the end."""
    seen, _ = env.reset()
    first, over = env.on_move, False
    while not over:
        actions = [player(one, random) for player, one in zip(players, seen, strict=True)]
        seen, rewards, (over, _), _, _ = env.step(actions)
        assert over or rewards == [0, 0]
    return first, rewards


class TestTicTacToe:
    def test_each_agent_sees_the_board_as_its_own(self) -> None:
        env = TicTacToe()
        env.reset(seed=1)
        first = env.on_move
        for move in (4, 0, 8):
            seen, *_ = env.step([move, PASS] if env.on_move == 0 else [PASS, move])
        mine, theirs = seen[first], seen[1 - first]
        assert mine["board"].tolist() == [-1, 0, 0, 0, 1, 0, 0, 0, 1]
        assert theirs["board"].tolist() == [1, 0, 0, 0, -1, 0, 0, 0, -1]
        assert (mine["on_move"], theirs["on_move"]) == (0, 1)
        assert np.flatnonzero(mine["action_mask"]).tolist() == [PASS]
        assert np.flatnonzero(theirs["action_mask"]).tolist() == [1, 2, 3, 5, 6, 7]

    @pytest.mark.parametrize("actions", [[PASS, PASS], [4, 4], [3, 4]])
    def test_illegal_actions_are_refused(self, actions: list[int]) -> None:
        env = TicTacToe()
        env.reset(seed=0)
        env.step([4, PASS] if env.on_move == 0 else [PASS, 4])
        with pytest.raises(ValueError, match=r"Legal are \(0, 1, 2, 3, 5, 6, 7, 8\) and 9\."):
            env.step(actions)

    def test_both_agents_begin_equally_often_and_a_seed_gives_the_same_games(self) -> None:
        env = TicTacToe()
        beginners: list[list[int]] = []
        for _ in range(2):
            env.reset(seed=5)
            beginners.append([])
            for _ in range(400):
                env.reset()
                beginners[-1].append(env.on_move)
        assert beginners[0] == beginners[1]
        assert 150 < sum(beginners[0]) < 250

    def test_perfect_never_loses_and_games_have_the_calculated_outcomes(self) -> None:
        env, random = TicTacToe(), np.random.default_rng(0)
        env.reset(seed=0)
        played: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(600):
            first, rewards = one_game(env, [perfect, random_player], random)
            assert sum(rewards) == 0
            played[first == 0].append(rewards[0])
        assert min(played[True] + played[False]) >= 0
        as_first = outcomes(perfect_strategy, uniform_strategy)
        as_second = outcomes(uniform_strategy, perfect_strategy)
        assert as_first.loss == as_second.win == 0
        assert np.mean(played[True]) == pytest.approx(as_first.win, abs=0.05)
        assert np.mean(played[False]) == pytest.approx(as_second.loss, abs=0.07)

    def test_two_perfect_players_draw(self) -> None:
        env, random = TicTacToe(), np.random.default_rng(0)
        assert all(one_game(env, [perfect, perfect], random)[1] == [0, 0] for _ in range(30))

    def test_observations_of_a_board_are_those_of_the_environment(self) -> None:
        env = TicTacToe()
        seen, _ = env.reset(seed=0)
        for agent in range(2):
            expected = observe(values.EMPTY, agent == env.on_move)
            assert {name: np.asarray(one).tolist() for name, one in seen[agent].items()} == {
                name: np.asarray(one).tolist() for name, one in expected.items()
            }


class TestValues:
    def test_the_game_is_a_draw_and_has_255168_courses(self) -> None:
        @functools.cache
        def courses(board: Board) -> int:
            if values.is_lost(board) or not values.legal_moves(board):
                return 1
            return sum(courses(values.after(board, move)) for move in values.legal_moves(board))

        assert courses(values.EMPTY) == 255_168
        assert courses.cache_info().currsize == 5_478
        assert values.minimax(values.EMPTY) == 0

    def test_random_players(self) -> None:
        win, draw, loss = outcomes(uniform_strategy, uniform_strategy)
        assert (win, loss, draw) == pytest.approx((0.585, 0.288, 0.127), abs=5e-4)

    def test_perfect_play_cannot_be_exploited_and_draws_with_itself(self) -> None:
        assert values.exploitability(perfect_strategy) == pytest.approx(0)
        assert outcomes(perfect_strategy, perfect_strategy) == pytest.approx((0, 1, 0))
        assert outcomes(perfect_strategy, uniform_strategy).value > 0.9

    def test_best_response_is_at_least_as_good_as_perfect_play(self) -> None:
        for is_first in (True, False):
            roles = (perfect_strategy, uniform_strategy) if is_first else (uniform_strategy, perfect_strategy)
            perfect_value = outcomes(*roles).value * (1 if is_first else -1)
            assert 1 > best_response_value(uniform_strategy, is_first) >= perfect_value > 0

    def test_best_response_to_a_known_strategy_wins_always(self) -> None:
        def first_empty(board: Board, legal: tuple[int, ...]) -> list[float]:
            return [1.0, *[0.0] * (len(legal) - 1)]

        assert best_response_value(first_empty, is_first=True) == best_response_value(first_empty, is_first=False) == 1
        assert values.exploitability(first_empty) == 1

    @pytest.mark.parametrize("is_first", [True, False])
    def test_best_response_is_that_of_a_search_without_memory(self, is_first: bool) -> None:
        def two_moves(board: Board, legal: tuple[int, ...]) -> list[float]:
            return [1.0] if len(legal) == 1 else [0.25, *[0.0] * (len(legal) - 2), 0.75]

        def search(board: Board, is_answering: bool) -> float:
            if values.is_lost(board):
                return -1.0 if is_answering else 1.0
            legal = values.legal_moves(board)
            if not legal:
                return 0.0
            chances = np.ones(len(legal)) if is_answering else two_moves(board, legal)
            found = [
                chance * search(values.after(board, move), not is_answering)
                for move, chance in zip(legal, chances, strict=True)
                if chance
            ]
            return max(found) if is_answering else sum(found)

        assert best_response_value(two_moves, is_first) == pytest.approx(search(values.EMPTY, is_first))

    def test_what_is_no_strategy_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"returned \[1\.0\] for the board \(0, .*with the sum 1\."):
            outcomes(lambda board, legal: [1.0], uniform_strategy)
