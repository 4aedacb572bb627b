"""The cost of one slow or stuck environment for the others: rates beside a run in which all are alike."""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
from chaos_run import Run, config

from sf.config import Config, RolloutConfig

STEP_S = 2e-4
"""All of them wait for so long, so that one core could serve them all and only waiting tells them apart."""
SLOWER = 100
TROUBLE_AT = 300
DEADLINE_S = 3.0
WINDOW_S = 6.0
WORKERS = 4


class Neighbour(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole that takes its time; the copy that is the first to do so many steps takes more, or stands still."""

    def __init__(self, place: str = "", trouble: str = ""):
        super().__init__(gym.make("CartPole-v1"))
        self.place, self.trouble = place, trouble
        self.steps, self.step_s = 0, STEP_S

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.trouble and self.steps == TROUBLE_AT:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.place, os.O_CREAT | os.O_EXCL))
                self.step_s = SLOWER * STEP_S if self.trouble == "slow" else math.inf
        time.sleep(min(self.step_s, 1e6))
        return super().step(action)


gym.register("Neighbour-v0", entry_point="neighbours:Neighbour")


def neighbours(_: int) -> str:
    """Rates of a run with one slow and one with one stuck environment."""
    clean, slow, stuck = (_rate(trouble) for trouble in ("", "slow", "stuck"))
    rest = (WORKERS - 1) / WORKERS
    missed = "" if slow >= 0.9 * rest * clean and stuck >= 0.9 * rest * clean else "NOT 0.9 of what is left: "
    return (
        f"{missed}{WORKERS} workers of waiting environments make {clean:,.0f} frames per second. Of the {rest:.2f} "
        f"that are left of it they make {slow / clean / rest:.2f} while one environment is {SLOWER} times slower, "
        f"{stuck / clean / rest:.2f} while one stands still"
    )


def _rate(trouble: str) -> float:
    rates: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory) / "place"
        Run(_config(directory, str(place), trouble), _measure(place, trouble, rates))
    return rates[0]


def _config(directory: str, place: str, trouble: str) -> Config:
    plain = config(directory)
    kwargs = json.dumps({"place": place, "trouble": trouble})
    return replace(
        plain,
        run=replace(plain.run, env="neighbours:Neighbour-v0", env_kwargs=kwargs),
        rollout=RolloutConfig(num_workers=WORKERS, num_envs_per_worker=4),
        faults=replace(plain.faults, env_step_timeout=DEADLINE_S),
    )


def _measure(place: Path, trouble: str, rates: list[float]) -> Callable[[Run], None]:
    """Frames per second in a window; of a run with a stuck environment while it is stuck."""

    def fault(run: Run) -> None:
        while trouble and not place.exists():
            time.sleep(0.01)
        time.sleep(0.5)
        assert run.shared is not None
        steps = run.shared.arena["records/rollout"]
        began, frames = time.monotonic(), steps[:, 0].sum()
        time.sleep(0.8 * DEADLINE_S if trouble == "stuck" else WINDOW_S)
        rates.append(float(steps[:, 0].sum() - frames) / (time.monotonic() - began))

    return fault
