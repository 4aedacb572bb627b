"""`--max_episode_steps`: episodes that never end, in training, in evaluations and in films."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import TimeLimit

from sf.cli import enjoy, evaluate
from sf.config import Config, ModelConfig, RunConfig
from sf.envs import EnvSource, find_env, probe, register_env
from sf.envs.batches import make_env_batch
from sf.envs.limit import StepLimit, limited
from sf.envs.scores import Scores
from sf.envs.source import is_gymnasium
from sf.envs.statistics import EPISODE_CONTINUES
from sf.envs.stepping import Host
from sf.envs.vector_stepping import VectorBatch
from sf.envs.vectorization import PAYS_FROM, choose_vectorization
from sf.errors import ConfigError
from sf.evaluator import playing, watching
from sf.evaluator import worker as evaluation
from sf.monitor.beginning import ENDLESS_S, ENDLESS_STEPS, EndlessEpisodes
from sf.monitor.episodes import EpisodeWindows
from sf.policy import ActorCritic
from sf.shared.episodes import Episode
from sf.shared.messages import EvaluationDone
from sf.spaces import EnvInfo
from sf.storage import checkpoint
from tests.environments.agents import OwnNumAgents
from tests.environments.episode_ends import EndlessLives
from tests.environments.first_hour import Endless, EndlessPair
from tests.envs.test_vectorization import Many
from tests.helpers.lab import make_lab, step_until
from tests.helpers.monitored import seen_at
from tests.monitor.test_beginning import snapshot

SMALL = ModelConfig(encoder_mlp_layers=(8,))
ENDLESS = "tests.environments.first_hour:Endless-v0"


def takes_limit(max_episode_steps: int = 20) -> Any:
    return TimeLimit(Endless(), max_episode_steps)


def room(info: EnvInfo, rows: int) -> dict[str, Any]:
    return {name: np.zeros((rows, *leaf.shape), leaf.dtype) for name, leaf in info.observations.items()}


@pytest.mark.parametrize("kind", [Endless, EndlessPair])
def test_an_episode_is_truncated_at_the_limit_and_its_last_observation_kept(kind: Any) -> None:
    source = EnvSource("Endless", factory=kind, max_episode_steps=3)
    info = probe(source)
    rows = 2 * info.num_agents
    final, observations, has_final = room(info, rows), room(info, rows), np.zeros(rows, bool)
    envs = make_env_batch(source, info, range(2), final, has_final, "clip")
    envs.reset(observations)
    for step in range(1, 8):
        ended = envs.step(np.zeros(rows, np.int64), observations, np.zeros(rows, np.float32))
        assert [(end.row, end.terminated, end.truncated) for end in ended] == (
            [(row, False, True) for row in range(rows)] if step % 3 == 0 else []
        )
        assert (observations["obs"] == step % 3).all()
        if ended:
            assert has_final.all()
            assert (final["obs"] == 3).all()


def test_a_terminal_step_at_the_limit_stays_terminal() -> None:
    class Terminal(Endless):
        def step(self, action: Any) -> Any:
            observation, reward, _, truncated, info = super().step(action)
            return observation, reward, self.steps == 3, truncated, info

    source = EnvSource("Terminal", factory=Terminal, max_episode_steps=3)
    info = probe(source)
    has_final = np.zeros(1, bool)
    envs = make_env_batch(source, info, [1], room(info, 1), has_final, "clip")
    envs.reset(room(info, 1))
    ended = [envs.step(np.zeros(1, np.int64), room(info, 1), np.zeros(1, np.float32)) for _ in range(3)]
    assert [end.terminated for end in ended[2]] == [True]
    assert not has_final.any(), "no value follows"


@pytest.mark.parametrize(("limit", "ends"), [(5, [2, 4, 5]), (4, [2, 4])])
def test_steps_of_all_lives_count_and_a_cut_begins_a_new_game(limit: int, ends: list[int]) -> None:
    source = EnvSource("Lives", factory=EndlessLives, max_episode_steps=limit)
    info = probe(source)
    envs = make_env_batch(source, info, [7], room(info, 1), np.zeros(1, bool), "clip", Host(repeatable=True))
    scores, seen, found, found_ends = Scores(1), room(info, 1), [], []
    envs.reset(seen)
    for step in range(1, 3 * limit + 1):
        rewards = np.zeros(1, np.float32)
        ended = envs.step(np.zeros(1, np.int64), seen, rewards)
        scores.add(rewards)
        found_ends += [step for _ in ended]
        found += [score[:2] for end in ended if (score := scores.end(end))]
        if step % limit == 0:
            assert seen["obs"][0, 1:].tolist() == [step // limit, 0], "step 0 of the next game"
    assert found == [(limit * (limit + 1) / 2, limit)] * 3, "each game once, with all of its lives"
    assert found_ends == [game * limit + end for game in range(3) for end in ends]


@pytest.mark.parametrize("life", [True, False])
def test_a_game_of_atari_is_cut_as_a_whole_and_begins_anew(life: bool) -> None:
    pytest.importorskip("ale_py")
    source = find_env("atari/Breakout", {"episodic_life": life, "noop_max": 0}, 150)
    env = source.make()
    env.reset(seed=0)
    lost, steps, truncated, info = 0, 0, False, dict[str, Any]()
    while not truncated:
        *_, terminated, truncated, info = env.step(1 + steps % 3)
        steps += 1
        if terminated:
            lost += bool(info.get("episode_continues"))
            assert life == bool(info.get("episode_continues")), "no game is over by itself"
            env.reset()
    assert (lost > 0) == life
    assert info["episode"]["l"] == 4 * 150
    assert "episode_continues" not in info
    ale = env.unwrapped.ale
    env.reset()
    assert (ale.lives(), ale.getEpisodeFrameNumber()) == (5, 8), "a new game, after the two buttons at its start"


def test_limits_keep_what_an_environment_is() -> None:
    for limit in (None, 10):
        env: Any = EnvSource("CartPole", factory=CartPoleEnv, max_episode_steps=limit).make()
        env.reset(seed=3)
        assert is_gymnasium(env)
        assert env.get_wrapper_attr("gravity") == 9.8
        assert env.gravity == 9.8
        assert env.np_random is env.unwrapped.np_random
        assert env.np_random_seed == 3
        pair = EnvSource("Pair", factory=EndlessPair, max_episode_steps=limit).make()
        assert not is_gymnasium(pair)
        assert pair.num_agents == 2
        own = EnvSource("Own", {"num_agents": 3}, OwnNumAgents, max_episode_steps=limit)
        assert probe(own).num_agents == 1


@pytest.mark.parametrize(("limit", "used"), [(3, 3), (30, 20)])
def test_a_factory_that_takes_the_limit_sets_it_itself(limit: int, used: int) -> None:
    env = EnvSource("Taking", factory=takes_limit, max_episode_steps=limit).make()
    assert isinstance(env, TimeLimit)
    assert env._max_episode_steps == used
    assert not isinstance(env.env, TimeLimit)


def test_a_limit_wraps_the_environment_of_a_film_once() -> None:
    source = find_env(ENDLESS, {}, 7)
    factory = watching._Factory(source, "rgb_array", lambda *_: None)
    env = replace(source, factory=factory, kwargs={}, modules=()).make()
    kinds = []
    while isinstance(env, gymnasium.Wrapper):
        kinds.append(type(env))
        env = env.env
    assert kinds.count(StepLimit) == 1


def test_training_bootstraps_what_was_cut(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, ENDLESS, max_episode_steps=5, num_envs_per_worker=2, batch_size=16)
    roles = lab.build_all()
    step_until(roles, lambda: lab.slots.filled.sum() > 0)
    assert lab.slots.truncated[0, :, 0].tolist() == [False, False, False, False, True, False, False, False]
    assert not lab.slots.terminated.any()
    assert np.isfinite(lab.slots.final_values[0, 4]).all()
    assert lab.slots.observations["obs"][0, 5, 0] == 0, "a new episode"
    for role in roles:
        role.close()


@pytest.mark.parametrize(("limit", "used"), [(100, 100), (27_000, 500)])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "envpool/CartPole-v1"])
def test_many_copies_that_step_as_one_keep_to_the_lower_limit(env_id: str, limit: int, used: int) -> None:
    if env_id.startswith("envpool"):
        pytest.importorskip("envpool")
    source = find_env(env_id, {}, limit)
    info = probe(source)
    assert choose_vectorization("auto", source, info, PAYS_FROM)[0] == "native"
    batch = VectorBatch(source, info, range(2), room(info, 2), np.zeros(2, bool), "clip")
    found = getattr(batch.env, "max_episode_steps", None) or batch.env._kwargs["max_episode_steps"]
    batch.close()
    assert found == used


def test_a_vectorized_form_that_takes_no_limit_is_not_used() -> None:
    register_env("limited/many", Endless, make_vec=Many)
    source = find_env("limited/many", {}, 5)
    info = probe(source)
    assert choose_vectorization("auto", source, info, 64)[0] == "none"
    with pytest.raises(ConfigError, match="what makes its vectorized form takes no max_episode_steps"):
        choose_vectorization("native", source, info, 64)


def test_the_console_says_once_that_no_episode_has_ended() -> None:
    began_s, enough = 5000.0, 8 * ENDLESS_STEPS
    first, late = snapshot(began_s, 0), began_s + ENDLESS_S + 1
    endless = EndlessEpisodes(num_envs=4, num_agents=2)
    assert endless.look(seen_at(snapshot(late, enough - 8), first=first)) is None, "too few steps"
    assert endless.look(seen_at(snapshot(began_s + ENDLESS_S - 1, enough), first=first)) is None, "too early"
    said = endless.look(seen_at(snapshot(late, enough), first=first))
    assert said is not None
    assert said.startswith("No episode has ended yet, after about 2,000 steps of each environment")
    assert "--max_episode_steps" in said
    assert endless.look(seen_at(snapshot(2 * late, 2 * enough), first=first)) is None, "said already"
    ended = EpisodeWindows(1, 10)
    ended.add([Episode(0, 1.0, 1, 1.0)])
    assert EndlessEpisodes(4, 2).look(seen_at(snapshot(late, enough), ended, first=first)) is None


def save(directory: Path, max_episode_steps: int | None = None) -> None:
    """What a learner would write of an environment without an end."""
    info = probe(find_env(ENDLESS))
    config = Config(RunConfig(env=ENDLESS, max_episode_steps=max_episode_steps), model=SMALL)
    tensors = {f"policy.{name}": tensor for name, tensor in ActorCritic(info, SMALL).variables().items()}
    data = {"config": config.to_json(), "env": info.to_json(), "reward": None}
    (directory / "run1").mkdir()
    checkpoint.save(directory / "run1" / "checkpoint_p0", 0, 0, tensors | {"version": torch.tensor(0)}, data)


@pytest.mark.parametrize(("of_training", "flags", "limit"), [(None, [], 40), (30, [], 30), (30, ["20"], 20)])
def test_evaluations_have_a_limit_by_default_and_say_what_they_have_cut(
    of_training: int | None,
    flags: list[str],
    limit: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert playing.LONGEST_EPISODE == 27_000
    monkeypatch.setattr(playing, "LONGEST_EPISODE", 40)
    save(tmp_path, of_training)
    flags = [f"--max_episode_steps={flag}" for flag in flags]
    arguments = [f"--train_dir={tmp_path}", "--experiment=run1", f"--env={ENDLESS}", *flags]
    assert evaluate.main([*arguments, "--num_episodes=3"]) == 0
    shown = capsys.readouterr()
    assert f"3 episodes were cut after {limit} steps (--max_episode_steps)" in shown.out
    assert f"length {limit}.0" in shown.out
    assert "UNTRAINED: no optimizer step was taken before it was saved" in shown.out


def test_a_film_has_an_end_and_says_that_it_was_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setattr(enjoy, "LONGEST_EPISODE", 7)
    save(tmp_path)
    film = tmp_path / "a.gif"
    assert enjoy.main([f"--train_dir={tmp_path}", "--experiment=run1", f"--env={ENDLESS}", f"--output={film}"]) == 0
    shown = capsys.readouterr().out
    assert "Policy 0: reward 7.000, length 7" in shown
    assert "Policy 0: 1 episode was cut after 7 steps (--max_episode_steps)" in shown
    with image.open(film) as pictures:
        assert pictures.n_frames == 8, "the first observation and every step"


def test_the_evaluator_beside_a_training_has_a_limit_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "LONGEST_EPISODE", 20)
    lab = make_lab(tmp_path, ENDLESS, eval_every_steps=64, eval_share=1.0, eval_episodes=2)
    *roles, evaluator = lab.build_all()
    step_until(roles, lambda: evaluator.is_playing or evaluator.step())
    while evaluator.is_playing:
        evaluator.step()
    (done,) = [message for message in lab.told if isinstance(message, EvaluationDone)]
    assert (done.episodes, done.length, done.num_cut) == (2, 20.0, 2)
    for role in (*roles, evaluator):
        role.close()


class Lives(gymnasium.Env[Any, Any]):
    """A game of several lives that notes the seeds of its resets."""

    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.seeds: list[int | None] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.seeds.append(seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(2, np.float32), 0.0, False, False, {EPISODE_CONTINUES: True}


def test_seeds_after_a_cut_follow_from_the_seed_of_the_environment() -> None:
    found = []
    for seed in (3, 3, 4):
        game = Lives()
        env = limited(game, 2)
        env.reset(seed=seed)
        for _ in range(3):
            env.step(0)
            assert env.step(0)[3], "cut"
            env.reset()
        found.append(game.seeds[1:])
    assert found[0] == found[1] != found[2]
    assert len(set(found[0])) == 3
    assert None not in found[0]
