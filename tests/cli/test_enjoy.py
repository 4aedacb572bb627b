"""Watching a policy: films of every step, and what is refused."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from sf.cli import enjoy
from sf.envs import EnvSource, register_env
from sf.envs.picture import make_rendering, picture_of
from sf.errors import EnvCrashed, EnvError
from sf.evaluator import film
from sf.evaluator.action_names import action_names
from sf.evaluator.panel import CHOSEN, LEAST_HEIGHT, WIDTH, EpisodeSoFar, Panel, bars
from sf.policy import CollectInfo, PolicyStep
from sf.processes.disposable import in_disposable_child
from sf.spaces.from_gymnasium import action_spec
from tests.cli.test_evaluate import save
from tests.environments.toys import Toy


class Painted(Toy):
    """Shows its step number as a color."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012  # as Gymnasium has it

    def __init__(self, render_mode: str | None = None, picture: Any = None, wide: bool = False) -> None:
        super().__init__(observation_space=spaces.Box(-1.0, 1.0, (4,)), action_space=spaces.Discrete(2))
        self.render_mode, self.picture, self.steps = render_mode, picture, 0
        self.wide = wide

    def reset(self, **kwargs: Any) -> Any:
        self.steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.zeros(4, np.float32), 1.0, self.steps == 5, False, {}

    def render(self) -> Any:
        if self.picture == "raises":
            raise RuntimeError("no display")
        if self.picture == "still":
            return np.zeros((31, 41, 3), np.uint8)
        if self.wide:
            return np.zeros((1, 70_000, 3), np.uint8)
        return np.full((31, 41, 3), 20 * self.steps, np.uint8) if self.picture is None else self.picture


def modeless() -> Painted:
    """Cannot be told that it is watched."""
    return Painted()


class Plain(gymnasium.Env[Any, Any]):
    """Has no constructor."""

    observation_space, action_space = spaces.Box(-1.0, 1.0, (4,)), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(4, np.float32), 1.0, True, False, {}


gymnasium.register("Plain-v0", entry_point="tests.cli.test_enjoy:Plain")


class PlainWithMetadata(Plain):
    """Gymnasium offers to show its pictures in a window."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012  # as Gymnasium has it


gymnasium.register("PlainWithMetadata-v0", entry_point="tests.cli.test_enjoy:PlainWithMetadata")


def plain(**arguments: Any) -> Plain:
    return Plain(**arguments)


def plain_by_place(render_mode: str | None = None, /) -> Plain:
    return Plain()


def faulty(render_mode: str | None = None) -> Plain:
    return Plain(3)  # type: ignore[call-arg]


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = enjoy.main(arguments)
    captured = capsys.readouterr()
    return code, captured.out + captured.err


@pytest.fixture
def run(tmp_path: Path) -> str:
    register_env("Painted", Painted)
    register_env("Modeless", modeless)
    register_env("Plain", Plain)
    save(tmp_path / "run1" / "checkpoint_p0")
    return f"--train_dir={tmp_path}"


@pytest.mark.more
def test_gif_has_every_step_and_the_last_one(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "films/a.gif"
    flags = ("--experiment=run1", "--env=Painted", "--num_episodes=2", f"--output={path}")
    code, shown = command(capsys, run, *flags)
    assert code == 0, shown
    assert shown.count("Policy 0: reward 5.000, length 5") == 2
    assert f"Wrote {path}" in shown
    with image.open(path) as pictures:
        colors = []
        for index in range(pictures.n_frames):
            pictures.seek(index)
            colors.append(int(np.asarray(pictures.convert("RGB"))[0, 0, 0]))
        assert pictures.info["duration"] == 50
    assert colors == [0, 20, 40, 60, 80, 100, 0, 20, 40, 60, 80, 100]


def test_mp4_of_a_real_environment_with_panel(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    pytest.importorskip("pygame")
    path = tmp_path / "a.mp4"
    code, shown = command(
        capsys, run, "--experiment=run1", f"--output={path}", "--overlay=True", "--deterministic=True"
    )
    assert code == 0, shown
    length = int(shown.split("length ")[1].split()[0])
    frames, seconds = ffmpeg.count_frames_and_secs(str(path))
    assert frames == length + 1  # the first observation and every step
    assert seconds == pytest.approx(frames / 50, abs=0.05)


def test_panel_shows_value_and_probabilities() -> None:
    pytest.importorskip("PIL")
    panel = Panel(action_spec(spaces.Discrete(2, start=3)))
    info = CollectInfo((), torch.tensor([7.5]), torch.tensor([[0.0, np.log(3.0)]]))
    step = PolicyStep(torch.tensor([1]), (), info)
    assert [(label, round(share, 5), chosen) for label, share, chosen in bars(panel.action, step)] == [
        ("3: 0.25", 0.25, False),
        ("4: 0.75", 0.75, True),
    ]
    first = panel.draw(step, 200)
    assert first.shape == (200, WIDTH, 3)
    assert first.any()
    assert not panel.draw(PolicyStep(()), 200).any()
    for value in range(5):
        step = step._replace(info=info._replace(value_prediction=torch.tensor([float(value)])))
        last = panel.draw(step, 200)
    assert (last != first).any()


def panel_step(*logits: float, action: int = 0) -> PolicyStep:
    info = CollectInfo((), torch.tensor([7.5]), torch.tensor([logits]))
    return PolicyStep(torch.tensor([action]), (), info)


def test_panel_names_actions_and_keeps_the_likeliest_and_the_chosen_one_where_there_is_no_room() -> None:
    pytest.importorskip("PIL")
    action = action_spec(spaces.Discrete(3))
    assert [label for label, *_ in bars(action, panel_step(0.0, 0.0, 0.0), ["NOOP", "LEFT", "FIRE"])] == [
        "NOOP: 0.33", "LEFT: 0.33", "FIRE: 0.33",
    ]  # fmt: skip
    pictures = {}
    for name in ("episode", "names", "chosen"):
        panel = Panel(action_spec(spaces.Discrete(40)))
        panel.names = [f"A{choice}" for choice in range(40)] if name == "names" else ()
        episode = EpisodeSoFar(12, 3.5) if name == "episode" else EpisodeSoFar()
        step = panel_step(*(choice / 40 for choice in range(40)), action=3 if name == "chosen" else 39)
        pictures[name] = panel.draw(step, 200, episode)
    assert (pictures["episode"] != pictures["names"])[:20].any(), "the first line has the step and the return"
    assert (pictures["names"] != pictures["chosen"]).any()
    assert (pictures["chosen"] == CHOSEN).all(-1).any(), "although it is the fourth least likely of forty"


class Buttons(enum.IntEnum):
    left, right = 0, 1


@pytest.mark.parametrize(
    ("own", "names"),
    [
        ({"get_action_meanings": lambda: ["NOOP", "FIRE"]}, ["NOOP", "FIRE"]),
        ({"get_action_meanings": lambda: ["NOOP"]}, ()),
        ({"get_action_meanings": lambda: 1 / 0}, ()),
        ({"actions": Buttons}, ["left", "right"]),
        ({"actions": 3}, ()),
        ({}, ()),
    ],
)
def test_names_of_actions_are_those_of_the_environment(own: dict[str, Any], names: Any) -> None:
    env = Plain()
    for name, value in own.items():
        setattr(env, name, value)
    assert action_names(env, action_spec(spaces.Discrete(2))) == names
    assert action_names(env, action_spec(spaces.MultiDiscrete([2, 2]))) == ()


@pytest.mark.more
def test_overlay_counts_steps_and_rewards_of_the_episode_and_enlarges_small_pictures(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    image = pytest.importorskip("PIL.Image")
    seen: list[EpisodeSoFar] = []
    draw = Panel.draw

    def noted(panel: Panel, step: PolicyStep, height: int, episode: EpisodeSoFar) -> Any:
        seen.append(episode)
        return draw(panel, step, height, episode)

    monkeypatch.setattr(Panel, "draw", noted)
    path = tmp_path / "a.gif"
    flags = ("--experiment=run1", "--env=Painted", "--num_episodes=2", f"--output={path}", "--overlay=True")
    code, shown = command(capsys, run, *flags)
    assert code == 0, shown
    episode = [(step, float(step)) for step in range(6)]
    assert seen[:12] == episode * 2
    with image.open(path) as picture:
        assert picture.height >= LEAST_HEIGHT
        assert picture.width > WIDTH


def test_bars_of_numbers() -> None:
    action = action_spec(spaces.Tuple((spaces.Box(-1.0, 3.0, (1,)), spaces.MultiDiscrete([2, 2]))))
    info = CollectInfo((), torch.zeros(1), torch.tensor([[0.0, 0.0, 0.0, 0.0, 9.0]]))
    found = bars(action, PolicyStep(torch.tensor([[1.0, 0.0, 1.0]]), (), info))
    assert [bar[:2] for bar in found] == [
        ("+1.00", 0.5),
        ("0: 0.50", 0.5),
        ("1: 0.50", 0.5),
        ("0: 0.50", 0.5),
        ("1: 0.50", 0.5),
    ]
    assert [bar[2] for bar in found] == [True, True, False, False, True]


@pytest.mark.parametrize(
    "source",
    [
        EnvSource("modeless", factory=modeless),
        EnvSource("Plain", factory=Plain),
        EnvSource("Plain-v0"),
        EnvSource("PlainWithMetadata-v0"),
        EnvSource("plain", factory=plain),
        EnvSource("plain_by_place", factory=plain_by_place),
        EnvSource("Plain", factory=Plain, max_episode_steps=9),
    ],
    ids=lambda source: source.env_id,
)
@pytest.mark.parametrize("mode", ["human", "rgb_array"])
@pytest.mark.filterwarnings("ignore::UserWarning")  # of Gymnasium, about the modes in the metadata
def test_constructor_that_takes_no_render_mode_is_told_in_a_sentence(source: EnvSource, mode: Any) -> None:
    with pytest.raises(EnvError, match=f"^{source.env_id} cannot be watched, because its constructor takes no render_"):
        make_rendering(source, mode)


@pytest.mark.parametrize(
    "source",
    [EnvSource("faulty", factory=faulty), EnvSource("Plain", {"speed": 3}, Plain), EnvSource("Plain-v0", {"speed": 3})],
    ids=["inside", "other argument", "other argument of Gymnasium"],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_another_error_of_a_constructor_is_shown_as_it_is(source: EnvSource) -> None:
    with pytest.raises(EnvCrashed, match=r"raised TypeError in the constructor.*\n(.*\n)*TypeError: Plain"):
        make_rendering(source, "rgb_array")


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--output=a.avi"], 2, "--output=a.avi must end with .mp4 or .gif."),
        (["--overlay=True"], 2, "--overlay=True draws beside the picture of a film"),
        ([], 2, "There is no screen for a window (DISPLAY is not set). Record a film: --output=episode.mp4"),
        (["--speed=0", "--output=a.gif"], 2, "speed=0.0 must be above 0"),
        (["--output=a.gif", "--policy=x"], 2, "Give either --experiment or --policy"),
        (
            ["--output=a.gif", "--env=Painted", '--env_kwargs={"picture": 3}'],
            3,
            "render() returned int, expected a picture",
        ),
        (
            ["--output=a.gif", "--env=Modeless"],
            3,
            "Modeless cannot be watched, because its constructor takes no render_mode. Give it an argument render_mode",
        ),
        (
            ["--output=a.gif", "--env=Plain"],
            3,
            "Plain cannot be watched, because its constructor takes no render_mode. Give it an argument render_mode",
        ),
        (
            ["--output=a.gif", "--env=Painted", '--env_kwargs={"picture": "raises"}'],
            3,
            "Painted draws no picture: render() raised RuntimeError: no display.",
        ),
        (["--output=a.gif", "--env=Painted", "--speed=0.00001"], 2, "these take 5e+03 s each. Use a larger --speed"),
        (
            ["--output=a.gif", "--env=Painted", "--speed=0.0001", '--env_kwargs={"picture": "still"}'],
            2,
            "and one of these, with those that look like it, takes longer. Use a larger --speed, or write an .mp4.",
        ),
        (
            ["--output=a.gif", "--env=Painted", '--env_kwargs={"wide": true}'],
            2,
            "A GIF has 65535 pixels in each direction at most, and these pictures have 70000 x 1.",
        ),
        (["--output=/proc/no/a.gif", "--env=Painted"], 2, "/proc/no/a.gif cannot be written"),
    ],
)
def test_refusals(
    run: str,
    flags: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    found, shown = command(capsys, run, "--experiment=run1", *flags)
    assert found == code, shown
    assert message in shown
    assert not list(tmp_path.glob("a.*")), "no empty file"


def test_a_film_of_pictures_beyond_the_memory_for_them_says_what_it_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setattr(film, "MOST_GIF_BYTES", 3 * 300)
    path = tmp_path / "a.gif"
    writer = film.Film(path)
    for shade in range(10):
        writer.add(np.full((10, 10, 3), 25 * shade, np.uint8), 10.0)
    writer.close()
    with image.open(path) as pictures:
        assert pictures.n_frames == 4
    assert "holds the first 4 pictures; 6 more would take too much memory. An .mp4" in capsys.readouterr().out


def test_a_film_that_fails_leaves_an_earlier_one_alone(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("PIL")
    path = tmp_path / "a.gif"
    path.write_text("precious")
    flags = "--experiment=run1", "--env=Painted", '--env_kwargs={"picture": "raises"}'
    assert command(capsys, run, *flags, f"--output={path}")[0] == 3
    assert path.read_text() == "precious"


def test_mujoco_without_a_display_is_told_of_its_variable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mujoco")
    from sf.envs.picture import look_at_first_picture

    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)
    source = EnvSource("Hopper-v5")
    with pytest.raises(EnvError, match=r"Hopper-v5 draws no picture: .*MUJOCO_GL=egl or, without a graphics card, MUJ"):
        in_disposable_child(look_at_first_picture, source, timeout_s=60.0, what="A first picture of Hopper-v5")


def test_an_environment_without_render_is_told_what_to_write() -> None:
    class Blind(gymnasium.Env[Any, Any]):
        """Has the render of Gymnasium, which raises."""

    with pytest.raises(
        EnvError, match=r"Blind-v0 draws no picture: it has no render\(\)\. Write one that returns uint8"
    ):
        picture_of(Blind(), "Blind-v0")
