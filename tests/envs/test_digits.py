"""Numbers that float32 cannot tell apart: found at the first look, kept by types that hold them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from sf.cli.train import parse_config
from sf.envs import register_env
from sf.envs.digits import Digits
from sf.run.preparation import prepare
from sf.shared.episodes import EpisodeRing
from sf.spaces import ActionSpec, EnvInfo
from sf.spaces.from_gymnasium import observation_leaves
from tests.helpers.lab import make_lab, step_until


@pytest.mark.parametrize(
    ("dtype", "seen", "steps"),
    [
        ("float32", [1.764e9, 1.764e9], "128"),  # it does not change any more
        ("float64", [1.764e9, 1.764e9 + 8], "128"),
        ("int64", [1_764_000_000, 1_764_000_008], "128"),
        ("float32", [1e5, 1e5 + 0.03125], "0.0078125"),
        ("float64", [1e6, 1e6 + 1], None),  # in sixteen steps
        ("float32", [0.0, 1e9], None),  # large and wide
        ("float32", [1.0, 1.0], None),
        ("float32", [1.0, 1.0 + 2**-23], None),
        ("float32", [1e6, 1e6], None),  # a constant
        ("uint8", [200, 200], None),
    ],
)
def test_first_look_finds_where_float32_is_too_coarse(dtype: str, seen: list[float], steps: str | None) -> None:
    low, high = (0, 255) if dtype == "uint8" else (-1e12, 1e12)
    space = spaces.Box(low, high, (2,), np.dtype(dtype).type)
    digits = Digits(EnvInfo("Toy-v0", 1, observation_leaves(space), ActionSpec.discrete(2)))
    for number in seen:
        digits.look(np.array([0, number], dtype))
    found = digits.coarse()
    assert [text.rpartition(" ")[2] for text in found.values()] == ([] if steps is None else [steps])


class Clock(gymnasium.Env[Any, Any]):
    """Seconds since 1970, and which of two actions is right in each of them."""

    action_space = spaces.Discrete(2)

    def __init__(self, dtype: str = "float64") -> None:
        self.observation_space = spaces.Box(0, 1e12, (2,), np.dtype(dtype).type)
        self.dtype, self.t, self.bit = dtype, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward, self.t = float(action == self.bit), self.t + 1
        return self._observe(), reward, False, self.t == 16, {}

    def _observe(self) -> Any:
        self.bit = int(self.np_random.integers(2))
        return np.array([1_764_000_000 + self.t, 1_764_000_000 + self.bit]).astype(self.dtype)


@pytest.mark.more
@pytest.mark.parametrize(
    ("dtype", "flags", "advice"),
    [
        ("float32", [], "Return float64, of which the running mean is subtracted first"),
        ("float64", ["--normalize_input=False"], "Use --normalize_input=True, or subtract"),
        ("float64", [], ""),
        ("int64", [], ""),
    ],
)
def test_lost_digits_are_told_before_a_run(
    dtype: str, flags: list[str], advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    register_env("test/Clock", Clock)
    line = ["--env=test/Clock", f'--env_kwargs={{"dtype": "{dtype}"}}', "--serial_mode=True", *flags]
    prepare(parse_config(line))
    told = capsys.readouterr().out
    assert ("float32 goes in steps of 128" in told) == bool(advice)
    assert advice in told


def test_constants_without_effect_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["--env=CartPole-v1", "--serial_mode=True", "--obs_scale=10", "--obs_subtract_mean=3"]
    prepare(parse_config(line))
    told = "--obs_subtract_mean=3 and --obs_scale=10 shift and scale no observation that running statistics normalize"
    assert told in capsys.readouterr().out
    prepare(parse_config([*line, "--normalize_input=False"]))
    assert "shift and scale" not in capsys.readouterr().out


def test_seconds_since_1970_are_learned_from(tmp_path: Path) -> None:
    """A mean return of 8 is chance, 16 the best."""
    register_env("test/Clock", Clock)
    lab = make_lab(
        tmp_path, "test/Clock", num_envs_per_worker=16, rollout=16, async_rl=False, learning_rate=3e-3, num_epochs=8
    )
    roles = lab.build_all()
    ring = EpisodeRing(lab.arena, 0)
    returns: list[float] = []

    def learned() -> bool:
        returns.extend(episode.reward for episode in ring.new_episodes())
        return len(returns) >= 700

    step_until(roles, learned)
    assert np.mean(returns[-50:]) > 15
