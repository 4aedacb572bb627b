"""Vector environments that do not say, or say in another way, which step begins the next episode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AutoresetMode, VectorEnv

from sf.config import Config, ModelConfig
from sf.envs import EnvSource, find_env, probe, register_env
from sf.envs.autoreset import Watch, declared_mode
from sf.envs.single_stepping import SingleAgentBatch
from sf.envs.step_time import Stopwatch
from sf.envs.vector_stepping import VectorBatch
from sf.envs.vectorization import UnknownMode
from sf.errors import EnvError
from sf.evaluator.cast import Cast
from sf.evaluator.playing import Play
from sf.policy import ActorCritic, CollectPolicy
from sf.run.first_look import first_look
from sf.run.preparation import prepare
from tests.helpers.lab import make_config

LENGTH = 3
BOX, CHOICE = spaces.Box(0, 100, (1,), np.float32), spaces.Discrete(2)


ODD_INFOS: tuple[dict[Any, Any], ...] = ({"mean": np.array(3.0)}, {0: 1}, {"x": [1, 2], "_x": np.array(True)}, {"_": 1})


class One(gymnasium.Env[Any, Any]):
    """Pays in its first step, and shows how many steps were taken."""

    observation_space: Any = BOX
    action_space: Any = CHOICE

    def __init__(self, **_: Any) -> None: ...

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        reward, self.t = float(self.t == 0), self.t + 1
        return np.full(1, self.t, np.float32), reward, False, self.t == LENGTH, {}


class Many(VectorEnv[Any, Any, Any]):
    """The same, reset in the step of the end.

    Args:
        num_envs: copies.
        metadata: says what it does, or something else.
        key: of infos for final observations; None leaves them out.
        length: of an episode.
        pays: whether the first step does.
        stays: shows the same number in every step.
        terminates: or its episodes are truncated.
        odd: adds one of the odd infos.
    """

    single_observation_space: Any = BOX
    single_action_space: Any = CHOICE

    def __init__(
        self,
        num_envs: int,
        metadata: Any = None,
        key: str | None = None,
        length: float = LENGTH,
        pays: bool = True,
        stays: bool = False,
        terminates: bool = True,
        odd: int | None = None,
    ) -> None:
        self.num_envs, self.metadata, self.key, self.length = num_envs, metadata or {}, key, length
        self.pays, self.stays, self.terminates = pays, stays, terminates
        self.odd: dict[Any, Any] = {} if odd is None else ODD_INFOS[odd]

    def seen(self) -> Any:
        return (0 * self.t if self.stays else self.t)[:, None].astype(np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.t = np.zeros(self.num_envs, int)
        return self.seen(), {}

    def step(self, actions: Any) -> Any:
        rewards = (self.t == 0).astype(float) * self.pays
        self.t = self.t + 1
        over, last = self.t >= self.length, self.seen()
        self.t[over] = 0
        infos: dict[str, Any] = {}
        if self.key and over.any():
            finals = np.full(self.num_envs, None, object)
            for row in np.flatnonzero(over):
                finals[row] = last[row]
            infos = {self.key: finals, f"_{self.key}": over}
        ends = (over, ~over & over) if self.terminates else (~over & over, over)
        return self.seen(), rewards, *ends, infos | self.odd


def cart(num_envs: int) -> Any:
    """Resets in the next step, and does not say so."""
    made = CartPoleVectorEnv(num_envs)
    made.metadata = {}
    return made


def source(**arguments: Any) -> EnvSource:
    return EnvSource("Odd", arguments, One, vector_factory=Many)


def open_sizes(**flags: Any) -> Config:
    return make_config("Odd", **{"async_rl": True, "num_workers": None, "num_envs_per_worker": None} | flags)


@pytest.mark.parametrize(
    "named",
    [AutoresetMode.SAME_STEP, "SameStep", "SAME_STEP", "same_step", "AutoresetMode.SAME_STEP", "same-step"],
)
def test_a_text_that_is_a_mode_counts_as_that_mode(named: Any) -> None:
    assert declared_mode({"autoreset_mode": named}, "Odd") == AutoresetMode.SAME_STEP
    assert declared_mode({"autoreset_mode": AutoresetMode.DISABLED.value}, "Odd") == AutoresetMode.DISABLED


def test_another_text_is_refused_and_names_the_modes() -> None:
    with pytest.raises(
        EnvError, match=r"Odd has metadata\['autoreset_mode'\]='sometimes', expected one of .*SAME_STEP"
    ):
        declared_mode({"autoreset_mode": "sometimes"}, "Odd")


SIGNS: dict[str, tuple[dict[str, Any], str]] = {
    "key": ({"key": "final_obs", "pays": False, "stays": True}, "infos has 'final_obs' at an end"),
    "old key": ({"key": "final_observation"}, "infos has 'final_observation' at an end"),
    "observations": ({"pays": False}, "the observation of a step that ends an episode is the first one of the next"),
    "reward": ({"stays": True}, "the step after an end pays a reward"),
    "one step": ({"length": 1, "pays": False}, "the step after an end ends another episode"),
}


@pytest.mark.parametrize("flags", [{}, {"num_envs_per_worker": 32}], ids=["timed", "given"])
@pytest.mark.parametrize("sign", SIGNS)
def test_reset_in_the_same_step_shows(sign: str, flags: dict[str, Any]) -> None:
    arguments, said = SIGNS[sign]
    look = first_look(open_sizes(**flags), source(**arguments))
    assert look.autoreset_mode == AutoresetMode.SAME_STEP.value
    (note,) = look.notes
    assert f"It is taken for AutoresetMode.SAME_STEP, because {said}." in note
    assert not look.refutes_vectorization


def test_reset_in_the_next_step_shows() -> None:
    look = first_look(open_sizes(), EnvSource("CartPole-v1", vector_factory=cart))
    assert look.autoreset_mode == AutoresetMode.NEXT_STEP.value
    (note,) = look.notes
    assert "It is taken for AutoresetMode.NEXT_STEP, because the step after an end" in note


def test_nothing_shows_where_no_episode_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sf.run.look_at_many.LONGEST_TRIAL_S", 0.1)
    endless = source(length=np.inf)
    look = first_look(open_sizes(), endless)
    assert look.refutes_vectorization
    assert look.step_time.copies == 1, "single ones step, so their time counts"
    (note,) = look.notes
    assert "does not say in metadata['autoreset_mode'] which step begins the next episode" in note
    with pytest.raises(UnknownMode, match=r"or use --vectorization=none\."):
        first_look(open_sizes(vectorization="native"), endless)


def test_a_truncation_without_its_last_observation_leaves_the_form() -> None:
    look = first_look(open_sizes(), source(terminates=False))
    assert look.refutes_vectorization
    (note,) = look.notes
    assert "it truncates episodes without 'final_obs' in infos." in note
    assert note.endswith("Single ones step here.")
    with pytest.raises(UnknownMode, match=r"Put the final observation there, or use --vectorization=none\."):
        first_look(open_sizes(vectorization="native"), source(terminates=False))


def test_a_wrong_declaration_is_refused() -> None:
    declared = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    with pytest.raises(EnvError, match=r"has the autoreset mode NEXT_STEP in its metadata, but the observation of a"):
        first_look(open_sizes(), source(metadata=declared))
    with pytest.raises(EnvError, match=r"but infos has 'final_obs' at the end of an episode"):
        first_look(open_sizes(), source(metadata=declared, key="final_obs"))


def test_a_reward_after_an_end_is_told_where_the_next_step_should_reset() -> None:
    declared = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    (note,) = first_look(open_sizes(num_envs_per_worker=32), source(metadata=declared, stays=True)).notes
    assert "NEXT_STEP in its metadata, but the step after an end pays a reward. That counts for nothing." in note


class MaskedMany(Many):
    """Only the first step may do anything but 0, and the single observation space has a mask."""

    single_observation_space = spaces.Dict({"seen": BOX, "action_mask": spaces.MultiBinary(2)})

    def seen(self) -> Any:
        return {
            "seen": super().seen(),
            "action_mask": np.stack([np.ones(self.num_envs), self.t == 0], 1).astype(np.int8),
        }

    def step(self, actions: Any) -> Any:
        assert not actions[self.t > 0].any(), "an illegal action"
        return super().step(actions)


class Masked(One):
    observation_space = MaskedMany.single_observation_space

    def reset(self, **_: Any) -> Any:
        self.t = 0
        return self.seen(), {}

    def seen(self) -> Any:
        return {"seen": np.full(1, self.t, np.float32), "action_mask": np.array([1, self.t == 0], np.int8)}

    def step(self, action: Any) -> Any:
        _, *rest = super().step(action)
        return self.seen(), *rest


def test_actions_stay_legal_while_the_mode_is_not_known() -> None:
    look = first_look(open_sizes(), EnvSource("Masked", {}, Masked, vector_factory=MaskedMany))
    assert look.autoreset_mode == AutoresetMode.SAME_STEP.value


@pytest.mark.parametrize("odd", [None, *range(len(ODD_INFOS))])
@pytest.mark.parametrize("key", ["final_obs", "final_observation"])
@pytest.mark.parametrize("terminates", [True, False], ids=["terminated", "truncated"])
def test_no_step_is_lost(terminates: bool, key: str, odd: int | None) -> None:
    """Each one of every episode has its observation and its reward, and each end its final observation."""
    wanted, info = source(key=key, terminates=terminates, odd=odd), probe(source())
    look = first_look(open_sizes(num_envs_per_worker=32), wanted)
    final, has_final = np.zeros((2, 1), np.float32), np.zeros(2, bool)
    wanted = EnvSource("Odd", wanted.kwargs, One, vector_factory=Many, autoreset_mode=look.autoreset_mode)
    batch = VectorBatch(wanted, info, range(2), {"obs": final}, has_final, "clip")
    observations, rewards, steps = {"obs": np.zeros((2, 1), np.float32)}, np.zeros(2, np.float32), list[Any]()
    batch.reset(observations)
    for _ in range(2 * LENGTH):
        before = float(observations["obs"][0, 0])
        ended = batch.step(np.zeros(2, np.int64), observations, rewards)
        steps.append((before, float(rewards[0]), len(ended)))
        assert has_final.all() == bool(ended and not terminates)
        assert not ended or terminates or final[0, 0] == LENGTH
        has_final[:] = False
    assert steps == [(0, 1, 0), (1, 0, 0), (2, 0, 2)] * 2


@pytest.mark.more
def test_a_run_takes_what_its_look_has_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    register_env("odd/silent", One, make_vec=Many)
    flags = {"num_workers": 1, "num_envs_per_worker": 16, "policy_workers_per_policy": 0, "train_dir": str(tmp_path)}
    prepared = prepare(make_config("odd/silent", async_rl=True, **flags))
    assert prepared.config.rollout.vectorization == "native"
    assert prepared.source.autoreset_mode == AutoresetMode.SAME_STEP.value
    assert "names no autoreset mode" in capsys.readouterr().out


def test_an_evaluation_without_a_look_plays_single_ones(capsys: pytest.CaptureFixture[str]) -> None:
    register_env("odd/silent", One, make_vec=Many)
    wanted = find_env("odd/silent")
    info = probe(wanted)
    policy = CollectPolicy(ActorCritic(info, ModelConfig()), validate_args=False)
    playing = Play(Cast([policy]), wanted, info, num_episodes=20, seed=0)
    assert isinstance(playing._envs, SingleAgentBatch)
    assert "Single environments play, because the metadata of the vectorized odd/silent" in capsys.readouterr().out
    playing.start()
    while not playing.tally.is_complete:
        playing.step()
    (episodes,) = playing.tally.episodes
    assert set(episodes.rewards) == {1.0}
    assert set(episodes.lengths) == {LENGTH}


@pytest.mark.parametrize("copies", [2, 4, 8, 16, 64])
def test_first_observations_that_differ_by_chance_contradict_no_declaration(copies: int) -> None:
    """Episodes begin anywhere and end at the origin, one step earlier than their successors begin."""
    random = np.random.default_rng(copies)
    for _ in range(200):
        watch = Watch({"obs": random.uniform(-1, 1, (copies, 2))})
        over = np.zeros(copies, bool)
        for _ in range(12):
            seen = np.where(over[:, None], random.uniform(-1, 1, (copies, 2)), random.uniform(-0.1, 0.1, (copies, 2)))
            over = ~over & (random.random(copies) < 0.5)
            watch.look({"obs": seen}, np.zeros(copies), over, np.zeros(copies, bool), {})
        found = watch.found()
        assert found is None or not found.is_certain


def test_resets_within_the_steps_of_many_count() -> None:
    """64 copies whose every fourth step makes a level, and whose first step compiles."""
    stopwatch = Stopwatch(64)
    for step in range(40):
        wall_s = 30.0 if step == 0 else 0.2 if step % 4 == 3 else 0.005
        stopwatch._steps.append((wall_s, wall_s))
    found = stopwatch._typical_s(0, 1.0)
    assert found == pytest.approx(0.05, rel=0.2)
