"""What happens at the same time: the real roles on threads, with environments and answers that only sleep."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from sf.envs import register_env
from sf.shared.requests import Requests
from tests.helpers.lab import Lab, make_lab


class Sleepy(gymnasium.Env[Any, Any]):
    """A step takes a fixed time and no computation."""

    def __init__(self, step_s: float):
        self.step_s = step_s
        self.observation_space, self.action_space = spaces.Box(0, 1, (1,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self.step_s)
        return np.zeros(1, np.float32), 0.0, False, False, {}


register_env("test/Sleepy", Sleepy)


@contextlib.contextmanager
def on_threads(*loops: Callable[[], None]) -> Iterator[None]:
    """Repeats each function on a thread of its own until the block ends."""
    stop = threading.Event()

    def repeat(loop: Callable[[], None]) -> None:
        while not stop.is_set():
            loop()

    threads = [threading.Thread(target=repeat, args=(loop,), daemon=True) for loop in loops]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


class DelayedAnswers:
    """Answers each request a fixed time after it was asked, as inference with its latency does."""

    def __init__(self, lab: Lab, delay_s: float):
        self.requests, self.delay_s = Requests(lab.shared.topology, lab.arena), delay_s
        self.asked_at: dict[int, float] = {}
        self.bell = lab.shared.doorbells[-1]

    def __call__(self) -> None:
        now = time.monotonic()
        for group in np.flatnonzero(self.requests.request != self.requests.answered[:, 0]).tolist():
            if now - self.asked_at.setdefault(group, now) >= self.delay_s:
                del self.asked_at[group]
                self.requests.answered[group, 0] = self.requests.request[group]
                self.bell.ring()
        time.sleep(0.0005)


def seconds_per_pass(worker: Any, num_envs: int, passes: int = 3) -> float:
    """Time in which every environment takes one step, over some passes that begin and end with a step."""

    def wait_until(steps: int) -> float:
        while worker.record["env_steps"] < steps:
            time.sleep(0.0005)
        return time.monotonic()

    first = int(worker.record["env_steps"]) + num_envs
    started = wait_until(first)
    return (wait_until(first + passes * num_envs) - started) / passes


@pytest.mark.alone
def test_s3_double_buffering_hides_inference(tmp_path: Path, oracles: dict[str, Any]) -> None:
    """One pass over all environments takes s + d with one group and max(s, s/G + d) with more."""
    periods: dict[float, float] = {}
    for number, case in enumerate(oracles["S3"]["cases"]):
        inputs = case["inputs"]
        groups, step_s, delay_s = (inputs[name] for name in ("groups", "step_all_envs_s", "inference_delay_s"))
        flags = {"env_kwargs": f'{{"step_s": {step_s / 4}}}', "num_envs_per_worker": 4, "rollout": 64}
        lab = make_lab(tmp_path / str(number), "test/Sleepy", worker_num_splits=groups, **flags)
        worker = lab.build("rollout-0")
        lab.slots.actions[:] = 0

        def loop(worker: Any = worker) -> None:
            if not worker.step():
                worker.wait(0.1)

        with on_threads(loop, DelayedAnswers(lab, delay_s)):
            # The shortest of several measurements: a busy machine can only add time.
            period_s = min(seconds_per_pass(worker, num_envs=4) for _ in range(5))
        assert period_s == pytest.approx(case["expected"]["period_s"], rel=0.3)
        periods[case["expected"]["period_s"]] = period_s
    assert periods[0.06] < 0.9 * periods[0.08]
    assert periods[0.05] < periods[0.06], "four groups hide more than two"
    assert periods[0.1] < periods[0.12], "with two groups, answers that come soon cost nothing"


def frames_per_second(learner: Any, seconds: float) -> float:
    before, started = learner.frames, time.monotonic()
    time.sleep(seconds)
    return float(learner.frames - before) / (time.monotonic() - started)


@pytest.mark.alone
def test_a26_async_collects_while_it_trains(tmp_path: Path) -> None:
    """With environments that sleep and a slow learner, async mode is at least 1.3 times as fast."""
    rates = {}
    for is_async in (False, True):
        flags = {"env_kwargs": '{"step_s": 0.0005}', "num_envs_per_worker": 4, "rollout": 16, "async_rl": is_async}
        lab = make_lab(tmp_path / str(is_async), "test/Sleepy", **flags)
        learner, *others = lab.build_all()
        train = learner._train

        def slow(batch: Any, train: Callable[[Any], None] = train) -> None:
            time.sleep(0.04)
            train(batch)

        learner._train = slow

        def loop(role: Any) -> None:
            if not role.step():
                role.wait(0.1)

        with on_threads(*(lambda role=role: loop(role) for role in (learner, *others))):
            time.sleep(0.5)
            rates[is_async] = max(frames_per_second(learner, seconds=1.0) for _ in range(4))
    assert rates[True] >= 1.3 * rates[False], rates
