"""`sf-eval --match`: who plays whom, how episodes are counted, and what is refused."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from sf_envs.rock_paper_scissors import PAYOFFS

from sf.cli import evaluate
from sf.config import Config, ModelConfig, RolloutConfig, RunConfig
from sf.envs import find_env, probe, register_env
from sf.evaluator.match import returns_of_sides
from sf.evaluator.tally import Episodes
from sf.policy import ActorCritic, PolicySaver, TrainedPolicy
from sf.storage import checkpoint

SMALL = ModelConfig(encoder_mlp_layers=(8,))
GAME, RPS = "sf/TicTacToe-v0", "sf/RockPaperScissors-v0"
PERFECT, RANDOM = "sf_envs.tictactoe:perfect", "sf_envs.tictactoe:random_player"
ROCK, PAPER, SCISSORS = (f"sf_envs.rock_paper_scissors:{name}" for name in ("rock", "paper", "scissors"))


def save(directory: Path, env: str = GAME, version: int = 3, bounds: Any = "scale") -> ActorCritic:
    """Writes what a learner would write, with an untrained policy."""
    config = Config(RunConfig(env=env), RolloutConfig(action_bounds=bounds), model=SMALL)
    info = probe(find_env(env))
    policy = ActorCritic(info, SMALL)
    tensors = {f"policy.{name}": tensor for name, tensor in policy.variables().items()} | {"version": torch.tensor(3)}
    data: dict[str, Any] = {"config": config.to_json(), "env": info.to_json(), "reward": 1.0}
    directory.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.save(directory, version, 100 * version, tensors, data)
    return policy


def command(capsys: pytest.CaptureFixture[str], path: Path, players: Sequence[str], *flags: str) -> tuple[int, str]:
    code = evaluate.main([f"--train_dir={path}", "--match", *players, *flags])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def match(capsys: pytest.CaptureFixture[str], path: Path, players: Sequence[str], *flags: str) -> Any:
    assert evaluate.main([f"--train_dir={path}", "--match", *players, "--json", *flags]) == 0
    return json.loads(capsys.readouterr().out)


class Force:
    """Two or more agents push, and the episode is over; each is paid as much as it pushes, 0 to 8."""

    def __init__(self, num_agents: int = 2) -> None:
        self.num_agents = num_agents
        self.observation_space, self.action_space = spaces.Box(-1, 1, (2,)), spaces.Box(0, 8, (1,))

    def reset(self, **_: Any) -> Any:
        return self.seen(), [{}] * self.num_agents

    def step(self, actions: Any) -> Any:
        rewards = [float(action[0]) for action in actions]
        return self.seen(), rewards, [True] * self.num_agents, [False] * self.num_agents, [{}] * self.num_agents

    def seen(self) -> Any:
        return [np.zeros(2, np.float32)] * self.num_agents

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _players(monkeypatch: pytest.MonkeyPatch) -> None:
    register_env("Force", Force)
    module = ModuleType("pushers")
    pushes: dict[str, Any] = {"one": [1.0], "two": [2.0], "none": [0.0], "wrong": [9.0]}
    vars(module).update({name: (lambda *_, push=push: push) for name, push in pushes.items()} | {"number": 3})
    monkeypatch.setitem(sys.modules, "pushers", module)


class TestCounting:
    def test_perfect_play_wins_against_random_moves(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        found = match(capsys, tmp_path, [PERFECT, RANDOM], f"--env={GAME}", "--num_episodes=60")
        (pair,) = found["pairs"]
        assert pair["losses"] == 0
        assert pair["wins"] + pair["draws"] == 60
        assert pair["score"]["value"] >= 0.9
        assert found["players"][PERFECT]["elo"]["low"] > found["players"][RANDOM]["elo"]["high"]

    def test_every_pair_meets_and_a_circle_has_equal_ratings(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        found = match(capsys, tmp_path, [ROCK, PAPER, SCISSORS], f"--env={RPS}", "--num_episodes=7")
        names = [ROCK, PAPER, SCISSORS]
        for pair in found["pairs"]:
            row, column = (names.index(name) for name in pair["players"])
            assert (pair["wins"], pair["losses"]) == ((7, 0) if PAYOFFS[row, column] > 0 else (0, 7))
        assert [found["players"][name]["elo"]["value"] for name in names] == pytest.approx([0, 0, 0], abs=1e-6)
        assert [found["players"][name]["score"]["value"] for name in names] == [0.5] * 3

    def test_seats_are_swapped_and_the_larger_mean_of_a_side_wins(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Two of three agents belong to one side, so sums would favour it."""
        players = ["pushers:one", "pushers:two", "pushers:none"]
        flags = "--env=Force", '--env_kwargs={"num_agents": 3}', "--num_episodes=5"
        found = match(capsys, tmp_path, players, *flags)
        assert [(pair["wins"], pair["draws"], pair["losses"]) for pair in found["pairs"]] == [
            (0, 0, 5), (5, 0, 0), (5, 0, 0)
        ]  # fmt: skip

    def test_sides_are_compared_episode_by_episode(self) -> None:
        """Agents 0 and 2 against 1 and 3, in two environments; episodes and agents end in any order."""
        first = Episodes(
            [1, 5, 3, 7, 2, 4], [1] * 6, agents=[0, 0, 2, 2, 0, 2], envs=[0, 1, 0, 1, 0, 0], games=[0, 0, 0, 0, 1, 1]
        )
        second = Episodes(
            [8, 9, 0, 1, 6, 6], [1] * 6, agents=[3, 1, 3, 1, 1, 3], envs=[1, 1, 0, 0, 0, 0], games=[0, 0, 0, 0, 1, 1]
        )
        assert returns_of_sides([first, second]).tolist() == [[2, 0.5], [3, 6], [6, 8.5]]

    def test_the_lives_of_an_agent_in_an_episode_count_together(self) -> None:
        """Agent 0 comes back, and agent 1 does not come at all in the second episode, which is no game."""
        first = Episodes([1, 2, 5], [1] * 3, agents=[0, 0, 0], envs=[0] * 3, games=[0, 0, 1])
        second = Episodes([4], [1], agents=[1], envs=[0], games=[0])
        assert returns_of_sides([first, second]).tolist() == [[3, 4]]
        assert returns_of_sides([first, Episodes()]).shape == (0, 2)

    def test_the_seed_decides_and_further_players_change_nothing_between_others(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for name in ("run1", "run2"):
            save(tmp_path / name / "checkpoint_p0")
        flags = f"--env={GAME}", "--num_episodes=41"
        two = match(capsys, tmp_path, ["run1", "run2"], *flags)
        three = match(capsys, tmp_path, ["run1", "run2", RANDOM], *flags)
        assert two["pairs"][0] == three["pairs"][0]
        assert three == match(capsys, tmp_path, ["run1", "run2", RANDOM], *flags)
        assert three["pairs"] != match(capsys, tmp_path, ["run1", "run2", RANDOM], *flags, "--seed=1")["pairs"]


class TestPlayers:
    def test_experiments_directories_and_functions(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        network = save(tmp_path / "run1" / "checkpoint_p0")
        for policy_id in range(2):
            save(tmp_path / "pair" / f"checkpoint_p{policy_id}", version=policy_id + 4)
        PolicySaver(TrainedPolicy(network), train_step=9).save(tmp_path / "saved")
        one = str(tmp_path / "pair" / "checkpoint_p1")
        named = f"{one}/checkpoint_000000005_500"
        players = [str(tmp_path / "saved"), "run1", "pair", str(tmp_path / "run1"), one, named, RANDOM]
        found = match(capsys, tmp_path, players, "--num_episodes=1")
        assert found["env"] == GAME, "of the first player that knows one"
        versions = {
            name: player["title"].partition("policy_version ")[2][:1] for name, player in found["players"].items()
        }
        assert versions == {
            players[0]: "9", "run1": "3", "pair, policy 0": "4", "pair, policy 1": "5", players[3]: "3", one: "5",
            named: "5", RANDOM: "",
        }  # fmt: skip
        assert len(found["pairs"]) == 28

    def test_checkpoints_of_one_run(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for version in (3, 4):
            save(tmp_path / "run1" / "checkpoint_p0", version=version)
        flags = "--num_episodes=2", "--checkpoint", "latest", "checkpoint_000000003_300"
        found = match(capsys, tmp_path, ["run1"], *flags)
        assert list(found["players"]) == ["run1", "run1 checkpoint_000000003_300"]

    def test_numbers_of_a_box(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A function acts in the bounds that a network was trained with."""
        save(tmp_path / "run1" / "checkpoint_p0", env="Force", bounds="tanh")
        found = match(capsys, tmp_path, ["run1", "pushers:one", "pushers:two"], "--num_episodes=4")
        assert found["pairs"][2]["losses"] == 4


def test_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "run1" / "checkpoint_p0", env=RPS)
    code, shown = command(capsys, tmp_path, ["run1", PAPER, ROCK], "--num_episodes=10")
    assert code == 0
    lines = [line for line in shown.splitlines() if not line.startswith("Loading torch")]
    assert lines[0].startswith("run1: ")
    assert "(policy_version 3, 300 frames)" in lines[0]
    assert lines[1:3] == [
        f"10 episodes of {RPS} for each pair, with bounds at 95% confidence",
        "",
    ]
    assert lines[3].split("  ")[:1] == ["score in %"]
    assert re.findall(r"against \d", lines[3]) == ["against 1", "against 2", "against 3"]
    row = next(line for line in lines[4:7] if PAPER in line)
    assert "100.0 (72.2 to 100.0)" in row
    assert lines[8].split() == ["player", "Elo", "low", "high", "score", "in", "%", "wins", "draws", "losses"]
    assert [line.split()[:2] for line in lines[9:]] == [line.split()[:2] for line in lines[4:7]]
    elo = [int(line.split()[2]) for line in lines[9:]]
    assert len(elo) == 3
    assert elo == sorted(elo, reverse=True)


REFUSED: dict[str, tuple[list[str], list[str], int, str]] = {
    "alone": (["run1"], [], 2, "UsageError: --match has one player (run1), and a match needs at least two: --match"),
    "twice": (["run1", RANDOM, "run1"], [], 2, "UsageError: --match names run1 twice. Name each player once."),
    "unknown": (["run1", "run3"], [], 4, "ExperimentError: --match: 'run3' is no experiment with checkpoints in "),
    "hint": (["run1", "run3"], [], 4, "and no module:function. Did you mean run1?"),
    "no environment": ([PERFECT, RANDOM], [], 2, "UsageError: --match: none of the players knows an environment. Give"),
    "one agent": ([PERFECT, RANDOM], ["--env=CartPole-v1"], 2, "CartPole-v1 has one agent, and a match needs at least"),
    "spaces": (["run1", "rock"], [], 2, "ConfigError: --match: rock was trained with 2 agents, observations {obs: "),
    "other spaces": (["run1", RANDOM], [f"--env={RPS}"], 2, "All players of a match need the spaces of its"),
    "bounds": (["push1", "push2"], [], 2, "ConfigError: --match: push2 was trained with --action_bounds=clip, and"),
    "no function": (["run1", "teams:none"], [], 2, "ConfigError: teams:none cannot be imported: No module named"),
    "number": (["run1", "pushers:number"], [], 2, "pushers:number is of type int, expected a function."),
    "no action": (["pushers:one", "pushers:wrong"], ["--env=Force"], 3, "pushers:wrong, called with the observation"),
    "csv": (["run1", RANDOM], ["--csv=a.csv"], 2, "UsageError: --csv has a line for each episode of one policy, and a"),
    "processes": (["run1", RANDOM], ["--num_workers=2"], 2, "--num_workers=2: a match plays in one process."),
    "experiment": ([PERFECT, RANDOM], ["--experiment=run1"], 2, "--match names all players itself. Leave --experiment"),
    "no episodes": (["run1", RANDOM], ["--num_episodes=0"], 2, "ConfigError: num_episodes=0 must be at least 1."),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    players, flags, code, message = REFUSED[name]
    runs = {"run1": (GAME, "scale"), "rock": (RPS, "scale"), "push1": ("Force", "scale"), "push2": ("Force", "clip")}
    for run in set(players) & set(runs) | {"run1"}:
        save(tmp_path / run / "checkpoint_p0", *runs[run][:1], bounds=runs[run][1])
    found, shown = command(capsys, tmp_path, players, *flags)
    assert found == code, shown
    assert message in shown
