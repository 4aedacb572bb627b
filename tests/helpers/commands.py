"""Runs the commands of sf as a user does, in a session of their own, and proves that nothing of them is left."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.helpers.starter import LAUNCH, ForkedCommand, forked, needs_new_python

TIMEOUT_S = 120.0
ROOT = str(Path(__file__).parents[2])
"""Where the modules of the tests are, whose environments a command may use."""
EXPERIMENT = Path("train_dir/default_experiment")
"""Directory of a run that is given no other, from where it was started."""
MARK = "SF_TEST_RUN"
LEDGER = re.compile(r"Slots: (\d+) allocated = (\d+) learned \+ (\d+) discarded(?: \(.*\))? \+ (\d+) free")


NAME = f"--experiment={EXPERIMENT.name}"
OPEN = ("--env=CartPole-v1", NAME, "--num_workers=2", "--num_envs_per_worker=4", "--seed=1", "--updates=fast")
"""A small run; whether its rollout workers act for themselves is left open."""
CARTPOLE = (*OPEN, "--policy_workers_per_policy=1")


def shared_memory() -> set[str]:
    """The names in shared memory."""
    return set(os.listdir("/dev/shm"))


def expect_no_shared_memory_but(before: set[str], within_s: float = 5.0) -> None:
    """A name is left behind if it stays and no other process has it mapped: tests beside this one make some too."""
    left, deadline = shared_memory() - before, time.monotonic() + within_s
    while left := (left & shared_memory()) - _mapped_by_others(left):
        assert time.monotonic() < deadline, f"shared memory was left behind: {left}"
        time.sleep(0.02)


def _mapped_by_others(names: set[str]) -> set[str]:
    """Found by device and number of the file: a semaphore is mapped before it has its name."""
    files = {}
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            file = os.stat(f"/dev/shm/{name}")
            files[f" {os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x} {file.st_ino} "] = name
    mapped = set()
    for process in psutil.pids() if files else ():
        if process != os.getpid():
            with contextlib.suppress(OSError):
                maps = Path(f"/proc/{process}/maps").read_text(errors="replace")
                mapped |= {name for file, name in files.items() if file in maps}
    return mapped


@dataclass
class Finished:
    """How a command ended."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def books(self) -> list[str]:
        """What the runs of this command say of their trajectories at the end."""
        return [line for line in self.lines if "Slots: " in line]


@dataclass
class Running:
    """A command that runs; its output goes to files."""

    process: subprocess.Popen[bytes] | ForkedCommand
    out_file: Path
    err_file: Path
    started: float = field(default_factory=time.monotonic)
    started_at: float = field(default_factory=time.time)
    """By the clock that curves have."""
    mark: str = ""
    """Value of MARK in the environment of processes that a launcher puts into sessions of their own."""

    @property
    def out(self) -> str:
        return self.out_file.read_text()

    def members(self) -> list[psutil.Process]:
        """Every process of the session, or with the mark; dead ones excluded."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                is_ours = os.getsid(process.pid) == self.process.pid or (self.mark and self._has_mark(process))
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def _has_mark(self, process: psutil.Process) -> bool:
        return process.environ().get(MARK) == self.mark

    def named(self, title: str) -> list[psutil.Process]:
        """The processes of the session that show this name, without what an environment has forked and shows it too."""
        found = {}
        for process in self.members():
            with contextlib.suppress(psutil.Error):
                shown = "".join(process.cmdline()[:1])  # nothing of one that has just died
                if shown.startswith(title):
                    found[process.pid] = process, process.ppid(), shown
        return [one for one, parent, shown in found.values() if parent not in found or found[parent][2] != shown]

    def resident_mib(self, titles: Sequence[str]) -> dict[str, float]:
        """Memory of the processes of each name."""
        return {title: sum(one.memory_info().rss for one in self.named(title)) / 2**20 for title in titles}

    def wait_for(self, condition: Callable[[], object], what: str, timeout_s: float = TIMEOUT_S) -> None:
        """Waits until a condition holds, and fails if the command ends before."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if self.process.poll() is not None:
                assert condition(), f"ended before {what}:\n{self.out}\n{self.err_file.read_text()}"
                return
            assert time.monotonic() < deadline, f"waited {timeout_s:.0f} s for {what}:\n{self.out}"
            time.sleep(0.02)

    def wait_for_text(self, text: str) -> None:
        self.wait_for(lambda: text in self.out, repr(text))

    def finish(self, timeout_s: float = TIMEOUT_S) -> Finished:
        """Waits for the end; then no process of the session may be alive, and the books of a run balance."""
        code = self.process.wait(timeout_s)
        seconds = time.monotonic() - self.started
        self.expect_nobody(5.0)
        finished = Finished(code, self.out, self.err_file.read_text(), seconds)
        assert finished.books or "Collected {" not in finished.out, "a run that has ended shows its books"
        for line in finished.books:
            found = LEDGER.search(line)
            assert found, line
            allocated, *ends = map(int, found.groups())
            assert allocated == sum(ends), line
        return finished

    def expect_nobody(self, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while alive := self.members():
            assert time.monotonic() < deadline, f"still alive: {alive}"
            time.sleep(0.02)


@contextlib.contextmanager
def started(path: Path, *command_line: str, python_path: str = ROOT, mark: str = "") -> Iterator[Running]:
    """Starts a program; kills its session at the end of the block whatever happened, and checks for shared memory."""
    environment = os.environ | {"PYTHONPATH": python_path} | ({MARK: mark} if mark else {})

    def start(out: int, err: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*LAUNCH, *command_line],
            stdout=out, stderr=err, stdin=subprocess.DEVNULL, start_new_session=True, cwd=path, env=environment,
        )  # fmt: skip

    with _watched(path, start, mark) as command:
        yield command


@contextlib.contextmanager
def running(
    path: Path,
    *arguments: str,
    module: str = "sf.cli.train",
    python_path: str = ROOT,
    in_new_python: bool = False,
) -> Iterator[Running]:
    """Starts a command of sf, see `started`; a training has the name that the tests look for if it is given none.

    It is a fork of a Python that has loaded torch, see `tests.helpers.starter`.
    """
    names = [word for word in arguments if word.startswith("--experiment=")]
    if module == "sf.cli.train" and not names and "--help" not in arguments:
        arguments = (*arguments, NAME)
    if len(names) > 1:
        arguments = tuple(word for word in arguments if word != NAME)
    environment = os.environ | {"PYTHONPATH": python_path}
    if in_new_python or needs_new_python(environment):
        with started(path, sys.executable, "-m", module, *arguments, python_path=python_path) as command:
            yield command
    else:
        with _watched(path, lambda out, err: forked(module, arguments, path, environment, out, err)) as command:
            yield command


@contextlib.contextmanager
def _watched(
    path: Path, start: Callable[[int, int], subprocess.Popen[bytes] | ForkedCommand], mark: str = ""
) -> Iterator[Running]:
    shared_before = shared_memory()
    out, err = path / "out.txt", path / "err.txt"
    with out.open("wb") as out_file, err.open("wb") as err_file:
        process = start(out_file.fileno(), err_file.fileno())
    command = Running(process, out, err, mark=mark)
    try:
        yield command
    finally:
        for member in command.members():
            with contextlib.suppress(psutil.Error):
                member.send_signal(signal.SIGKILL)
        process.wait()
    expect_no_shared_memory_but(shared_before)


def run(
    path: Path,
    *arguments: str,
    module: str = "sf.cli.train",
    timeout_s: float = TIMEOUT_S,
    python_path: str = ROOT,
) -> Finished:
    """Runs a command to its end."""
    path.mkdir(parents=True, exist_ok=True)
    with running(path, *arguments, module=module, python_path=python_path) as command:
        return command.finish(timeout_s)


def fault_run(
    path: Path, *orders: str, num_workers: int = 2, kwargs: dict[str, Any] | None = None, inference: int = 1
) -> tuple[str, ...]:
    """Flags of a run whose environments obey orders, see `tests.environments.fault`; they leave cores for others."""
    directory = path / "orders"
    directory.mkdir(exist_ok=True)
    for order in orders:
        (directory / order).touch()
    arguments = json.dumps({"orders": str(directory), "step_s": 0.001, **(kwargs or {})})
    env = "--env=tests.environments.fault:Fault-v0", NAME, f"--env_kwargs={arguments}", "--seed=1"
    sizes = f"--num_workers={num_workers}", "--num_envs_per_worker=4", f"--policy_workers_per_policy={inference}"
    return (*env, *sizes, "--updates=fast", "--train_for_seconds=3")


SLOW_START = """
import os
import sys
import time
from multiprocessing import spawn

begun, read_job = os.getpid(), spawn._main

def read_late(*arguments):
    if os.getpid() != begun or "spawn_main" in " ".join(sys.orig_argv):
        time.sleep({seconds})
    return read_job(*arguments)

spawn._main = read_late
"""


def start_slowly(path: Path, seconds: float) -> None:
    """Children take so long to read their job where Python looks for modules in this folder, forks of servers too."""
    (path / "sitecustomize.py").write_text(SLOW_START.format(seconds=seconds))


def summary_of(path: Path) -> dict[str, Any]:
    """How the run in the default directory below `path` ended."""
    summary: dict[str, Any] = json.loads((path / EXPERIMENT / "summary.json").read_text())
    return summary


def expect_exact_ledger(path: Path, finished: Finished) -> dict[str, Any]:
    """The law holds in the line for the user, as in that of every command, and in the file."""
    *_, line = LEDGER.finditer(finished.out)
    allocated = int(line[1])
    assert allocated > 0
    slots: dict[str, Any] = summary_of(path)["slots"]
    assert slots["allocated"] == allocated
    assert slots["in_flight"] == summary_of(path)["faults"]["slots/in_flight"] == 0
    return slots


def version_of(command: Running) -> int:
    """The newest that its console or its curves name, 0 before the first one."""
    told = [int(version) for version in re.findall(r"policy_version (\d+)", command.out)[-1:]]
    return max(*told, version_in_curves(command), 0)


def version_in_curves(command: Running) -> int:
    """The newest of this start, whose first point comes after all roles are built."""
    told = []
    for curves in command.out_file.parent.glob("train_dir/*/metrics.jsonl"):
        for line in curves.read_text().splitlines():
            point = json.loads(line) if line.endswith("}") else {}  # the last one may not be complete
            if point.get("time_s", 0) > command.started_at:
                told.append(int(point.get("train/num_sgd_steps", 0)))
    return max(told, default=0)


def wait_for_training(command: Running) -> None:
    """Until all roles of the run are built, which its first point or report shows, and a policy has learned.

    A learner may have learned thousands of times from one worker before another one has begun.
    """

    def learns() -> bool:
        return version_in_curves(command) > 0 or ("Fps is" in command.out and version_of(command) > 0)

    command.wait_for(learns, "training")


def wait_for_more(command: Running) -> None:
    """Training on what is collected from now on: a hundred steps are more than wait to be learned."""
    before = version_of(command)
    command.wait_for(lambda: version_of(command) > before + 100, "more training")


def wait_for_new(command: Running, title: str, old: int) -> None:
    """Until somebody else has this name; it may not have done any work yet."""
    command.wait_for(lambda: [one for one in command.named(title) if one.pid != old], f"a new {title}")


def command_of(process: psutil.Process) -> str:
    """Its command line; "" of one that has ended."""
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def watchdogs(command: Running) -> list[psutil.Process]:
    """Those that live of the processes that end what environments have started."""
    found = []
    for process in command.members():
        with contextlib.suppress(psutil.Error):
            if any(part.endswith("watchdog.py") for part in process.cmdline()):
                found.append(process)
    return found


def wait_for_first_step(command: Running) -> None:
    """Until the learner of a new run has made its first steps."""
    lines = command.out_file.parent / EXPERIMENT / "metrics.jsonl"
    command.wait_for(lambda: lines.is_file() and "train/loss" in lines.read_text(), "the first optimizer step")


def wait_for_saved_steps(command: Running) -> None:
    """Until there is a checkpoint of what was learned; the first one may be older than the first optimizer step."""
    saved = re.compile(r"\(periodic, policy_version [1-9]")
    command.wait_for(lambda: saved.search(command.out), "a checkpoint after an optimizer step")


def newest_version(path: Path) -> int:
    """The version of the newest checkpoint, verified by loading it."""
    from sf.storage.checkpoint import load_newest

    state = load_newest(path / EXPERIMENT / "checkpoint_p0")
    assert state is not None
    return state.version
