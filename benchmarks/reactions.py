"""From a fault until what must then happen: times of real commands, each beside its limit."""

from __future__ import annotations

import random
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import psutil
from chaos_run import Run, config

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.helpers.commands import (
    CARTPOLE,
    EXPERIMENT,
    ROOT,
    Finished,
    Running,
    fault_run,
    run,
    running,
    started,
    summary_of,
    wait_for_first_step,
    wait_for_training,
)

STEP_LIMIT_S = 2
SAVE_EVERY_S = 1


class Reaction(NamedTuple):
    """Something that happens to a command in an empty directory, and how long it may take to deal with it."""

    fault: str
    limit_s: float
    seconds: Callable[[Path], float]


def second_signal(path: Path) -> float:
    """Where a child does not follow the first one."""
    with running(path, *CARTPOLE) as command:
        wait_for_first_step(command)
        command.named("sf-rollout-0")[0].suspend()
        command.process.send_signal(signal.SIGINT)
        time.sleep(0.1)
        return _seconds_until_gone(command, 130, lambda: command.process.send_signal(signal.SIGINT))


def storm(path: Path) -> float:
    with running(path, *CARTPOLE) as command:
        wait_for_first_step(command)
        return _seconds_until_gone(
            command, 143, lambda: [command.process.send_signal(signal.SIGTERM) for _ in range(100)]
        )


def any_moment(path: Path) -> float:
    """The start included, but for the interpreter's own."""
    with running(path, *CARTPOLE) as command:
        command.wait_for(lambda: command.named("sf-train"), "the command")
        time.sleep(random.uniform(0.0, 8.0))
        return _seconds_until_gone(command, 143, command.process.terminate)


def learner(path: Path) -> float:
    """The last save is no older than the interval between two saves, and the time that one takes."""
    with running(path, *CARTPOLE, f"--save_every_sec={SAVE_EVERY_S}") as command:
        checkpoints = path / EXPERIMENT / "checkpoint_p0"
        command.wait_for(lambda: list(checkpoints.glob("checkpoint_*")), "a checkpoint")
        time.sleep(random.uniform(0.0, 3.0))
        seconds = _seconds_until_gone(command, 7, command.named("sf-learner-0")[0].kill)
    newest = max(one.stat().st_mtime for one in checkpoints.glob("checkpoint_*"))
    age_s = time.time() - seconds - newest
    assert age_s < SAVE_EVERY_S + 5.0, f"the newest checkpoint was {age_s:.1f} s old when the learner was killed"
    return seconds


def parent(path: Path) -> float:
    line = shlex.join([sys.executable, "-m", "sf.cli.train", *CARTPOLE])
    with started(path, "bash", "-c", f"{line} & wait") as shell:
        wait_for_training(shell)
        began = time.monotonic()
        shell.process.kill()
        shell.process.wait()
        shell.expect_nobody(60)
        seconds = time.monotonic() - began
    assert summary_of(path)["exit_code"] == 143
    return seconds


def hang(path: Path) -> float:
    """Beyond the limit of a step."""
    flags = fault_run(path)[:-1]
    with running(path, *flags, f"--env_step_timeout={STEP_LIMIT_S}") as command:
        wait_for_training(command)
        began = time.monotonic()
        (path / "orders" / "step-hang").touch()
        command.wait_for_text("Its stacks follow")
        return time.monotonic() - began - STEP_LIMIT_S


def all_workers(path: Path) -> float:
    """Until each of four successors has delivered."""
    seconds = []

    def fault(run: Run) -> None:
        assert run.shared is not None
        slots, topology = run.shared.slots, run.shared.topology
        own = topology.groups_per_worker * topology.slots_per_group
        deadline = time.monotonic() + 60
        while len(pids := run.pids("sf-rollout")) < topology.num_workers:
            assert time.monotonic() < deadline, run.state()
        workers = [psutil.Process(pid) for pid in pids]
        began = time.monotonic()
        for worker in workers:
            worker.kill()
        _, alive = psutil.wait_procs(workers, timeout=10)
        assert not alive, alive
        before = slots.filled.reshape(-1, own).sum(1)
        while (slots.filled.reshape(-1, own).sum(1) == before).any():
            assert time.monotonic() < began + 60, run.state()
            time.sleep(0.001)
        seconds.append(time.monotonic() - began)

    Run(config(str(path)), fault)
    return seconds[0]


def broken_environment(path: Path) -> float:
    return _seconds_of_refusal(3, "the simulator is unwell", run(path, *fault_run(path, "init-always-raise")))


class Writing(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole whose actions are texts."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.action_space = gym.spaces.Text(2)


gym.register("Writing-v0", entry_point="reactions:Writing")


def unsupported_actions(path: Path) -> float:
    finished = run(path, "--env=reactions:Writing-v0", python_path=f"{ROOT}:{Path(__file__).parent}")
    return _seconds_of_refusal(3, "The action space is or contains Text", finished)


def directory_in_use(path: Path) -> float:
    with running(path, *CARTPOLE) as command:
        wait_for_first_step(command)
        (path / "second").mkdir()
        second = run(path / "second", *CARTPOLE, f"--train_dir={path / EXPERIMENT.parent}")
        return _seconds_of_refusal(4, str(command.process.pid), second)


def directory_that_cannot_be_made(path: Path) -> float:
    return _seconds_of_refusal(4, "/proc/runs", run(path, *CARTPOLE, "--train_dir=/proc/runs"))


REACTIONS = (
    Reaction("a second signal (E3)", 2.0, second_signal),
    Reaction("a storm of a hundred (E3)", 2.0, storm),
    Reaction("SIGTERM at any moment (E2, E4)", 5.0, any_moment),
    Reaction("the learner killed (A8)", 5.0, learner),
    Reaction("the parent killed (A12)", 5.0, parent),
    Reaction("a step that hangs, beyond its limit (B1)", 1.0, hang),
    Reaction("all rollout workers killed, until all deliver (A5)", 10.0, all_workers),
    Reaction("an environment that cannot be made (B5)", 10.0, broken_environment),
    Reaction("an action space that is not supported (B17)", 5.0, unsupported_actions),
    Reaction("a directory in use (D11)", 2.0, directory_in_use),
    Reaction("a directory that cannot be made (D3)", 5.0, directory_that_cannot_be_made),
)


def reactions(count: int) -> str:
    """Every one so many times."""
    told = []
    for fault, limit_s, seconds in REACTIONS:
        times = []
        for _ in range(count):
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
                times.append(seconds(Path(directory)))
        missed = "" if max(times) <= limit_s else "NOT "
        told.append(f"{fault} {np.median(times):.2f}, {max(times):.2f}, {missed}within {limit_s:g}")
        print(told[-1], file=sys.stderr, flush=True)
    return f"{count} times each; seconds (median, worst): {'; '.join(told)}"


def _seconds_of_refusal(code: int, sentence: str, finished: Finished) -> float:
    assert (finished.code, sentence in finished.err) == (code, True), finished
    return finished.seconds


def _seconds_until_gone(command: Running, code: int, fault: Callable[[], object]) -> float:
    began = time.monotonic()
    fault()
    finished = command.finish(60)
    assert finished.code == code, finished
    return time.monotonic() - began
