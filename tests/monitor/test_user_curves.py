"""Numbers that callbacks return become curves."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sf
from sf.monitor.user_curves import MOST_NAMES, UserCurves
from sf.run.callbacks import Callbacks
from sf.shared.episodes import Episode
from sf.shared.messages import CheckpointSaved
from tests.helpers.events import read_events


def test_an_answer_without_effect_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    episode = Episode(0, 1.0, 1, 0.0)
    effective = (None, ""), (False, ""), ({"a": 1}, "")
    for answer, told in ((1, "of type int,"), (torch.tensor(True), "of type Tensor,"), *effective):
        callbacks = Callbacks(on_episode=lambda _, answer=answer: answer)  # type: ignore[misc]
        for _ in range(2):
            callbacks.episode(episode)
        assert not callbacks.wants_stop
        shown = capsys.readouterr().out
        assert shown.count("Warning: the answer of the callback on_episode") == bool(told)
        assert told in shown


def test_a_point_has_the_mean_since_the_one_before() -> None:
    told: list[str] = []
    curves = UserCurves(told.append)
    curves.add(0, {"a": 1, "b": np.float32(5)})
    curves.add(0, {"a": 2.0})
    curves.add(1, {"a": True, "missing": None, "nan": math.nan})
    assert curves.take(0) == {"user/a": 1.5, "user/b": 5.0}
    assert curves.take(0) == {}
    assert curves.take(1) == {"user/a": 1.0}
    assert not told


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        ({"a": "many"}, "A callback returned a str as 'a', expected a finite number."),
        ({"a": math.inf}, "A callback returned inf as 'a', expected a finite number."),
        ({3: 1.0}, "A callback returned 3 as the name of a number, expected a text."),
        ({" ": 1.0}, "A callback returned ' ' as the name of a number, expected a text."),
    ],
)
def test_what_is_no_number_is_told_once_and_has_no_curve(numbers: dict[Any, Any], sentence: str) -> None:
    told: list[str] = []
    curves = UserCurves(told.append)
    for _ in range(2):
        curves.add(0, numbers | {"b": 2})
    assert told == [f"Warning: {sentence} It is left out of the curves."]
    assert curves.take(0) == {"user/b": 2.0}


def test_names_have_a_limit() -> None:
    told: list[str] = []
    curves = UserCurves(told.append)
    for step in range(MOST_NAMES + 5):
        curves.add(0, {f"at {step}": step})
    assert len(curves.take(0)) == MOST_NAMES
    (only,) = told
    assert f"Callbacks return more than {MOST_NAMES} names, the first of which are ['at 0', 'at 1', 'at 10']." in only


@pytest.mark.more
def test_a_run_has_the_curves_and_a_callback_can_still_stop_it(tmp_path: Path) -> None:
    saved: list[CheckpointSaved] = []

    def on_episode(episode: Episode) -> dict[str, float]:
        return {"half_length": episode.length / 2}

    def on_checkpoint(checkpoint: CheckpointSaved) -> dict[str, float]:
        saved.append(checkpoint)
        return {"saves": len(saved)}

    result = sf.train(
        "CartPole-v1",
        train_dir=str(tmp_path),
        experiment="mine",
        serial_mode=True,
        num_envs_per_worker=4,
        rollout=16,
        on_iteration=lambda iteration: True if iteration.frames >= 10_000 else {"frames": iteration.frames},
        on_episode=on_episode,
        on_checkpoint=on_checkpoint,
    )
    assert result.exit_reason == "stopped by a callback"
    frames = result.metrics["user/frames"]
    assert len(frames) > 3
    assert [value for _, value in frames] == sorted(value for _, value in frames)
    assert all(value <= at for at, value in frames)
    assert result.metrics["user/saves"][-1][1] >= 1
    lengths = [value for _, value in result.metrics["user/half_length"]]
    assert 4 < min(lengths) < max(lengths) <= 250, "half of an episode, which ends at 500 steps"
    assert read_events(tmp_path / "mine/.summary/0")["user/frames"][-1][1] == pytest.approx(frames[-1][1])
    points = [json.loads(line) for line in (tmp_path / "mine/metrics.jsonl").read_text().splitlines()]
    assert any("reward/reward" in point and "user/half_length" in point for point in points), "of one line"


def test_a_sum_beyond_all_numbers_has_a_mean() -> None:
    curves = UserCurves(lambda _: None)
    for _ in range(3):
        curves.add(0, {"big": 1e308, "a": 2.0})
    assert curves.take(0) == {"user/big": pytest.approx(1e308), "user/a": 2.0}
