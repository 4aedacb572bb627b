"""Watching a policy: films of every step, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from sf.cli import enjoy
from sf.envs import register_env
from sf.evaluator.panel import WIDTH, Panel, bars
from sf.policy import CollectInfo, PolicyStep
from sf.spaces import action_spec
from tests.test_evaluate import save
from tests.toy_envs import Toy


class Painted(Toy):
    """Shows its step number as a color."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012  # as Gymnasium has it

    def __init__(self, render_mode: str | None = None, picture: Any = None) -> None:
        super().__init__(observation_space=spaces.Box(-1.0, 1.0, (4,)), action_space=spaces.Discrete(2))
        self.render_mode, self.picture, self.steps = render_mode, picture, 0

    def reset(self, **kwargs: Any) -> Any:
        self.steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.zeros(4, np.float32), 1.0, self.steps == 5, False, {}

    def render(self) -> Any:
        return np.full((31, 41, 3), 20 * self.steps, np.uint8) if self.picture is None else self.picture


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = enjoy.main(arguments)
    captured = capsys.readouterr()
    return code, captured.out + captured.err


@pytest.fixture
def run(tmp_path: Path) -> str:
    register_env("Painted", Painted)
    save(tmp_path / "run1" / "checkpoint_p0")
    return f"--train_dir={tmp_path}"


def test_gif_has_every_step_and_the_last_one(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = pytest.importorskip("PIL.Image")
    film = tmp_path / "films/a.gif"
    flags = ("--experiment=run1", "--env=Painted", "--num_episodes=2", f"--output={film}")
    code, shown = command(capsys, run, *flags)
    assert code == 0, shown
    assert shown.count("Policy 0: reward 5.000, length 5") == 2
    assert f"Wrote {film}" in shown
    with image.open(film) as pictures:
        colors = []
        for index in range(pictures.n_frames):
            pictures.seek(index)
            colors.append(int(np.asarray(pictures.convert("RGB"))[0, 0, 0]))
        assert pictures.info["duration"] == 50
    assert colors == [0, 20, 40, 60, 80, 100, 0, 20, 40, 60, 80, 100]


def test_mp4_of_a_real_environment_with_panel(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    pytest.importorskip("pygame")
    film = tmp_path / "a.mp4"
    code, shown = command(
        capsys, run, "--experiment=run1", f"--output={film}", "--overlay=True", "--deterministic=True"
    )
    assert code == 0, shown
    length = int(shown.split("length ")[1].split()[0])
    frames, seconds = ffmpeg.count_frames_and_secs(str(film))
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
        (["--output=/proc/no/a.gif", "--env=Painted"], 2, "/proc/no/a.gif cannot be written"),
    ],
)
def test_refusals(
    run: str,
    flags: list[str],
    code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    found, shown = command(capsys, run, "--experiment=run1", *flags)
    assert found == code, shown
    assert message in shown
