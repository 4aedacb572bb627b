"""Films while training: made by the evaluator, complete or not there, and never a reason to end a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sf.config import Config, EvalConfig, RunConfig, check
from sf.envs import find_env, register_env
from sf.errors import ConfigError, EnvError
from sf.evaluator.last import film_last
from sf.evaluator.worker import Evaluator
from sf.processes.signals import noted_signals
from sf.run.films import expect_films
from sf.run.sizes import one_each
from sf.shared.role import RoleSpec
from sf.storage.names import next_film
from sf.tools.report.runs import read_run
from sf.tools.report.sections import video
from sf.tools.tracking.points import Points
from tests.environments.toys import Toy
from tests.helpers.commands import EXPERIMENT, NAME, run
from tests.helpers.configs import env_info
from tests.helpers.lab import make_config, make_lab, step_until

pytest.importorskip("imageio_ffmpeg")
FILMED = "tests.evaluator.test_filming:filmed"


class Filmed(Toy):
    """Episodes of 4 steps; a drawing that fails as often as it is told to."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012  # as Gymnasium has it

    def __init__(self, render_mode: str | None = None, fails: bool = False) -> None:
        super().__init__()
        self.render_mode, self.fails, self.steps = render_mode, fails, 0

    def reset(self, **kwargs: Any) -> Any:
        self.steps = 0
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.steps += 1
        observation, _, _, _, info = super().step(action)
        return observation, 1.0, self.steps == 4, False, info

    def render(self) -> Any:
        if self.fails and self.steps == 2:
            raise RuntimeError("no display")
        return np.full((32, 48, 3), 50 * self.steps, np.uint8)


register_env("filmed", Filmed)


def frames_in(film: Path) -> int:
    import imageio_ffmpeg

    return int(imageio_ffmpeg.count_frames_and_secs(str(film))[0])


def started(path: Path, **flags: Any) -> tuple[list[Any], Evaluator, Path]:
    own = {"eval_every_steps": 10**9, "film_every_steps": 100, "eval_share": 1.0, "eval_episodes": 2}
    lab = make_lab(path, FILMED, **own | flags)
    *roles, evaluator = lab.build_all()
    assert isinstance(evaluator, Evaluator)
    return roles, evaluator, evaluator.owner.path / "films"


def close(roles: list[Any], evaluator: Evaluator) -> None:
    for role in [*roles, evaluator]:
        role.close()


def test_a_film_shows_an_episode_of_the_newest_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    roles, evaluator, films = started(tmp_path)
    assert evaluator.filming is not None
    step_until(roles, lambda: evaluator.step() and evaluator.is_busy)
    assert not evaluator.is_playing
    weights = evaluator.networks[0].flat.clone()
    assert torch.equal(weights, torch.as_tensor(roles[0].network.flat)), "those of this moment"
    while evaluator.is_busy:
        assert not [path for path in films.glob("*.mp4") if not path.name.startswith(".")], "it appears whole"
        for role in roles:
            role.step()
        evaluator.step()
    assert torch.equal(evaluator.networks[0].flat, weights), "of one version"
    (film,) = films.iterdir()
    assert film.name == f"{int(film.stem):012d}.mp4"
    assert int(film.stem) >= 100
    assert frames_in(film) == 5, "the first observation and four steps"
    told = f"Filmed an episode of 4 steps with a return of 4.000: {film}"
    assert told in capsys.readouterr().out
    assert not evaluator.filming.is_due(int(film.stem)), "the next one is due later"
    assert evaluator.filming.is_due(int(film.stem) + 100)
    close(roles, evaluator)


def test_evaluations_and_films_take_turns(tmp_path: Path) -> None:
    roles, evaluator, films = started(tmp_path, eval_every_steps=100)
    step_until(roles, lambda: evaluator.step() is not None and len([*films.glob("[0-9]*.mp4")]) >= 2)
    assert evaluator.record["evaluations"] >= 1
    close(roles, evaluator)


def test_a_film_comes_after_each_evaluation_where_the_next_one_is_always_due(tmp_path: Path) -> None:
    roles, evaluator, films = started(tmp_path, eval_every_steps=1, film_every_steps=1)

    def has_evaluated() -> bool:
        if evaluator.is_busy or evaluator.learners[0].read()["env_steps"] >= evaluator.next_frames:
            evaluator.step()
        return int(evaluator.record["evaluations"]) == 4

    step_until(roles, has_evaluated)
    assert len([*films.glob("[0-9]*.mp4")]) == 3
    close(roles, evaluator)


def test_a_film_that_fails_is_the_last_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    roles, evaluator, films = started(tmp_path, env_kwargs='{"fails": true}')
    filming = evaluator.filming
    assert filming is not None
    step_until(roles, lambda: evaluator.step() is not None and not filming.is_due(10**9))
    assert "Warning: no more films of this run are made: " in capsys.readouterr().out
    assert not evaluator.is_busy
    assert list(films.iterdir()) == []
    close(roles, evaluator)


def test_a_film_that_is_not_complete_at_the_end_is_not_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    roles, evaluator, films = started(tmp_path)
    step_until(roles, lambda: evaluator.step() and evaluator.is_busy)
    close(roles, evaluator)
    assert list(films.iterdir()) == []
    assert re.search(r"The film \d{12}\.mp4 was not completed\.", capsys.readouterr().out)


def test_the_next_film_follows_from_those_that_are_there(tmp_path: Path) -> None:
    assert next_film(tmp_path, 100) == 100
    films = tmp_path / "films"
    films.mkdir()
    for name in ("000000000120.mp4", "000000000399.mp4", ".incoming.mp4", "mine.mp4", "000000000900.gif"):
        (films / name).touch()
    assert next_film(tmp_path, 100) == 400
    (films / "000000000400.mp4").touch()
    assert next_film(tmp_path, 100) == 500


@pytest.mark.more
@pytest.mark.parametrize("mode", ["--serial_mode=False", "--serial_mode=True"])
def test_a_short_run_films_its_last_policy(tmp_path: Path, mode: str) -> None:
    """An evaluator that rests most of the time has no film ready by then."""
    flags = f"--env={FILMED}", NAME, mode, "--num_workers=1", "--num_envs_per_worker=4", "--rollout=16"
    films = "--eval_every_steps=1000000", "--eval_episodes=2", "--film_every_steps=2000", "--eval_share=0.001"
    finished = run(tmp_path, *flags, *films, "--train_for_env_steps=4000")
    assert finished.code == 0, finished.err
    assert "Filming the last policy, for 60 s at most; a signal skips it." in finished.out
    (film,) = (tmp_path / EXPERIMENT / "films").iterdir()
    assert int(film.stem) >= 4000
    assert frames_in(film) == 5, "the first observation and four steps"


def test_a_film_of_the_last_policy_that_fails_leaves_the_run_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    broken = RoleSpec("eval-0", "tests.helpers.broken_encoder:Evaluator", {"config": make_config()}, "eval", 0)
    with noted_signals(second_one_exits=False) as signals:
        film_last(broken, signals)
    told = "The last policy was not filmed: The film of the last policy failed with NameError"
    assert told in capsys.readouterr().out


@pytest.mark.more
@pytest.mark.parametrize("mode", ["--serial_mode", "--async_rl=True"])
def test_a_run_has_films_in_its_directory_and_report(tmp_path: Path, mode: str) -> None:
    flags = "--num_workers=1", "--num_envs_per_worker=4", "--rollout=16", "--train_for_env_steps=20000", mode
    films = "--eval_every_steps=4000", "--eval_episodes=2", "--film_every_steps=2000", "--eval_share=1"
    finished = run(tmp_path, f"--env={FILMED}", NAME, *flags, *films)
    assert finished.code == 0, finished.err
    there = sorted((tmp_path / EXPERIMENT / "films").iterdir())
    assert there
    assert all(2000 <= int(film.stem) <= 20_100 for film in there)
    assert f"films/{there[-1].name}" in video(read_run(tmp_path / EXPERIMENT))
    points = Points(tmp_path / EXPERIMENT, "trackio")
    assert points.new_films() == [(int(film.stem), film) for film in there]
    assert points.new_films() == []


def test_what_cannot_be_filmed_is_refused_before_the_run() -> None:
    config = Config(RunConfig(env="CartPole-v1"), evaluation=EvalConfig(film_every_steps=500))
    with pytest.raises(ConfigError, match=r"film_every_steps=500 needs the process .* Add --eval_every_steps=500\."):
        check(config)
    with pytest.raises(EnvError, match="render"):
        expect_films(find_env("tests.environments.toys:GlobalRandom-v0"))
    evaluated = Config(RunConfig(env="x"), evaluation=EvalConfig(eval_every_steps=500, film_every_steps=500))
    with pytest.raises(ConfigError, match="film_every_steps=500"):
        one_each(evaluated, env_info(), "an error")
