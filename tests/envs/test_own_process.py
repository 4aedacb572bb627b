"""Environments and their process: the place they ask for, ids it does not know, and one per process."""

from __future__ import annotations

import pickle
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from sf_envs.counter import Counter

from sf.envs import EnvSource, find_env, probe, register_env
from sf.errors import ConfigError, EnvCrashed, EnvError
from sf.evaluator.cast import Cast
from sf.evaluator.playing import Play, play
from sf.evaluator.worker import Evaluator
from sf.run import sizes
from sf.run.first_look import first_look
from sf.run.preparation import prepare
from sf.run.sizes import resolve
from tests.cli.test_evaluate import acting
from tests.environments import first_contact as envs
from tests.helpers.lab import make_config, make_lab, step_until


class Broken(Counter):
    """Cannot be reset."""

    num_closed = 0

    def reset(self, **arguments: Any) -> Any:
        raise RuntimeError("no level")

    def close(self) -> None:
        self.num_closed += 1


@pytest.mark.parametrize(
    ("env_id", "vectorization", "knows_worker"),
    [
        ("tests.environments.first_contact:Placed-v0", "none", True),
        ("tests.environments.first_contact:Placed-v0", "native", True),
        ("PlacedClass", "none", True),
        ("PlacedClass", "native", True),
        ("PlacedFunction", "none", False),
        ("multiagent/tests.environments.first_contact:PlacedPair-v0", "none", True),
    ],
)
def test_environments_that_ask_know_their_place(
    env_id: str, vectorization: str, knows_worker: bool, tmp_path: Path
) -> None:
    """Every pair is there once: of the groups of two workers, and of the evaluator, which plays beside them."""
    register_env("PlacedClass", envs.Placed, make_vec=envs.many_placed)
    register_env("PlacedFunction", envs.placed)
    lab = make_lab(
        tmp_path,
        env_id,
        num_workers=2,
        num_envs_per_worker=4,
        rollout=4,
        vectorization=vectorization,
        eval_every_steps=10,
        eval_episodes=3,
    )
    roles = lab.build_all()
    step_until(roles, lambda: roles[0].record["iterations"] >= 2)
    agents = lab.shared.topology.agents_per_env
    for group, slot in ((group, lab.shared.topology.slots_of_group(group)[0]) for group in range(4)):
        seen = lab.slots.observations["obs"][slot, 0, ::agents, :2].tolist()
        worker = group // 2 if knows_worker else -1
        assert seen == [[worker, 2 * (group % 2) + index] for index in range(2)]
    evaluator = next(role for role in roles if isinstance(role, Evaluator))
    evaluator.play.start()
    played = evaluator.play._observations["obs"][::agents, :2].tolist()
    assert played == [[2 if knows_worker else -1, index] for index in range(3)]
    for role in roles:
        role.close()


class Locked(envs.Placed):
    """Cannot be sent anywhere, neither by name nor with its code."""

    lock = threading.Lock()


def test_id_that_only_the_program_knows_is_registered_in_workers() -> None:
    """Found where it is registered, and made by a process that has not run the main guard."""
    gymnasium.register("BelowMain-v0", entry_point="tests.environments.first_contact:Placed")
    source = pickle.loads(pickle.dumps(find_env("BelowMain-v0")))
    del gymnasium.registry["BelowMain-v0"]
    env = source.make()
    assert env.reset()[0] is not None
    env.close()
    del gymnasium.registry["BelowMain-v0"]


@pytest.mark.parametrize("many", [False, True])
def test_id_that_workers_cannot_know_is_told_with_the_way_out(many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Locked, "__module__", "__main__")
    gymnasium.register("Locked-v0", entry_point=Locked)  # type: ignore[arg-type]
    source = find_env("Locked-v0")
    del gymnasium.registry["Locked-v0"]
    with pytest.raises(EnvError) as caught:
        source.make_vector(2, seed=0) if many else source.make()
    told = str(caught.value)
    assert told.startswith("Gymnasium does not know Locked-v0 in the processes of the run, although it does in the")
    assert 'below if __name__ == "__main__"' in told
    assert "--env=my_module:Locked-v0. Or call sf.register_env('Locked-v0', MyEnv)" in told


def test_argument_of_the_user_wins_over_the_place() -> None:
    env = EnvSource("PlacedClass", {"sf_worker": 7}, envs.Placed, worker=3).make(index=2)
    assert env.place == (7, 2)


REFUSED = "RuntimeError: only one instance per process"


@pytest.mark.parametrize("by_reset", [False, True], ids=["constructor", "reset"])
def test_second_environment_in_a_process_is_tried(by_reset: bool) -> None:
    config = make_config("Once", num_workers=None, num_envs_per_worker=None, async_rl=True)
    look = first_look(config, EnvSource("Once", {"by_reset": by_reset}, envs.Once))
    assert look.refuses_second == REFUSED
    assert not envs.Once.alive, "what was made is closed"
    assert not first_look(config, EnvSource("Counter", {}, Counter)).refuses_second
    one_each = replace(config, rollout=replace(config.rollout, num_envs_per_worker=1))
    assert not first_look(one_each, EnvSource("Once", {}, envs.Once)).refuses_second, "which makes no second one"


@pytest.mark.parametrize(
    "env_id",
    ["SlowlyMade", "tests.environments.first_contact:SlowlyMade-v0"],
    ids=["which cannot step as one", "whose module may register more"],
)
def test_first_look_times_the_second_environment_that_it_makes(env_id: str) -> None:
    register_env("SlowlyMade", envs.SlowlyMade)
    envs.SlowlyMade.places.clear()
    config = make_config(env_id, num_workers=None, num_envs_per_worker=None, async_rl=True)
    look = first_look(config, find_env(env_id))
    assert envs.SlowlyMade.places == [(0, 0), (0, 1)]
    assert envs.SlowlyMade.num_open == 0
    assert 0.02 <= look.step_time.start_s < 0.15 <= look.made_in_s, "without what only the first one has imported"


@pytest.mark.parametrize("at", ["reset", "close"])
def test_second_environment_is_closed_and_only_refuses_by_what_comes_before(
    at: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `close` raises is printed, as in a run."""
    config = make_config("SlowlyMade", num_workers=None, num_envs_per_worker=None, async_rl=True)
    look = first_look(config, EnvSource("SlowlyMade", {"second_raises": at}, envs.SlowlyMade))
    assert look.refuses_second == ("RuntimeError: no second reset" if at == "reset" else "")
    assert envs.SlowlyMade.num_open == 0
    printed = "SlowlyMade, environment 1: close() raised RuntimeError: no second close\n"
    assert capsys.readouterr().err == (printed if at == "close" else "")


def test_run_has_one_environment_per_process_where_there_cannot_be_two(capsys: pytest.CaptureFixture[str]) -> None:
    register_env("Once", envs.Once)
    config = make_config("Once", num_workers=None, num_envs_per_worker=None, async_rl=True)
    rollout = prepare(config).config.rollout
    assert (rollout.num_envs_per_worker, rollout.worker_num_splits) == (1, 1)
    said = capsys.readouterr().out
    assert f"Each process has one Once, because a second one beside it raised {REFUSED}. For more of them raise" in said


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"num_envs_per_worker": 4}, "what asks for more, num_envs_per_worker=4: take --num_envs_per_worker=1"),
        ({"worker_num_splits": 2}, "what asks for more, worker_num_splits=2:"),
        ({"serial_mode": True, "num_workers": 2}, "serial_mode=True with num_workers=2:"),
        ({"serial_mode": True, "eval_every_steps": 9}, "serial_mode=True with eval_every_steps:"),
        ({"eval_every_steps": 9, "num_policies": 2}, "evaluation of num_policies=2:"),
        ({}, ""),
        ({"serial_mode": True}, ""),
    ],
)
def test_flags_that_ask_for_a_second_environment_are_refused(flags: dict[str, Any], told: str) -> None:
    config = make_config(**({"num_workers": None, "num_envs_per_worker": None} | flags))
    info = probe(EnvSource("Once", {}, envs.Once))
    if told:
        with pytest.raises(ConfigError) as caught:
            sizes.one_each(config, info, REFUSED)
        assert f"Once exists once per process: a second one raised {REFUSED}. Leave out" in str(caught.value)
        assert told in str(caught.value)
    else:
        resolved = resolve(sizes.one_each(config, info, REFUSED), info, cores=4)
        assert (resolved.rollout.num_envs_per_worker, resolved.groups_per_worker) == (1, 1)
        assert resolved.rollout.num_workers == (1 if flags else 4)


@pytest.mark.parametrize("by_reset", [False, True], ids=["constructor", "reset"])
def test_evaluation_plays_one_environment_where_there_cannot_be_two(
    by_reset: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    source = EnvSource("Once", {"by_reset": by_reset}, envs.Once)
    info = probe(source)
    (episodes,) = play(Cast([acting(info)]), source, info, num_episodes=5, seed=0)
    assert episodes.lengths == [4] * 5
    assert not envs.Once.alive, "also the one that was made before the second one raised"
    told = f"Once plays in one environment at a time, because 5 in one process could not begin: {REFUSED}\n"
    assert capsys.readouterr().out.endswith(told)


@pytest.mark.parametrize(("num_episodes", "num_made"), [(1, 1), (5, 6)])
def test_crash_in_the_first_reset_of_an_evaluation_is_raised_where_one_environment_crashes_as_well(
    num_episodes: int, num_made: int
) -> None:
    made: list[Broken] = []

    def make() -> Broken:
        made.append(Broken())
        return made[-1]

    source, info = EnvSource("Broken", {}, make), probe(EnvSource("Counter", {}, Counter))
    with pytest.raises(EnvCrashed, match=r"environment 0: reset.. raised RuntimeError: no level"):
        play(Cast([acting(info)]), source, replace(info, env_id="Broken"), num_episodes, seed=0)
    assert [env.num_closed for env in made] == [1] * num_made


def test_evaluation_that_has_begun_once_does_not_go_on_with_fewer_environments() -> None:
    source = EnvSource("Counter", {"episode_steps": 4}, Counter)
    info = probe(source)
    playing = Play(Cast([acting(info)]), source, info, num_episodes=3, seed=0)
    playing.start()
    playing._envs.envs[1].reset = Broken().reset  # type: ignore[attr-defined]
    with pytest.raises(EnvCrashed, match=r"environment 1: reset"):
        playing.start()
    assert playing.num_envs == 3
    playing.close()


def test_evaluator_plays_many_environments_beside_workers_with_one_each(tmp_path: Path) -> None:
    lab = make_lab(
        tmp_path, num_workers=2, num_envs_per_worker=1, worker_num_splits=1, eval_every_steps=10, eval_episodes=9
    )
    roles = lab.build_all()
    (evaluator,) = (role for role in roles if isinstance(role, Evaluator))
    assert evaluator.play.num_envs == 9
    for role in roles:
        role.close()
