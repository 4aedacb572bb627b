"""Episodes worked out on the device for a whole trajectory, against a loop over steps and rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from sf.envs.step_metrics import StepMetrics
from sf.tensors.episodes import TrajectoryEpisodes
from sf.tensors.metrics import TrajectoryMetrics

NAMES = ["speed/mean", "hits/sum", "height/max", "level/last", "keys"]
STEPS, ROWS = 7, 5


def one_by_one(trajectories: list[tuple[Any, Any, dict[str, Any]]]) -> list[list[dict[str, float]]]:
    """Episodes of each trajectory, in the order of time."""
    returns, lengths, metrics, found = np.zeros(ROWS), np.zeros(ROWS, int), StepMetrics(), []
    for rewards, over, numbers in trajectories:
        ended = []
        for t in range(STEPS):
            for row in range(ROWS):
                returns[row] += rewards[t, row]
                lengths[row] += 1
                here = {name: float(values[t, row]) for name, values in numbers.items()}
                metrics.add(row, here)
                if over[t, row]:
                    info: dict[Any, Any] = {"metrics": {"keys": here["keys"]}}
                    metrics.finish(row, info)
                    own = {key: value for key, value in info["metrics"].items() if value is not None and value == value}
                    ended.append({"row": row, "return": returns[row], "length": lengths[row]} | own)
                    returns[row], lengths[row] = 0, 0
        found.append(ended)
    return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("chance", [0.0, 0.1, 0.5, 1.0])
def test_episodes_are_those_of_a_loop(chance: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    trajectories = []
    for _ in range(4):
        rewards = random.normal(size=(STEPS, ROWS)).astype(np.float32)
        numbers = {name: random.normal(size=(STEPS, ROWS)) for name in NAMES}
        for values in numbers.values():
            values[random.random(values.shape) < 0.3] = np.nan
        trajectories.append((rewards, random.random((STEPS, ROWS)) < chance, numbers))
    episodes, metrics = TrajectoryEpisodes(ROWS, torch.device("cpu")), room(ROWS)
    for (rewards, over, numbers), right in zip(trajectories, one_by_one(trajectories), strict=True):
        for t in range(STEPS):
            metrics.add(t, {name: torch.from_numpy(values[t]) for name, values in numbers.items()})
        found, names = episodes.ended(torch.from_numpy(rewards), torch.from_numpy(over), metrics.take())
        assert names == NAMES
        assert len(found) == len(right)
        for line, expected in zip(found.tolist(), right, strict=True):
            named = dict(zip(["row", "return", "length", *names], line, strict=True))
            assert {key: value for key, value in named.items() if not math.isnan(value)} == pytest.approx(expected)


def room(rows: int) -> TrajectoryMetrics:
    return TrajectoryMetrics(STEPS, rows, torch.device("cpu"))


def test_metrics_that_are_infinite_or_have_no_proper_name_are_told_once_and_left_out(
    capfd: pytest.CaptureFixture[str],
) -> None:
    metrics = room(2)
    for _ in range(2):
        metrics.add(0, {"x" * 60: torch.zeros(2), "speed": torch.tensor([torch.inf, 1.0])})
        taken = metrics.take()
        assert list(taken) == ["speed"]
        assert taken["speed"][0].tolist() == pytest.approx([math.nan, 1.0], nan_ok=True)
        assert taken["speed"][1:].isnan().all()
    out = capfd.readouterr().out
    assert out.count("has a name that is no text of at most 48 bytes") == 1
    assert out.count("info['metrics']['speed'] is inf, expected a finite number.") == 1
