"""Environments that are lawful and strange, or careless with the process they live in: whole runs."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, TextIO, cast

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from sf.output import CHARACTERS_PER_SECOND, BoundedStream, unbounded
from tests.helpers.commands import NAME, run, running, started, summary_of, version_of, wait_for_training

FLAGS = ("--num_workers=2", "--num_envs_per_worker=4", "--seed=1")


class Shaped(gym.Env[Any, Any]):
    """Observations of any shape; an episode lasts `length` steps, 0 for one that never ends."""

    action_space = spaces.Discrete(2)

    def __init__(self, shape: tuple[int, ...] = (4,), length: int = 10):
        self.observation_space = spaces.Box(-1, 1, tuple(shape), np.float32)
        self.seen, self.length, self.steps = np.zeros(shape, np.float32), length, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self.seen, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.seen, 1.0, False, bool(self.length and self.steps % self.length == 0), {}


class Careless(Shaped):
    """Does to its process, step by step, what belongs to the process."""

    def __init__(self) -> None:
        super().__init__()
        self.habits = [
            lambda: os.close(0),
            sys.stdin.close,
            sys.stdout.close,
            lambda: os.chdir("/"),
            lambda: os.umask(0o777),
            lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL),
            lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN),
            lambda: signal.setitimer(signal.ITIMER_REAL, 1000),
            lambda: np.random.seed(0),
            lambda: threading.Thread(target=time.sleep, args=(1000,), daemon=True).start(),
            lambda: sys.setrecursionlimit(200),
            lambda: np.seterr(all="raise"),
            lambda: os.environ.clear(),
        ]

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.habits:
            with contextlib.suppress(OSError):  # another environment of this process was faster
                self.habits.pop(0)()
        print("x" * 5000, file=sys.stderr)
        return super().step(action)


class Talkative(Shaped):
    """Prints wherever it can."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        for stream in (sys.stdout, sys.stderr):
            print("x" * 100, file=stream, flush=True)
        return super().step(action)


class Verbose(Shaped):
    """Says ten megabytes with each step, under another name each time."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        *others, _ = super().step(action)
        return *others, {f"story_{self.steps}": np.ones(10 * 2**20, np.uint8)}


class Million(Shaped):
    """A million actions."""

    action_space = spaces.Discrete(10**6)


class Leaking(Shaped):
    """Keeps `megabytes` and `files` for ever with each step."""

    def __init__(self, megabytes: float = 1.0, files: int = 0):
        super().__init__(length=20)
        self.megabytes, self.files = megabytes, files
        self.kept: list[Any] = []

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.kept.append(np.ones(int(self.megabytes * 2**17)))
        self.kept += [open(os.devnull) for _ in range(self.files)]  # noqa: SIM115  (for ever)
        return super().step(action)


gym.register("Shaped-v0", entry_point="tests.run.test_strange_envs:Shaped")
gym.register("Careless-v0", entry_point="tests.run.test_strange_envs:Careless")
gym.register("Talkative-v0", entry_point="tests.run.test_strange_envs:Talkative")
gym.register("Verbose-v0", entry_point="tests.run.test_strange_envs:Verbose")
gym.register("Million-v0", entry_point="tests.run.test_strange_envs:Million")
gym.register("Leaking-v0", entry_point="tests.run.test_strange_envs:Leaking")


def shaped(**arguments: Any) -> tuple[str, ...]:
    return "--env=tests.run.test_strange_envs:Shaped-v0", f"--env_kwargs={json.dumps(arguments)}", *FLAGS


@pytest.mark.parametrize("shape", [(), (1,), (2, 3, 4, 5)])
def test_fault_b13_observations_of_any_rank(tmp_path: Path, shape: tuple[int, ...]) -> None:
    finished = run(tmp_path, *shaped(shape=shape), "--serial_mode=True", "--train_for_env_steps=500")
    assert finished.code == 0, finished.err


def test_fault_b21_environment_that_differs_from_the_first_one(tmp_path: Path) -> None:
    """Both spaces are shown."""
    finished = run(tmp_path, "--env=tests.environments.toys:Fickle-v0", *FLAGS)
    assert finished.code == 3, finished.out + finished.err
    told = r"Fickle-v0 is not what it should be\. Expected: .*float32\[2\].* Found: .*float32\[3\]"
    assert re.search(told, finished.err), finished.err


def test_fault_b17_actions_that_nobody_can_choose(tmp_path: Path) -> None:
    finished = run(tmp_path, "--env=tests.environments.toys:Wordy-v0", *FLAGS)
    assert finished.code == 3
    assert re.match(r"EnvError: .*Text", finished.err), finished.err
    assert not (tmp_path / "train_dir").exists()


def test_fault_b13_observation_of_nothing(tmp_path: Path) -> None:
    finished = run(tmp_path, *shaped(shape=(0,)))
    assert finished.code == 3
    assert finished.err.startswith("EnvError: ")
    assert "(0,)" in finished.err
    assert not (tmp_path / "train_dir").exists()


@pytest.mark.more
def test_fault_b13_observation_of_100_mb(tmp_path: Path) -> None:
    """Refused with the need, what there is, and the flags that lower it; nothing was allocated."""
    finished = run(tmp_path, *shaped(shape=(25_000_000,)))
    assert finished.code == 5
    assert re.search(
        r"Shared memory needs [\d,]+ MiB, .* and the (machine|container) has [\d,]+ MiB left\. Use a smaller --rollout",
        finished.err,
    ), finished.err


@pytest.mark.more
@pytest.mark.parametrize("lost", ["> /dev/full", "2> /dev/full", "2>&1 | head -n 1"])
def test_fault_e5_what_an_environment_prints_may_be_lost(tmp_path: Path, lost: str) -> None:
    """A full disk, or a reader that has gone: no fault of the environment."""
    flags = *FLAGS, "--serial_mode=False", "--train_for_env_steps=4000"
    command_line = [
        sys.executable,
        "-m",
        "sf.cli.train",
        "--env=tests.run.test_strange_envs:Talkative-v0",
        NAME,
        *flags,
    ]
    line = f"{' '.join(command_line)} {lost}"
    with started(tmp_path, "bash", "-c", f"set -o pipefail; {line}") as command:
        finished = command.finish(100)
    assert finished.code == 0, finished.err
    summary = summary_of(tmp_path)
    assert summary["frames"] >= 4000
    assert summary["faults"]["faults/restarts"] == 0


@pytest.mark.more
def test_fault_b14_infos_of_10_mb_go_nowhere(tmp_path: Path) -> None:
    """Not even those of the last steps of episodes, of which the numbers of the episode are read."""
    with running(tmp_path, "--env=tests.run.test_strange_envs:Verbose-v0", *FLAGS, "--serial_mode=False") as command:
        wait_for_training(command)
        command.wait_for(lambda: version_of(command) > 4, "more training")
        sizes = command.resident_mib(["sf-rollout-0", "sf-learner-0", "sf-train"])
        command.process.send_signal(signal.SIGTERM)
        assert command.finish(20).code == 143
    assert summary_of(tmp_path)["frames"] >= 250, "2.5 GB of infos"
    assert max(sizes.values()) < 500, sizes


@pytest.mark.slow
def test_fault_b17_a_million_actions(tmp_path: Path) -> None:
    sizes = "--num_workers=1", "--num_envs_per_worker=2", "--rollout=8", "--batch_size=16", "--num_batches_per_epoch=1"
    finished = run(tmp_path, "--env=tests.run.test_strange_envs:Million-v0", *sizes, "--train_for_env_steps=64")
    assert finished.code == 0, finished.err
    assert summary_of(tmp_path)["frames"] >= 64


@pytest.mark.more
def test_fault_b18_careless_environment(tmp_path: Path) -> None:
    """Streams, directory, mask, signals, timers, random state, threads, environment: the run does not notice.

    Of 5,000 characters in each step, some thousand times a second, little is shown.
    """
    flags = "--env=tests.run.test_strange_envs:Careless-v0", *FLAGS, "--train_for_seconds=3", "--save_every_sec=1"
    finished = run(tmp_path, *flags)
    assert finished.code == 0, finished.err
    assert "Restart" not in finished.out
    frames = int(re.findall(r"Collected {0: (\d+)}", finished.out)[-1])
    touched = (
        int(finished.seconds) + 2
    )  # seconds of the clock that n + 0.3 seconds may reach into: the first and last too
    assert len(finished.err) < min(2 * touched * CHARACTERS_PER_SECOND, 5000 * frames)
    assert re.search(r"\[[\d,]{7,} characters that an environment printed are left out\]", finished.err)
    (checkpoint, *_) = (tmp_path / "train_dir" / "default_experiment" / "checkpoint_p0").glob("checkpoint_*")
    assert (checkpoint / "state.json").stat().st_mode & 0o777 == 0o600


def test_fault_b18_bounded_stream_says_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 7.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    shown = io.StringIO()
    stream = BoundedStream(shown, limit=10)
    assert stream.write("12345") == 5
    stream.writelines(["67", "890"])
    assert stream.write("123456") == 6
    print(file=cast(TextIO, stream))
    assert shown.getvalue() == "1234567890"
    now = 8.0
    print("on", file=cast(TextIO, stream))
    assert shown.getvalue() == "1234567890\n[7 characters that an environment printed are left out]\non\n"
    assert stream.getvalue() == shown.getvalue()
    stream.write("0123456789")
    stream.tell_what_is_left_out()  # as at the end of a process
    stream.tell_what_is_left_out()
    assert shown.getvalue().endswith("\non\n0123456\n[3 characters that an environment printed are left out]\n")
    assert unbounded(cast(TextIO, stream)) is shown
    copy.copy(stream)


@pytest.mark.slow
def test_fault_b16_episodes_that_never_end(tmp_path: Path) -> None:
    """The console and the curves go on, and nobody's memory grows."""
    with running(tmp_path, *shaped(length=0), "--policy_workers_per_policy=1") as command:
        wait_for_training(command)
        time.sleep(10)
        names = "sf-rollout", "sf-learner", "sf-inference", "sf-train"
        before = command.resident_mib(names)
        assert all(size > 0 for size in before.values()), before
        reports = command.out.count("Total num frames")
        time.sleep(30)
        after = command.resident_mib(names)
        assert command.out.count("Total num frames") >= reports + 4
        command.process.send_signal(signal.SIGTERM)
        assert command.finish(20).code == 143
    for name in names:
        assert after[name] < before[name] + 8, (before, after)
