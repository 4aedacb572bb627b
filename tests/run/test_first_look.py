"""How long a step takes is measured as the run will step: one environment, or many at once."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import NormalizeObservation, NormalizeReward, vector

from sf.config import Config
from sf.envs import EnvSource, find_env, probe
from sf.envs.vectorization import PAYS_FROM
from sf.errors import EnvError
from sf.run import preparation
from sf.run.first_look import first_look, note_on_single
from sf.run.look_at_many import LEAST_STEPS
from sf.run.preparation import prepare
from sf.run.sizes import decide
from tests.helpers.lab import make_config


class Legal(gymnasium.Env[Any, Any]):
    """Only the even ones of four actions are legal."""

    observation_space = spaces.Dict({"action_mask": spaces.MultiBinary(4), "x": spaces.Box(0.0, 1.0, (2,))})
    action_space = spaces.Discrete(4)

    def seen(self) -> Any:
        return {"action_mask": np.array([1, 0, 1, 0], np.int8), "x": np.zeros(2, np.float32)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        return self.seen(), 0.0, False, False, {}


class ManyLegal(VectorEnv[Any, Any, Any]):
    """Takes 10 ms for a step, in which it computes for a tenth of the time."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012  # as in the base class
    single_observation_space, single_action_space = Legal.observation_space, Legal.action_space

    def __init__(self, num_envs: int) -> None:
        self.num_envs, self.steps = num_envs, 0

    def seen(self) -> Any:
        return {name: np.stack([array] * self.num_envs) for name, array in Legal().seen().items()}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.seen(), {}

    def step(self, actions: Any) -> Any:
        assert set(actions.tolist()) <= {0, 2}
        self.steps += 1
        until = time.process_time() + 0.001
        while time.process_time() < until:
            pass
        time.sleep(0.009)
        never = np.zeros(self.num_envs, bool)
        return self.seen(), np.zeros(self.num_envs), never, never, {}


class Breaks(ManyLegal):
    def step(self, actions: Any) -> Any:
        if self.steps == LEAST_STEPS // 2:
            raise RuntimeError("the simulator is gone")
        return super().step(actions)


class Wider(ManyLegal):
    single_observation_space = spaces.Dict({"action_mask": spaces.MultiBinary(4), "x": spaces.Box(0.0, 1.0, (3,))})


def source(vector_factory: Any) -> EnvSource:
    return EnvSource("Legal", factory=Legal, vector_factory=vector_factory)


def open_sizes(env: str = "Legal", **flags: Any) -> Config:
    return make_config(env, **{"async_rl": True, "num_workers": None, "num_envs_per_worker": None} | flags)


@pytest.mark.alone
def test_many_that_step_as_one_are_timed_as_one() -> None:
    look = first_look(open_sizes(vectorization="native"), source(ManyLegal))
    assert look.step_time.copies == 64
    assert 0.010 < 64 * look.step_time.wall_s < 0.1
    assert 64 * look.step_time.cpu_s >= 0.001
    assert look.step_time.waits


def test_one_is_timed_where_the_environment_offers_no_other_form() -> None:
    look = first_look(open_sizes(), EnvSource("Legal", factory=Legal))
    assert look.step_time.copies == 1
    assert look.step_time.wall_s > 0


@pytest.mark.more
@pytest.mark.parametrize("wanted", ["auto", "native"])
def test_flags_that_are_printed_choose_the_same(
    wanted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where 64 as one mostly wait. Then more workers would leave each with too few for stepping as one."""
    monkeypatch.setattr(preparation, "find_env", lambda env, arguments, limit: source(ManyLegal))
    rollout = prepare(open_sizes(vectorization=wanted, train_dir=str(tmp_path))).config.rollout
    printed = capsys.readouterr().out
    assert "64 environments that step as one take" in printed
    assert rollout.vectorization == "native"
    assert rollout.num_envs_per_worker is not None
    assert rollout.num_envs_per_worker // (rollout.worker_num_splits or 1) >= PAYS_FROM
    flags: dict[str, Any] = {name: int(value) for name, value in re.findall(r"--(\w+)=(\d+)", printed)}
    again = open_sizes(train_dir=str(tmp_path), vectorization=wanted, **flags)
    assert prepare(again).config.rollout == rollout


@pytest.mark.parametrize("flags", [{"vectorization": "none"}, {"serial_mode": True}])
def test_the_vector_environment_is_not_made_where_the_run_makes_none(flags: dict[str, Any]) -> None:
    def refuse(num_envs: int) -> Any:
        raise AssertionError(num_envs)

    look = first_look(open_sizes(**flags), source(refuse))
    assert look.step_time.copies == 1
    assert not look.notes, "it would be told of"


@pytest.mark.parametrize("wanted", ["auto", "native"])
def test_a_vector_environment_that_breaks_later_decides_nothing(wanted: str) -> None:
    """As with a single one: workers are replaced when they fail, and that is said."""
    look = first_look(open_sizes(vectorization=wanted), source(Breaks))
    assert look.step_time.copies == 1
    chosen = decide(open_sizes(vectorization=wanted), look, cores=2).rollout.vectorization
    assert chosen == ("none" if wanted == "auto" else "native")
    (note,) = look.notes
    assert "while 64 environments stepped as one" in note
    assert "the simulator is gone" in note
    assert "--max_restarts" in note


def test_a_vector_environment_unlike_the_single_one_is_refused_before_processes_start() -> None:
    with pytest.raises(EnvError, match=r"The vectorized Legal is not like a single one\. .*--vectorization=none"):
        first_look(open_sizes(), source(Wider))


@pytest.mark.more
def test_single_games_step_where_the_form_of_the_package_has_other_pictures() -> None:
    """As the id promises; a line names the one with the usual wrappers."""
    pytest.importorskip("ale_py")
    game = find_env("ALE/Pong-v5")
    look = first_look(open_sizes(), game)
    assert decide(open_sizes(), look, cores=2).rollout.vectorization == "none"
    assert look.info.observations["obs"].shape == (210, 160, 3)
    (note,) = look.notes
    assert note.startswith("The vectorized ALE/Pong-v5 is not like a single one.")
    assert note.endswith("Single ones step here. atari/Pong is the same with the wrappers that are usual for it.")
    with pytest.raises(EnvError, match=r"not like a single one\. .*--vectorization=none"):
        first_look(open_sizes(vectorization="native"), game)


@pytest.mark.parametrize("wanted", ["native", "envpool"])
def test_what_the_environment_does_not_offer_is_refused_in_the_words_of_the_choice(wanted: str, tmp_path: Path) -> None:
    game = "sf/TwoAgentEcho-v0"
    config = make_config(game, async_rl=True, vectorization=wanted, train_dir=str(tmp_path))
    with pytest.raises(Exception, match=f"^vectorization={wanted} is not possible for {game}: it has 2 agents"):
        prepare(config)


@pytest.mark.alone
def test_cartpole_has_one_worker_with_all_environments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Because 64 of them take less time for a step than what is done around it, unless the machine is very slow."""
    config = open_sizes("CartPole-v1", policy_workers_per_policy=None, train_dir=str(tmp_path))
    rollout = prepare(config).config.rollout
    printed = capsys.readouterr().out
    found = re.search(r"64 environments that step as one take (\S+) us for a step\. Chosen: --num_workers=", printed)
    assert found, printed
    assert rollout.vectorization == "native"
    assert (rollout.num_workers == 1) is (float(found[1].replace(",", "")) < 150 or len(os.sched_getaffinity(0)) == 1)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"serial_mode": True}, "a serial run repeats their episodes when it is resumed"),
        (
            {"num_envs_per_worker": 8, "async_rl": True},
            "a group has 8 environments, and stepping as one pays from 16 on",
        ),
        (
            {"num_envs_per_worker": 1, "async_rl": True},
            "a group has 1 environment, and stepping as one pays from 16 on",
        ),
        ({"num_policies": 2, "async_rl": True}, ""),
        ({}, "Gymnasium's own form would leave the minibatches of a synchronous run short"),
        ({"vectorization": "none"}, ""),
        ({"async_rl": True}, ""),
    ],
)
def test_a_reason_is_given_where_single_ones_step(flags: dict[str, Any], reason: str) -> None:
    cart = find_env("CartPole-v1")
    config = make_config(**{"num_envs_per_worker": 64, "worker_num_splits": 1} | flags)
    note = note_on_single(config, cart, probe(cart), config.rollout.num_envs_per_worker or 0)
    assert (f"single ones step here: {reason}." in note) if reason else not note


def normalized() -> Any:
    return NormalizeReward(NormalizeObservation(gymnasium.make("CartPole-v1")))


def normalized_many(num_envs: int) -> Any:
    many = gymnasium.make_vec("CartPole-v1", num_envs, gymnasium.VectorizeMode.VECTOR_ENTRY_POINT)
    return vector.NormalizeObservation(many)


def plain() -> Any:
    return gymnasium.make("CartPole-v1")


@pytest.mark.parametrize(
    ("make", "make_vec", "told", "flags"),
    [
        (
            normalized,
            None,
            "NormalizeObservation and NormalizeReward",
            "--normalize_input=True --normalize_rewards=True",
        ),
        (plain, normalized_many, "NormalizeObservation", "--normalize_input=True"),
        (plain, None, "", ""),
    ],
)
def test_wrappers_with_statistics_of_their_own_are_named(make: Any, make_vec: Any, told: str, flags: str) -> None:
    """Those of Gymnasium, around one environment and around many."""
    sizes = open_sizes(num_workers=1, num_envs_per_worker=32)
    notes = first_look(sizes, EnvSource("Wrapped", {}, make, vector_factory=make_vec)).notes
    found = [note for note in notes if "has the wrapper" in note]
    assert len(found) == bool(told)
    assert not told or (
        f"has the wrapper{'s' * (' and ' in told)} {told}. " in found[0] and f"use {flags}," in found[0]
    )
