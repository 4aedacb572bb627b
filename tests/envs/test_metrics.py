"""Numbers of an environment's own: read at the end of an episode, and shown wherever returns are."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import sf
from sf.console import Console
from sf.envs.metrics import EpisodeMetrics
from sf.envs.statistics import kept
from sf.monitor.episodes import EpisodeWindows
from sf.shared.episodes import Episode
from tests.helpers.commands import run
from tests.helpers.events import read_events

ENV = "tests.envs.test_metrics:Keys-v0"


class Keys(gymnasium.Env[Any, Any]):
    """Episodes of 5 steps; action 1 finds a key. One dict serves for all infos, and reset clears it.

    A word may stand where a success is a number.
    """

    observation_space, action_space = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)

    def __init__(self, word: str = "") -> None:
        self.word = word
        self.info: dict[str, Any] = {}
        self.num_steps = self.num_keys = self.num_episodes = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.info.clear()
        self.num_steps = self.num_keys = 0
        return np.zeros(2, np.float32), self.info

    def step(self, action: Any) -> Any:
        self.num_steps += 1
        self.num_keys += int(action)
        is_over = self.num_steps == 5
        if is_over:
            self.num_episodes += 1
            self.info["metrics"] = {"keys": np.array(self.num_keys), "left": 5 - self.num_keys}
            if self.num_episodes % 4 == 0:
                self.info["metrics"]["fourth"] = 1
            self.info["is_success"] = self.word or self.num_keys > 2
        return np.zeros(2, np.float32), float(action), is_over, False, self.info


gymnasium.register("Keys-v0", f"{__name__}:Keys")


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({}, {}),
        ({"metrics": {"keys": 3, "fuel": 0.5}}, {"keys": 3.0, "fuel": 0.5}),
        ({"metrics": {"a": np.float32(0.5), "b": np.array([2]), "c": True, "d": np.bool_(False)}},
         {"a": 0.5, "b": 2.0, "c": 1.0, "d": 0.0}),
        ({"is_success": True}, {"success": 1.0}),
        ({"is_success": np.float32(0.0), "metrics": {"keys": 1}}, {"keys": 1.0, "success": 0.0}),
        ({"episode_extra_stats": {"kills": 7}, "metrics": {"kills": 8}}, {"kills": 8.0}),
        ({"metrics": {"unknown": None, "nan": float("nan"), }}, {}),
        ({"metrics": None, "success": 1}, {}),
    ],
)  # fmt: skip
def test_metrics_are_numbers_by_name(
    info: dict[str, Any], expected: dict[str, float], capsys: pytest.CaptureFixture[str]
) -> None:
    assert EpisodeMetrics(Console()).read(info) == expected
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("info", "told"),
    [
        ({"metrics": {"keys": "many"}}, "info['metrics']['keys'] is a str, expected a number."),
        ({"metrics": {"keys": [1, 2]}}, "info['metrics']['keys'] is a list, expected a number."),
        ({"metrics": {"keys": object()}}, "info['metrics']['keys'] is a object, expected a number."),
        ({"metrics": {"keys": float("inf")}}, "info['metrics']['keys'] is inf, expected a finite number."),
        ({"metrics": {"keys": 10**400}}, "info['metrics']['keys'] is a int, expected a number."),
        ({"metrics": {"keys": [[1], [2, 3]]}}, "info['metrics']['keys'] is a list, expected a number."),
        ({"metrics": {"a\0": 1.0}}, "has a name that is no text of at most 48 bytes."),
        ({"metrics": {3: 1.0}}, "info['metrics'][3] has a name that is no text of at most 48 bytes."),
        ({"metrics": {"x" * 49: 1.0}}, "has a name that is no text of at most 48 bytes."),
        ({"metrics": [1.0]}, "info['metrics'] is a list, expected a dict of numbers."),
        ({"is_success": "yes"}, "info['is_success'] is a str, expected a number."),
    ],
)
def test_what_is_no_metric_is_told_once_and_left_out(
    info: dict[str, Any], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = EpisodeMetrics(Console())
    for _ in range(3):
        assert metrics.read(kept(info)) == {}
    said = capsys.readouterr().out
    assert said.count("Warning: ") == 1
    assert f"{told} It is left out of the metrics." in said


@pytest.mark.more
@pytest.mark.parametrize("mode", ["--serial_mode", "--async_rl=True"])
def test_metrics_are_curves_and_have_intervals_in_evaluations(tmp_path: Path, mode: str) -> None:
    flags = f"--env={ENV}", "--num_workers=1", "--num_envs_per_worker=4", "--train_for_env_steps=6000", "--seed=1"
    finished = run(tmp_path, *flags, mode, "--experiment=keys")
    assert finished.code == 0, finished.err
    lines = [json.loads(line) for line in (tmp_path / "train_dir/keys/metrics.jsonl").read_text().splitlines()]
    for line in (line for line in lines if "reward/reward" in line):
        assert line["env/keys"] == pytest.approx(line["reward/reward"]), "each key is a reward of 1"
        assert (line["env/keys_min"], line["env/keys_max"]) == (line["reward/reward_min"], line["reward/reward_max"])
        assert 0.0 <= line["env/success"] <= 1.0
    assert lines[-1]["env/fourth"] == 1.0, "a quarter of the episodes has it"
    curves = read_events(tmp_path / "train_dir/keys/.summary/0")
    assert curves["env/keys"][-1][1] == pytest.approx(lines[-1]["env/keys"])
    played = run(tmp_path, "keys", f"--env={ENV}", "--num_episodes=400", "--csv=keys.csv", module="sf.cli.evaluate")
    assert played.code == 0, played.err
    with (tmp_path / "keys.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["env/keys"]) for row in rows] == [float(row["reward"]) for row in rows]
    mean = np.mean([float(row["env/keys"]) for row in rows])
    assert f"env/keys {mean:.3f}, with 95% confidence from " in played.out
    assert "env/fourth 1.000, with 95% confidence from 1.000 to 1.000 (in " in played.out


SHORT = f"--env={ENV}", "--num_workers=1", "--num_envs_per_worker=4", "--seed=1", "--serial_mode", "--experiment=keys"


def score_of_best(tmp_path: Path) -> float:
    (state,) = (tmp_path / "train_dir/keys/checkpoint_p0/best").glob("*/state.json")
    return float(json.loads(state.read_text())["reward"])


@pytest.mark.more
@pytest.mark.parametrize("evaluates", [[], ["--eval_every_steps=2000", "--eval_episodes=8"]])
def test_the_score_decides_what_is_best_and_when_it_is_enough(tmp_path: Path, evaluates: list[str]) -> None:
    """Keys that are left become fewer with training, so the best policies are the first ones."""
    by_return = run(tmp_path, *SHORT, *evaluates, "--train_for_env_steps=8000", "--save_best_every_sec=1")
    assert by_return.code == 0, by_return.err
    assert score_of_best(tmp_path) > 3.0, "keys that were found"
    by_left = *SHORT, *evaluates, "--score=env/left", "--save_best_every_sec=1"
    again = run(tmp_path, *by_left, "--train_for_env_steps=12000")
    assert again.code == 0, again.err
    assert score_of_best(tmp_path) < 2.5, "the score of another number is none to be beaten"
    stopped = run(
        tmp_path, *by_left, "--restart_behavior=overwrite", "--stop_at_reward=1.5", "--stop_at_reward_episodes=20"
    )
    assert "stop_at_reward reached" in stopped.out, "before anything is learned"


@pytest.mark.more
def test_a_score_that_no_episode_has_is_told(tmp_path: Path) -> None:
    finished = run(tmp_path, *SHORT, "--score=env/sucess", "--train_for_env_steps=6000", "--stop_at_reward=0")
    assert "train_for_env_steps reached" in finished.out
    assert finished.out.count("Warning: none of the last 100 episodes has score=env/sucess") == 1
    assert "The environment reports env/fourth, env/keys, env/left, env/success." in finished.out
    refused = run(tmp_path, *SHORT, "--score=success")
    assert refused.code == 2
    assert "score=success must be reward, or env/NAME" in refused.err


def test_sums_beyond_the_largest_number_end_nothing() -> None:
    windows = EpisodeWindows(1, 100)
    windows.add([Episode(0, 1.0, 1, 1.0, {"huge": 1.7e308})] * 2)
    assert windows.scalars(0)["env/huge"] == pytest.approx(1.7e308), "and the mean is a number"


def test_callbacks_see_the_metrics_of_each_episode(tmp_path: Path) -> None:
    sf.register_env("OwnKeys", Keys)
    episodes: list[Episode] = []
    sf.train(
        "OwnKeys", on_episode=episodes.append, train_dir=str(tmp_path), serial_mode=True, num_workers=1,
        num_envs_per_worker=2, train_for_env_steps=500,
    )  # fmt: skip
    assert len(episodes) > 50
    assert all(episode.metrics["keys"] == episode.reward for episode in episodes)
    assert sum("fourth" in episode.metrics for episode in episodes) == pytest.approx(len(episodes) / 4, abs=2)
