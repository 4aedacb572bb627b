"""What environments say of their episodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from sf.config import ModelConfig
from sf.envs import EnvSource, find_env, probe
from sf.envs.batches import make_env_batch
from sf.envs.registry import register_env
from sf.envs.scores import Scores
from sf.envs.stepping import Ended
from sf.errors import EnvError
from sf.evaluator.cast import Cast
from sf.evaluator.playing import play
from sf.monitor.episodes import EpisodeWindows
from sf.policy import ActorCritic, CollectPolicy
from sf.shared.episodes import Episode
from tests.environments.toys import Toy
from tests.helpers.lab import RolloutWorker, make_lab, step_until


class Unspeakable:
    """Neither a number nor shown."""

    def __float__(self) -> float:
        raise RuntimeError("no number")

    def __str__(self) -> str:
        raise RuntimeError("not shown")

    __repr__ = __str__


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1.5, 1.5), (np.float32(1.5), 1.5), (np.array([1.5]), 1.5), ("1.5", 1.5), (True, 1.0), (np.int64(1), 1.0)],
)
def test_fault_b14_scores_in_info_that_convert_are_taken(value: Any, expected: float) -> None:
    scores = Scores(1)
    score = scores.end(Ended(0, True, False, {"episode": {"r": value, "l": 7}, "true_objective": value}))
    assert score == (expected, 7, expected, {})


@pytest.mark.parametrize(
    ("info", "told"),
    [
        ({"true_objective": None}, "a NoneType as true_objective"),
        ({"true_objective": np.zeros(2)}, "a ndarray as true_objective"),
        ({"true_objective": "far" * 1000}, "a str as true_objective"),
        ({"true_objective": Unspeakable()}, "a Unspeakable as true_objective"),
        ({"episode": {"r": {}, "l": 1}}, "a dict as r"),
        ({"episode": {"r": 1.0, "l": np.inf}}, "a float as l"),
        ({"episode": {"r": 3j, "l": 1}}, "a complex as r"),
    ],
)
def test_fault_b14_scores_in_info_that_are_no_numbers_are_refused(info: dict[str, Any], told: str) -> None:
    with pytest.raises(EnvError) as caught:
        Scores(1).end(Ended(0, True, False, info))
    assert f"has {told}, expected a number" in str(caught.value)
    assert len(str(caught.value)) < 250


def played(ends: list[tuple[int, dict[str, Any]]]) -> tuple[Scores, list[Any]]:
    """The scores of ends that come after so many steps each, with a reward of 1 a step and this info."""
    scores, found = Scores(1), []
    for steps, info in ends:
        for _ in range(steps):
            scores.add(np.ones(1))
        score = scores.end(Ended(0, True, False, info))
        found.append(score and score[:2])
    return scores, found


def reported(r: float, l: int) -> dict[str, Any]:  # noqa: E741  # as Gymnasium has it
    return {"episode": {"r": r, "l": l}}


GOES_ON = {"episode_continues": True}


@pytest.mark.parametrize(
    ("ends", "expected", "spans"),
    [
        # A game of three lives, whose wrapper sets no episode_continues, twice.
        (
            [(10, {}), (9, {}), (11, reported(30, 30))] * 2,
            [(10, 10), (9, 9), (11, 11)] * 2,
            2,
        ),
        # The same, with statistics below a frame skip and a few frames within resets.
        ([(10, {}), (9, {}), (11, reported(500, 125))], [(10, 10), (9, 9), (11, 11)], 1),
        # One that sets it, with statistics in frames.
        ([(10, GOES_ON), (9, GOES_ON), (11, reported(500, 125))], [None, None, (500, 125)], 0),
        # A time limit above statistics that start anew with each reset.
        ([(10, {}), (9, reported(90, 9)), (10, {}), (10, {}), (3, reported(30, 3))], None, 0),
        # The same in frames: the first whole episode shows that a step has four of them.
        ([(9, reported(90, 36)), (10, {}), (9, reported(90, 36)), (10, {}), (3, reported(30, 12))], None, 0),
        # In frames from a cut on, where the report is shorter than all steps since the last one.
        ([(20, {}), (5, reported(50, 20))], None, 0),
        # The game that comes after one without a sign counts as a whole.
        ([(2, {}), (2, reported(4, 4)), (3, reported(30, 3))], [(2, 2), (2, 2), (30, 3)], 1),
    ],
)
def test_no_reward_counts_twice_where_statistics_span_several_ends(
    ends: Any, expected: Any, spans: int, capsys: pytest.CaptureFixture[str]
) -> None:
    scores, found = played(ends)
    as_reported = [tuple(info["episode"].values()) if "episode" in info else (steps, steps) for steps, info in ends]
    assert found == (expected or as_reported)
    assert scores.spans == spans
    said = capsys.readouterr().out
    assert said.count("spans several ends") == spans
    assert ("set info['episode_continues'] = True there" in said) == bool(spans)


def test_what_was_reported_survives_a_resume() -> None:
    scores, _ = played([(10, {}), (9, {})])
    again = Scores(1)
    again.load_state(json.loads(json.dumps(scores.state())))
    again.add(np.ones(1))
    again.skip(np.zeros(1, np.int64))  # a reset between two lives is no step of them
    again.add(np.ones(1))
    assert again.end(Ended(0, True, False, reported(20, 20))) == (2.0, 1, 2.0, {})
    assert (again.spans, again.has_unreported) == (1, [False])


def test_spanning_is_told_ever_more_rarely(capsys: pytest.CaptureFixture[str]) -> None:
    played([(1, {}), (1, reported(2, 2))] * 9)
    assert capsys.readouterr().out.count("spans several ends") == 4, "1, 2, 4, 8"


def test_a16_mean_is_that_of_the_last_hundred_whatever_is_kept() -> None:
    windows = EpisodeWindows(1, stats_avg=500)
    windows.add(Episode(0, float(index), index, 0.0) for index in range(150))
    assert windows.mean_rewards() == {0: sum(range(50, 150)) / 100}
    assert windows.mean_rewards(20) == {0: sum(range(130, 150)) / 20}
    assert windows.scalars(0)["len/len"] == sum(range(150)) / 150


def test_forgotten_rows_begin_anew_and_the_others_go_on() -> None:
    scores = Scores(4)
    scores.add(np.ones(4, np.float32))
    scores.add(np.ones(4, np.float32))
    scores.forget(range(2, 3))
    scores.add(np.ones(4, np.float32))
    found = [scores.end(Ended(row, True, False, {})) for row in range(4)]
    assert [one and one[:2] for one in found] == [(3.0, 3), (3.0, 3), (1.0, 1), (3.0, 3)]


class UsesAgain(Toy):
    """One info with one dict or array of scores in it, which every reset clears; an episode has three steps."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        r, l = (np.zeros(1), np.zeros(1, int)) if kind == "arrays" else (np.zeros(()), np.zeros((), int))  # noqa: E741
        self.info: dict[str, Any] = {"episode": {"r": r, "l": l}, "true_objective": np.zeros(())}
        self.plain = kind == "numbers"

    def reset(self, **_: Any) -> Any:
        self.t = 0
        self.count()
        return self.returned["observation"], self.info

    def step(self, action: Any) -> Any:
        self.t += 1
        self.count()
        return self.returned["observation"], 1.0, self.t == 3, False, self.info

    def count(self) -> None:
        self.info["true_objective"][...] = 10 * self.t
        if self.plain:
            self.info["episode"].update(r=2.0 * self.t, l=self.t)
        else:
            self.info["episode"]["r"][...], self.info["episode"]["l"][...] = 2 * self.t, self.t


class UseAgain(UsesAgain):
    """The same with two agents."""

    num_agents = 2

    def reset(self, **arguments: Any) -> Any:
        seen, info = super().reset()
        return [seen] * 2, [info] * 2

    def step(self, action: Any) -> Any:
        return tuple([part] * 2 for part in super().step(action))


@pytest.mark.parametrize("env", [UsesAgain, UseAgain])
@pytest.mark.parametrize("kind", ["numbers", "arrays", "scalars"])
def test_scores_in_an_info_that_is_used_again_are_those_before_the_reset(kind: str, env: Any) -> None:
    source = EnvSource("Again", {"kind": kind}, env)
    info = probe(source)
    rows = info.num_agents
    observations, finals = ({"obs": np.zeros((rows, 2), np.float32)} for _ in range(2))
    batch = make_env_batch(source, info, [0], finals, np.zeros(rows, bool), "clip")
    scores, rewards = Scores(rows), np.zeros(rows, np.float32)
    batch.reset(observations)
    for _ in range(3):
        ended = batch.step(np.zeros(rows, np.int64), observations, rewards)
        scores.add(rewards)
    assert [scores.end(one) for one in ended] == [(6.0, 3, 30.0, {})] * rows


class Large(gymnasium.Env[Any, Any]):
    """Pays 16,777,217 and takes 16,777,216 in turns: 1 in two steps, of which float32 keeps nothing."""

    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return np.zeros(2, np.float32), float(self.reward()), self.t == 8, False, {}

    def reward(self) -> int:
        return 16_777_217 if self.t % 2 else -16_777_216


class LargeTeam:
    """Two such agents."""

    num_agents, observation_space, action_space = 2, Large.observation_space, Large.action_space

    def __init__(self) -> None:
        self.env = Large()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[list[Any], list[Any]]:
        seen, info = self.env.reset(seed=seed)
        return [seen] * 2, [info] * 2

    def step(self, actions: Any) -> tuple[list[Any], ...]:
        seen, reward, terminated, truncated, info = self.env.step(0)
        return [seen] * 2, [reward] * 2, [terminated] * 2, [truncated] * 2, [info] * 2

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("make", "vectorization"), [(Large, "none"), (Large, "native"), (LargeTeam, "none")])
def test_returns_keep_the_digits_that_float32_loses(make: Any, vectorization: str, tmp_path: Path) -> None:
    register_env("Large", make, lambda num_envs: gymnasium.vector.SyncVectorEnv([Large] * num_envs))
    lab = make_lab(tmp_path, "Large", vectorization=vectorization, num_envs_per_worker=2, rollout=16)
    roles = lab.build_all()
    episodes: list[Episode] = []
    worker = next(role for role in roles if isinstance(role, RolloutWorker))
    for group in worker.groups:
        group.on_episode = episodes.append
    step_until(roles, lambda: len(episodes) >= 4)
    assert {episode.reward for episode in episodes} == {4.0}
    for role in roles:
        role.close()
    source = find_env("Large")
    info = probe(source)
    policy = CollectPolicy(ActorCritic(info, ModelConfig()), validate_args=False)
    (played,) = play(Cast([policy]), source, info, 3, seed=1)
    assert set(played.rewards) == {4.0}


def test_a_mean_over_more_than_a_hundred_episodes_is_over_all_of_them() -> None:
    windows = EpisodeWindows(num_policies=1, stats_avg=20, largest=250)
    windows.add(Episode(0, float(number), 1, 0.0) for number in range(400))
    assert windows.num_kept(0) == 250
    assert windows.mean_rewards(250) == {0: (150 + 399) / 2}
    assert windows.mean_rewards(100) == {0: (300 + 399) / 2}
