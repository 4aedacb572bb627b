"""Numbers of an environment's own in any step, brought down to one of the episode."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from sf.config import ModelConfig
from sf.console import Console
from sf.envs import EnvSource, find_env, probe, register_env
from sf.envs.batches import make_env_batch
from sf.envs.metrics import EpisodeMetrics
from sf.envs.step_metrics import StepMetrics
from sf.envs.stepping import Host
from sf.evaluator.cast import Cast
from sf.evaluator.playing import MAX_ENVS, play
from sf.policy import ActorCritic, CollectPolicy

LENGTHS = 2, 5, 3
"""Steps of the episodes, in turns."""


def reported(t: int) -> dict[str, Any]:
    """The metrics of step t; every other one has no fuel."""
    seen = {"t/mean": t, "t/sum": np.float32(t), "left/max": 10 - t, "left/last": 10 - t, "plain": t}
    return seen if t % 2 else {**seen, "fuel/sum": 1}


def expected(length: int) -> dict[str, float]:
    steps = range(1, length + 1)
    own = {"t/mean": sum(steps) / length, "t/sum": sum(steps), "left/max": 9, "left/last": 10 - length, "plain": length}
    return own | {"fuel/sum": length // 2}


class Walk(gymnasium.Env[Any, Any]):
    """A reset has metrics as well, which belong to no step."""

    observation_space, action_space = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)

    def __init__(self) -> None:
        self.episode, self.t = -1, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episode, self.t = self.episode + 1, 0
        return np.zeros(2, np.float32), {"metrics": {name: 1000 for name in reported(2)}}

    def step(self, action: Any) -> Any:
        self.t += 1
        over = self.t == LENGTHS[self.episode % len(LENGTHS)]
        return np.zeros(2, np.float32), 1.0, over, False, {"metrics": reported(self.t)}


class Pair:
    """Two agents; the second one ends after two steps and reports ten times as much."""

    num_agents = 2
    observation_space, action_space = Walk.observation_space, Walk.action_space

    def reset(self, **_: Any) -> Any:
        self.t = 0
        return [np.zeros(2, np.float32)] * 2, [{}, {}]

    def step(self, actions: Any) -> Any:
        self.t += 1
        over = [self.t == 4, self.t >= 2]
        infos = [{"metrics": {"x/sum": 1}}, {"metrics": {"x/sum": 10}}]
        return [np.zeros(2, np.float32)] * 2, [1.0, 1.0], over, [False, False], infos

    def close(self) -> None:
        pass


def many(mode: AutoresetMode) -> Any:
    def make(num_envs: int) -> Any:
        return SyncVectorEnv([Walk] * num_envs, autoreset_mode=mode)

    return make


KINDS = {"Walk": None, **{f"walks/{mode.name}": many(mode) for mode in AutoresetMode}}
for name, make_vec in KINDS.items():
    register_env(name, Walk, make_vec)
register_env("Pair", Pair)


def played(env: str, num_episodes: int) -> list[dict[str, float]]:
    source = find_env(env)
    info = probe(source)
    policy = CollectPolicy(ActorCritic(info, ModelConfig()), validate_args=False)
    (episodes,) = play(Cast([policy]), source, info, num_episodes, seed=1)
    return [dict(sorted(metrics.items())) for metrics in episodes.metrics]


@pytest.mark.parametrize("env", KINDS)
def test_the_end_of_a_name_says_how_steps_become_one_number(env: str) -> None:
    """Also where many environments step as one, however they reset: the metrics of a reset count for no episode."""
    found = played(env, num_episodes=3 * MAX_ENVS)
    wanted = [dict(sorted(expected(length).items())) for length in LENGTHS]
    assert {len(one) for one in found} == {6}
    assert all(one in wanted for one in found)
    assert all(one in found for one in wanted)


def test_each_agent_has_its_own_until_it_ends() -> None:
    found = played("Pair", num_episodes=2)
    assert sorted(one["x/sum"] for one in found) == [4.0, 4.0, 20.0, 20.0]


def test_an_episode_that_is_restarted_or_repeated_counts_its_own_steps() -> None:
    source = EnvSource("Walk", factory=Walk)
    info = probe(source)
    observations = {"obs": np.zeros((1, 2), np.float32)}

    def batch(**host: Any) -> Any:
        made = make_env_batch(source, info, [1], {"obs": np.zeros((1, 2), np.float32)}, np.zeros(1, bool), "scale",
                              Host(**host))  # fmt: skip
        made.reset(observations)
        return made

    def step(made: Any) -> Any:
        return made.step(np.zeros(1, np.int64), observations, np.zeros(1, np.float32))

    first = batch(repeatable=True)
    assert not step(first)
    again = batch(repeatable=True)
    again.envs[0].episode = -1
    again.replay(first.history, observations)
    (end,) = step(again)
    assert end.info["metrics"]["t/sum"] == 3.0
    assert not step(again)
    again.restart(0, observations)
    ends = [end for _ in range(3) for end in step(again)]
    assert ends[0].info["metrics"]["t/sum"] == 6.0, "three steps, and not the one before the restart"


@pytest.mark.parametrize(
    ("values", "name", "value"),
    [
        ([1, None, 3], "a/mean", 2.0),
        ([1, math.nan, 3], "a/sum", 4.0),
        ([True, False], "a/max", 1.0),
        ([-2, -3], "a/max", -2.0),
        ([None, math.nan], "a/last", None),
        ([1, "two", 3], "a/sum", "two"),
        ([1, math.inf], "a/mean", math.inf),
        ([1, 2], "a/median", None),
        ([1, 2], "sum", None),
    ],
)
def test_what_becomes_of_values(values: list[Any], name: str, value: Any) -> None:
    metrics, info = StepMetrics(), dict[Any, Any]()
    for each in values:
        metrics.add(3, {name: each})
    metrics.finish(4, info)
    assert info == {}, "another row"
    metrics.finish(3, info)
    assert info.get("metrics", {}).get(name) == value
    again: dict[Any, Any] = {}
    metrics.finish(3, again)
    assert again == {}, "they are forgotten"


def test_a_value_that_is_no_number_is_told_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    metrics, info = StepMetrics(), dict[Any, Any](metrics={"plain": 1})
    for each in ("many", 2):
        metrics.add(0, {"hits/sum": each})
    metrics.finish(0, info)
    assert EpisodeMetrics(Console()).read(info) == {"plain": 1.0}
    assert "info['metrics']['hits/sum'] is a str, expected a number." in capsys.readouterr().out


def test_what_is_no_dict_is_left_for_the_end() -> None:
    metrics, info = StepMetrics(), dict[Any, Any](metrics=[1.0])
    metrics.add(0, [1.0])
    metrics.add(0, {"a/sum": 1})
    metrics.finish(0, info)
    assert info == {"metrics": [1.0]}
