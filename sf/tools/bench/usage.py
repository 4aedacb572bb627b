"""The use of the machine by each process, between two moments of a run."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from sf.config import Config
from sf.machine.cores import allowed_cores, usable_cores
from sf.monitor.time_shares import ACT, WAIT, Seconds, shares_text
from sf.processes.process import PREFIX
from sf.run.run_records import RunRecords
from sf.run.wiring import Shared
from sf.shared.role import RoleSpec
from sf.tools.bench.probes import make_probes
from sf.tools.bench.verdict import ROLES, Mode, Part, Role, RolloutShares, Shares

MAIN = "supervisor"
DISTURBED = 0.2
"""Share of the cores that other programs may take before the figures say little."""


@dataclass(frozen=True)
class Usage:
    """Counters at one moment, or what they have grown by since another one; all in seconds but the samples."""

    wall: float
    samples: float
    """Learned from."""
    machine: float
    """CPU time of the cores that the run may use, by any program."""
    cpu: Mapping[str, float]
    """CPU time by process."""
    activities: Seconds
    """Time by activity, for every role."""
    timed: float
    """Time of the environment steps that were looked into."""
    inside: float
    """Part of these inside the environments."""

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.wall

    def since(self, earlier: Usage) -> Usage:
        return Usage(
            self.wall - earlier.wall,
            self.samples - earlier.samples,
            self.machine - earlier.machine,
            _since(self.cpu, earlier.cpu),
            {name: _since(own, earlier.activities[name]) for name, own in self.activities.items()},
            self.timed - earlier.timed,
            self.inside - earlier.inside,
        )


class Meter:
    """Reads the usage of a run that it is attached to."""

    def __init__(self, config: Config):
        assert config.rollout.num_workers is not None
        self.config = config
        self.probes = make_probes(config.rollout.num_workers)

    def attach(self, shared: Shared, specs: list[RoleSpec]) -> list[RoleSpec]:
        """The roles with probes in them."""
        self.records = RunRecords(shared, has_evaluator=self.config.evaluation.eval_every_steps > 0)
        instead = {"sf.rollout.worker:RolloutWorker": "sf.tools.bench.probes:ProbedWorker"}
        return [spec.with_factories(instead, probes=self.probes) for spec in specs]

    def read(self) -> Usage:
        frames = sum(record.read()["env_steps"] for record in self.records.first_learners)
        timed, inside = self.probes["probes"].sum(axis=0).tolist()
        samples = frames / self.config.rollout.frames_per_step
        return Usage(time.monotonic(), samples, machine_cpu(), cpu_by_process(), self.records.seconds(), timed, inside)


def cpu_by_process() -> dict[str, float]:
    """CPU seconds of this process and of its children by name, each with the processes that it has started itself."""
    main = psutil.Process()
    names, seconds = {main.pid: MAIN}, defaultdict[str, float](float)
    for process in [main, *main.children(recursive=True)]:  # parents come before their children
        with contextlib.suppress(psutil.Error):  # it has ended
            name = names.setdefault(process.pid, _role_of(process) or names.get(process.ppid(), MAIN))
            times = process.cpu_times()
            seconds[name] += times.user + times.system
    return seconds


def _role_of(process: psutil.Process) -> str:
    """The name that it shows in the process list; empty if it is none of ours."""
    words = " ".join(process.cmdline()).split()
    return words[0].removeprefix(PREFIX) if words and words[0].startswith(PREFIX) else ""


def machine_cpu() -> float:
    """CPU seconds that were used on the cores of this process, by other virtual machines on them too.

    0 where a quota is smaller than these cores, since other processes take nothing of a quota.
    """
    cores = allowed_cores()
    if usable_cores() < len(cores):
        return 0.0
    times = [core for index, core in enumerate(psutil.cpu_times(percpu=True)) if index in cores]
    return sum(core.user + core.nice + core.system + core.irq + core.softirq + core.steal for core in times)


def shares_of(usage: Usage, cores: int, mode: Mode) -> Shares:
    """The shares that the verdict is based on."""
    own, available = sum(usage.cpu.values()), usage.wall * cores
    busy = {role: _busy(usage, role) for role in ROLES if _work(usage, role)}
    in_envs, acting = _in_envs(usage), _acting(usage)
    rollout = busy["rollout"]
    return Shares(
        used=own / available,
        others=max(0.0, usage.machine - own) / available,
        cpu=_cpu_by_part(usage, in_envs, acting),
        busy=busy,
        rollout=RolloutShares(rollout * in_envs, rollout * (1 - in_envs - acting), 1 - rollout, rollout * acting),
        mode=mode,
    )


def usage_lines(usage: Usage, shares: Shares) -> list[str]:
    """A table with a line for each process, and the work of the rollout workers and the cores."""
    own = sum(usage.cpu.values()) or 1.0  # perhaps no process has had a whole tick of the clock
    names = [*usage.activities, *(name for name in usage.cpu if name not in usage.activities)]
    width = max(len(name) for name in names)
    table = [f"{'process':<{width}}  of a core  of the run's CPU time  its time"]
    for name in names:
        cpu = usage.cpu.get(name)
        figures = f"{'':>9}  {'':>22}" if cpu is None else f"{cpu / usage.wall:>9.1%}  {cpu / own:>22.1%}"
        its_time = shares_text(usage.activities[name]) if name in usage.activities else ""
        table.append(f"{name:<{width}}  {figures}  {its_time}".rstrip())
    rollout = shares.rollout
    return [
        *table,
        f"rollout workers: {rollout.inside:.1%} inside env.step, {rollout.framework:.1%} framework, "
        f"{rollout.waiting:.1%} waiting" + (f", {rollout.acting:.1%} acting" if rollout.acting else ""),
        f"cores: {shares.used:.1%} this run, {shares.others:.1%} other programs, {shares.idle:.1%} idle",
        *disturbed(shares),
    ]


def disturbed(shares: Shares) -> list[str]:
    """A line where other programs took so much that figures say little."""
    told = f"Other programs took {shares.others:.0%} of the cores: measure again without them."
    return [told] if shares.others > DISTURBED else []


def _since(now: Mapping[str, float], earlier: Mapping[str, float]) -> dict[str, float]:
    return {name: value - earlier.get(name, 0.0) for name, value in now.items()}


def _work(usage: Usage, role: Role) -> dict[str, dict[str, float]]:
    """Seconds in which the processes of a role did anything but wait, by process and activity."""
    return {
        name: {activity: seconds for activity, seconds in activities.items() if activity != WAIT}
        for name, activities in usage.activities.items()
        if name.split("-")[0] == role
    }


def _busy(usage: Usage, role: Role) -> float:
    """Share of the time; time that a process has not reported when the window ends is a wait that lasts."""
    work = _work(usage, role)
    return min(1.0, sum(sum(own.values()) for own in work.values()) / (usage.wall * len(work)))


def _in_envs(usage: Usage) -> float:
    """Share of the work of all rollout workers that is spent inside the environments."""
    work = _work(usage, "rollout").values()
    steps, total = sum(own["step"] for own in work), sum(sum(own.values()) for own in work)
    inside = usage.inside / usage.timed if usage.timed else 1.0
    return steps * inside / total if total else 0.0


def _acting(usage: Usage) -> float:
    """Share of the work of all rollout workers that is choosing actions, which they may leave to others."""
    work = _work(usage, "rollout").values()
    total = sum(sum(own.values()) for own in work)
    return sum(own.get(ACT, 0.0) for own in work) / total if total else 0.0


def _cpu_by_part(usage: Usage, in_envs: float, acting: float) -> dict[Part, float]:
    """Shares of the CPU time; in serial mode, where one process does everything, of the time."""
    seconds = {
        role: sum(usage.cpu.get(name, sum(own.values())) for name, own in _work(usage, role).items()) for role in ROLES
    }
    total = max(sum(usage.cpu.values()), sum(seconds.values())) or 1.0
    rollout, inference, learner = (seconds[role] / total for role in ROLES)
    return {
        "environments": rollout * in_envs,
        "framework": rollout * (1 - in_envs - acting),
        "inference": inference + rollout * acting,
        "learner": learner,
        "other": 1.0 - rollout - inference - learner,
    }
