"""Every transition carries the version of the weights that chose its action, under stress and with real processes."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from sf.config import check
from sf.envs import find_env, probe
from sf.errors import ExitCode
from sf.processes.servers import ForkServers
from sf.processes.signals import Signals, noted_signals
from sf.run.sizes import resolve
from sf.run.supervisor import run
from sf.run.wiring import wire
from sf.shared.arena import Arena
from sf.shared.records import learner_record
from sf.shared.role import RoleSpec
from sf.storage.experiment import Experiment
from tests.helpers.lab import make_config
from tests.helpers.stamping import A2CLearner, RecordingLearner, SlowLearner, StampingLearner, worker_with_free_envs


def run_with(
    path: Path, learner: RoleSpec, env: str, free_envs: bool, killer: Killer | None = None, **flags: Any
) -> dict[str, Any]:
    """Runs real processes around another learner; returns what it wrote into its report."""
    config = make_config(env, train_dir=str(path), **flags)
    check(config)
    source = find_env(config.run.env, config.run.env_arguments)
    info = probe(source)
    config = resolve(config, info, cores=2)
    check(config, info)
    experiment = Experiment(config.run.train_dir, config.run.experiment, config.run.restart_behavior)
    report = path / "report.json"

    def changed(spec: RoleSpec) -> RoleSpec:
        if spec.name.startswith("learner"):
            return replace(learner, arguments=spec.arguments | learner.arguments | {"report": report})
        return replace(spec, factory=worker_with_free_envs) if free_envs and spec.name.startswith("rollout") else spec

    try:
        shared, specs = wire(config, info, source, experiment)
        with noted_signals(second_one_exits=False) as signals, ForkServers() as servers:
            if killer is not None:
                killer.arena, killer.signals, killer.begun = shared.arena, signals, experiment.path / "config.json"
            specs = [changed(spec) for spec in specs]
            end = run(config, shared, specs, experiment, signals, servers)
            assert end.code == (0 if killer is None else ExitCode.SIGTERM)
    finally:
        experiment.close()
        if killer is not None:
            killer.is_over.set()
    facts: dict[str, Any] = json.loads(report.read_text())
    return facts


def stamped_run(path: Path, transitions: int, publishes_always: bool = True, **flags: Any) -> dict[str, Any]:
    """Labels checked by a stamping learner, with environments that cost nothing."""
    shape = {"num_workers": 2, "num_envs_per_worker": 64, "rollout": 16, "batch_size": 2048, "async_rl": True}
    learner = RoleSpec("learner-0", StampingLearner, {"publishes_always": publishes_always}, "learner", 0)
    return run_with(path, learner, "Pendulum-v1", True, **(shape | {"train_for_env_steps": transitions} | flags))


@pytest.mark.more
def test_a5_a8_staircase_with_processes(tmp_path: Path, oracles: dict[str, Any]) -> None:
    """Exact integers at every optimizer step: 0 ... F - 1, and all labels of an iteration are its first version."""
    for index, case in enumerate(oracles["A8"]["cases"]):
        inputs, expected = dict(case["inputs"]), case["expected"]
        inputs.pop("agents_per_env")
        iterations = 8
        limit = {"async_rl": False, "train_for_env_steps": iterations * expected["samples_per_round"]}
        learner = RoleSpec("learner-0", RecordingLearner, {}, "learner", 0)
        facts = run_with(tmp_path / str(index), learner, "CartPole-v1", False, **(inputs | limit))
        staircase = [[n, n, n] for n in range(expected["F"])]
        assert facts["lags"] == staircase * iterations
        assert facts["labels"] == [[n * expected["F"]] * 2 for n in range(iterations)]


@pytest.mark.more
@pytest.mark.parametrize("inference", [1, 0])
def test_a3_a14_no_label_is_ever_wrong_under_stress(tmp_path: Path, inference: int) -> None:
    """The learner publishes all the time while others act; a million transitions."""
    flags: dict[str, Any] = {"policy_workers_per_policy": inference}
    facts = stamped_run(tmp_path, transitions=1_000_000, **flags)
    assert facts["wrong"] == 0
    assert facts["checked"] > 990_000
    assert facts["mixed"] > 1000, "trajectories should hold several versions, or nothing was put to the test"
    assert facts["version"] > 10_000


class Killer(threading.Thread):
    """Kills a rollout or inference worker of this process at a random moment whenever the learner has got on.

    When it gets on after the last kill the run is told to end.
    """

    def __init__(self, kills: int) -> None:
        super().__init__(daemon=True)
        self.kills = kills
        self.killed: list[str] = []
        self.arena: Arena | None = None
        self.signals: Signals | None = None
        self.begun: Path | None = None
        """Is there once all roles are ready; before, the books of a run are not kept."""
        self.is_over = threading.Event()

    def run(self) -> None:
        dice, frames = random.Random(1), 0.0
        while not self.is_over.wait(dice.uniform(0.0, 0.5)):
            if self.arena is None or self.begun is None or not self.begun.exists():
                continue
            now = learner_record(self.arena, 0).read()["env_steps"]
            if now <= frames:
                continue
            if len(self.killed) == self.kills:
                assert self.signals is not None
                self.signals.received.append(signal.SIGTERM)
                return
            names = {one: title_of(one) for one in psutil.Process().children(recursive=True)}
            victims = [one for one, name in names.items() if name.startswith(("sf-rollout", "sf-inference"))]
            with contextlib.suppress(psutil.Error, IndexError):
                victim = dice.choice(victims)
                victim.kill()
                self.killed.append(names[victim])
                frames = now


def title_of(process: psutil.Process) -> str:
    """What it shows in the process list; empty if it has just ended, or was left behind by another test."""
    with contextlib.suppress(psutil.Error, IndexError):
        return process.cmdline()[0].split()[0]
    return ""


@pytest.mark.more
@pytest.mark.parametrize("kills", [6, pytest.param(40, marks=pytest.mark.slow)])
def test_fault_a2_a3_a7_no_torn_row_is_learned_while_workers_are_killed(tmp_path: Path, kills: int) -> None:
    """Real kills: every action that is learned was chosen by the policy that its label names."""
    killer = Killer(kills)
    killer.start()
    flags: dict[str, Any] = {"train_for_seconds": 300, "max_restarts": 1000}
    facts = stamped_run(tmp_path, transitions=10**9, killer=killer, **flags)
    killer.join()
    assert len(killer.killed) == kills
    slots = json.loads((tmp_path / "default_experiment" / "summary.json").read_text())["slots"]
    assert slots["allocated"] == slots["learned"] + sum(slots["discarded"].values()) + slots["free"]
    assert facts["wrong"] == 0
    assert facts["checked"] > 2048 * (kills - 3), (
        "a dataset before each kill; two may be of version 0, all slots there are"
    )


@pytest.mark.slow
def test_a3_a14_millions_of_transitions(tmp_path: Path) -> None:
    facts = stamped_run(tmp_path, transitions=5_000_000)
    assert facts["wrong"] == 0
    assert facts["checked"] > 4_990_000


@pytest.mark.more
@pytest.mark.parametrize("inference", [1, 0])
def test_a29_serial_mode_gives_the_same_labels_as_processes(tmp_path: Path, inference: int) -> None:
    flags = {"async_rl": False, "batch_size": 1024, "num_envs_per_worker": 64, "policy_workers_per_policy": inference}
    serial = stamped_run(tmp_path / "serial", 20 * 1024, False, num_workers=1, serial_mode=True, **flags)
    processes = stamped_run(tmp_path / "processes", 20 * 1024, False, num_workers=1, **flags)
    assert serial == processes
    assert serial["lags"] == [0]
    assert serial["version"] == 20


@pytest.mark.more
def test_a10_b_every_label_is_the_iteration_with_processes(tmp_path: Path) -> None:
    """One publication per dataset in sync mode: zero lag for every transition, over 200 iterations and more."""
    facts = stamped_run(tmp_path, transitions=420_000, publishes_always=False, async_rl=False)
    assert facts["version"] >= 200
    assert facts["wrong"] == facts["mixed"] == 0
    assert facts["lags"] == [0]


@pytest.mark.more
@pytest.mark.parametrize("inference", [1, 0])
def test_a10_zero_lag_a2c_with_processes(tmp_path: Path, inference: int) -> None:
    """All six statements at each of 200 optimizer steps of the real learner."""
    shape: dict[str, Any] = {"num_workers": 2, "num_envs_per_worker": 8, "rollout": 16, "async_rl": False}
    learner = RoleSpec("learner-0", A2CLearner, {}, "learner", 0)
    limit = {"train_for_env_steps": 200 * 256, "policy_workers_per_policy": inference, "strict": True}
    facts = run_with(tmp_path, learner, "CartPole-v1", False, max_grad_norm=0.0, **(shape | limit))
    assert len(facts["lags"]) == len(facts["labels"]) >= 200  # (a)
    assert facts["labels"] == [[t, t] for t in range(len(facts["labels"]))]  # (b)
    assert all(lag == [0.0, 0.0, 0.0] for lag in facts["lags"])  # (c)
    for summary in facts["summaries"]:  # (d)
        assert summary["ratio_min"] == pytest.approx(1, abs=1e-5)
        assert summary["ratio_max"] == pytest.approx(1, abs=1e-5)
        assert summary["fraction_clipped"] == 0
        assert summary["kl_divergence"] == pytest.approx(0, abs=1e-6)
    assert len(facts["gradient_errors"]) == len(facts["lags"])  # (e)
    assert max(facts["gradient_errors"]) <= 1e-5
    assert facts["samples"] == [256 * (t + 1) for t in range(len(facts["samples"]))]  # (f)


@pytest.mark.alone
def test_a26_async_collects_while_it_trains_with_processes(tmp_path: Path) -> None:
    """Environments sleep about as long as the learner: asynchronous mode is at least 1.3 times as fast."""
    shape: dict[str, Any] = {"num_workers": 2, "num_envs_per_worker": 4, "rollout": 16, "batch_size": 128}
    rates = {}
    for is_async in (False, True):
        learner = RoleSpec("learner-0", SlowLearner, {"train_s": 0.12}, "learner", 0)
        limit = {"async_rl": is_async, "train_for_env_steps": 30 * 128, "env_kwargs": '{"step_s": 0.002}'}
        facts = run_with(
            tmp_path / str(is_async), learner, "tests.environments.fault:Fault-v0", False, **(shape | limit)
        )
        times = facts["trained_at"][5:]
        rates[is_async] = 128 * (len(times) - 1) / (times[-1] - times[0])
    assert rates[True] >= 1.3 * rates[False], rates
