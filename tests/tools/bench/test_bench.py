"""`sf-bench`: its figures on real runs, and its sentences for given figures."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sf.cli.bench import main
from sf.config import RunConfig
from sf.errors import ExitCode, UsageError
from sf.monitor import Lag
from sf.processes.process import RUNNING, STOPPING
from sf.run.callbacks import Iteration
from sf.shared.arena import Array
from sf.shared.role import RoleSpec
from sf.shared.topology import Topology
from sf.tools.bench import measurements, roofline
from sf.tools.bench.latency import Percentiles
from sf.tools.bench.probes import ONE_IN, ProbedEnvs
from sf.tools.bench.roofline import Block, Costs
from sf.tools.bench.timings import KEPT, Durations, make_timings
from sf.tools.bench.usage import Usage, shares_of, usage_lines
from sf.tools.bench.verdict import RolloutShares, Shares, verdict
from sf.tools.bench.window import Window
from tests.helpers import commands
from tests.helpers.lab import Lab, make_config, make_lab

TINY = ("--env=CartPole-v1", "--num_workers=2", "--num_envs_per_worker=8", "--rollout=8", "--batch_size=64")


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ([], "must be roofline, train, cost, predict or latency, found nothing"),
            (["speed"], "must be roofline, train, cost, predict or latency, found 'speed'"),
            (["--env=CartPole-v1"], "must be roofline, train, cost, predict or latency, found '--env=CartPole-v1'"),
            (["train"], "--env is missing"),
            (["train", "--env=CartPole-v1", "--num_worker=2"], "Did you mean --num_workers?"),
            (["train", "--env=CartPole-v1", "--train_dir=x"], "keeps nothing that it trains, so --train_dir"),
            (["latency", "--env=CartPole-v1", "--serial_mode=True"], "measures between processes"),
        ],
    )
    def test_refused(self, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(arguments) == ExitCode.USAGE
        out, err = capsys.readouterr()
        assert message in err
        assert not out

    def test_help_names_every_command(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["--help"]) == ExitCode.FINISHED
        out = capsys.readouterr().out
        assert all(name in out for name in ("roofline", "train", "latency"))


class TestRoofline:
    def test_limit_is_cores_over_the_sum_of_the_costs(self) -> None:
        assert Costs(5.0, 1.0, 2.0, cores=2).limit == pytest.approx(250_000)

    def test_costs_are_medians(self) -> None:
        blocks = [Block(1e-6, 2e-6, 3e-6), Block(5e-6, 2e-6, 9e-6), Block(2e-6, 2e-6, 3e-6)]
        found = roofline.costs(blocks, cores=4)
        assert (found.env_us, found.inference_us, found.update_us) == pytest.approx((2.0, 2.0, 3.0))

    @pytest.mark.parametrize(
        ("env", "flags"),
        [
            ("CartPole-v1", {}),
            ("Pendulum-v1", {}),
            ("CartPole-v1", {"use_rnn": True}),
            ("CartPole-v1", {"vectorization": "native", "num_envs_per_worker": 64}),
            ("CartPole-v1", {"num_policies": 2}),
            ("sf/Couriers-v0", {"num_policies": 2}),
            ("CartPole-v1", {"async_rl": True, "num_workers": 2}),
            ("Pendulum-v1", {"policy_workers_per_policy": 0, "worker_num_splits": 2}),
        ],
    )
    def test_every_part_costs_something(self, env: str, flags: dict[str, Any], tmp_path: Path) -> None:
        lab = make_lab(tmp_path, env, **flags)
        arguments = lab.specs[-1].arguments
        blocks = roofline.measure(lab.config, arguments["source"], arguments["context"].info, ({}, {}), seconds=0.0)
        assert len(blocks) == roofline.LEAST_BLOCKS
        assert all(seconds > 0 for block in blocks for seconds in block)

    @pytest.mark.more
    def test_command_prints_the_limit(self, tmp_path: Path) -> None:
        finished = commands.run(tmp_path, "roofline", *TINY, "--train_for_seconds=1", module="sf.cli.bench")
        assert finished.code == ExitCode.FINISHED, finished.err
        assert finished.out.startswith("CPU time per sample"), "what was chosen is no figure"
        assert re.search(r"limit = cores / .* = [\d,]+ samples/s$", finished.out)
        assert {path.name for path in tmp_path.iterdir()} == {"out.txt", "err.txt"}


SHARES = Shares(
    used=0.98,
    others=0.01,
    cpu={"environments": 0.5, "framework": 0.2, "inference": 0.1, "learner": 0.19, "other": 0.01},
    busy={"rollout": 0.9, "inference": 0.4, "learner": 0.6},
    rollout=RolloutShares(0.6, 0.2, 0.2),
)
IDLE = {"used": 0.5, "others": 0.0}


def shares(**changes: Any) -> Shares:
    """Busy cores and heavy environments, but for these changes; a part that is named takes most of the CPU time."""
    if part := changes.pop("part", None):
        changes["cpu"] = dict.fromkeys(SHARES.cpu, 0.1) | {part: 0.6}
    if role := changes.pop("busiest", None):
        changes["busy"] = dict.fromkeys(SHARES.busy, 0.5) | {role: 0.93}
    return replace(SHARES, **changes)


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            shares(),
            "the environments are the limit: they take 50% of the CPU time, the cores are busy, and 75% of what the "
            "rollout workers do is inside env.step; more workers than cores will not help",
        ),
        (
            shares(part="framework"),
            "the rollout workers are the limit: what they do around env.step takes 60% of the CPU time and the cores "
            "are busy; larger groups (--num_envs_per_worker) or --vectorization=native will help",
        ),
        (
            shares(part="inference"),
            "inference is the limit: it takes 60% of the CPU time and the cores are busy; larger groups "
            "(--num_envs_per_worker) make a forward pass cheaper per sample",
        ),
        (
            shares(part="learner"),
            "training is the limit: it takes 60% of the CPU time and the cores are busy; fewer --num_epochs, a larger "
            "--batch_size or a smaller network will help",
        ),
        (
            shares(part="other"),
            "what surrounds the training is the limit: it takes 60% of the CPU time and the cores are busy; fewer "
            "processes and evaluations will help",
        ),
        (
            shares(**IDLE, busiest="rollout", rollout=RolloutShares(0.93, 0.05, 0.02)),
            "the environments are the limit: 93% of rollout time is inside env.step and 50% of the cores' time is "
            "idle; more --num_workers will help",
        ),
        (
            shares(**IDLE, busiest="rollout", rollout=RolloutShares(0.3, 0.6, 0.1)),
            "the rollout workers are the limit: 60% of their time is spent around env.step and 50% of the cores' time "
            "is idle; more --num_workers will help",
        ),
        (
            shares(**IDLE, busiest="inference"),
            "inference is the limit: it is busy 93% of its time and 50% of the cores' time is idle; larger groups "
            "(--num_envs_per_worker) or more --policy_workers_per_policy will help",
        ),
        (
            shares(**IDLE, busiest="learner"),
            "training is the limit: it is busy 93% of its time and 50% of the cores' time is idle; fewer --num_epochs, "
            "a larger --batch_size or more --num_learners will help",
        ),
        (
            shares(**IDLE, busy={"rollout": 0.5, "inference": 0.4, "learner": 0.6}),
            "the processes wait for each other (busy: rollout 50%, inference 40%, learner 60%) and 50% of the cores' "
            "time is idle; larger groups (a larger --num_envs_per_worker in fewer workers) or, at the price of lag, a "
            "larger --num_batches_to_accumulate give them more to do at a time",
        ),
        (
            shares(**IDLE, busy={"rollout": 0.5, "inference": 0.4, "learner": 0.6}, mode="sync"),
            "the processes wait for each other (busy: rollout 50%, inference 40%, learner 60%) and 50% of the cores' "
            "time is idle; --async_rl=True lets them work at the same time",
        ),
        (
            shares(part="inference", could_act=True),
            "inference is the limit: it takes 60% of the CPU time and the cores are busy; larger groups "
            "(--num_envs_per_worker) make a forward pass cheaper per sample; rollout workers can act with so small a "
            "network themselves (--policy_workers_per_policy=0)",
        ),
        (
            shares(mode="serial"),
            "one process does everything (environments 50%, framework 20%, inference 10%, learner 19%, other 1%); "
            "--serial_mode=False uses all cores",
        ),
    ],
)
def test_verdict(found: Shares, sentence: str) -> None:
    assert verdict(found) == sentence


START = Usage(
    wall=100.0,
    samples=1000.0,
    machine=50.0,
    cpu={"supervisor": 1.0, "learner-0": 10.0, "inference-0-0": 5.0, "rollout-0": 20.0, "rollout-1": 20.0},
    activities={
        "rollout-0": {"step": 10.0, "wait": 5.0, "write": 5.0},
        "rollout-1": {"step": 10.0, "wait": 5.0, "write": 5.0},
        "inference-0-0": {"forward": 3.0, "wait": 10.0},
        "learner-0": {"update": 9.0, "wait": 1.0},
    },
    timed=1.0,
    inside=0.5,
)
END = Usage(
    wall=110.0,
    samples=51_000.0,
    machine=69.0,
    cpu={"supervisor": 1.5, "learner-0": 15.0, "inference-0-0": 7.5, "rollout-0": 25.0, "rollout-1": 25.0},
    activities={
        "rollout-0": {"step": 15.0, "wait": 9.0, "write": 6.0},
        "rollout-1": {"step": 15.0, "wait": 9.0, "write": 6.0},
        "inference-0-0": {"forward": 6.0, "wait": 17.0},
        "learner-0": {"update": 17.0, "wait": 3.0},
    },
    timed=3.0,
    inside=2.0,
)


class TestUsage:
    def test_shares_between_two_moments(self) -> None:
        usage = END.since(START)
        assert usage.samples_per_s == pytest.approx(5000)
        found = shares_of(usage, cores=2, mode="async")
        assert found.used == pytest.approx(0.9)
        assert found.others == pytest.approx(0.05)
        assert found.idle == pytest.approx(0.05)
        assert found.rollout == pytest.approx((0.375, 0.225, 0.4, 0.0))  # three quarters of a step are inside
        assert found.busy == pytest.approx({"rollout": 0.6, "inference": 0.3, "learner": 0.8})
        parts = {"environments": 0.625 / 1.8, "framework": 0.375 / 1.8, "inference": 0.25 / 1.8, "learner": 0.5 / 1.8}
        assert found.cpu == pytest.approx(parts | {"other": 0.05 / 1.8})

    def test_rollout_workers_that_act_do_the_work_of_inference(self) -> None:
        changed = []
        for usage, acting in ((START, 1.0), (END, 4.0)):
            cpu = {name: seconds for name, seconds in usage.cpu.items() if name != "inference-0-0"}
            activities = {name: dict(own) for name, own in usage.activities.items() if name in cpu}
            for name in ("rollout-0", "rollout-1"):
                activities[name]["wait"] -= acting
                activities[name]["act"] = acting
            changed.append(replace(usage, cpu=cpu, activities=activities))
        found = shares_of(changed[1].since(changed[0]), cores=2, mode="async")
        assert found.rollout == pytest.approx((0.375, 0.225, 0.1, 0.3))
        assert found.busy == pytest.approx({"rollout": 0.9, "learner": 0.8})
        rollout, total = 10.0, 15.5
        assert found.cpu["inference"] == pytest.approx(rollout / total / 3)
        assert found.cpu["environments"] == pytest.approx(rollout / total * 0.375 / 0.9)
        assert sum(found.cpu.values()) == pytest.approx(1)

    def test_a_process_that_reported_nothing_in_between_has_a_line(self) -> None:
        silent = dict(START.activities) | {"rollout-1": END.activities["rollout-1"]}
        usage = END.since(replace(START, activities=silent))
        lines = usage_lines(usage, shares_of(usage, cores=2, mode="async"))
        assert [line.split()[3:] for line in lines if line.startswith("rollout-1")] == [["nothing", "reported"]]
        assert [line.split()[3:] for line in lines if line.startswith("supervisor")] == [[]]
        assert next(line for line in lines if line.startswith("rollout workers:")).endswith("70.0% waiting")

    def test_one_process_divides_its_time_by_what_the_roles_did(self) -> None:
        main_only = replace(START, cpu={"supervisor": 0.0}), replace(END, cpu={"supervisor": 10.0})
        found = shares_of(main_only[1].since(main_only[0]), cores=1, mode="serial")
        assert found.cpu["learner"] == pytest.approx(8 / 23)  # the roles say more than the clock of the process
        assert sum(found.cpu.values()) == pytest.approx(1)


class Counting:
    """An instrument that says how often it was read."""

    def __init__(self) -> None:
        self.reads = 0

    def attach(self, shared: Any, specs: list[RoleSpec]) -> list[RoleSpec]:
        return specs

    def read(self) -> int:
        self.reads += 1
        return self.reads


class TestWindow:
    @pytest.fixture
    def lab(self, tmp_path: Path) -> Lab:
        return make_lab(tmp_path)

    def iterations(self, lab: Lab, times: list[float], monkeypatch: pytest.MonkeyPatch) -> Window[int]:
        """A window that saw iterations end at these times, in a run of 20 s whose processes end at 30."""
        window = Window(Counting(), RunConfig("x", train_for_seconds=20))
        window.attach(lab.shared, lab.specs)
        for now in times:
            monkeypatch.setattr("sf.tools.bench.window.time.monotonic", lambda now=now: now)
            lab.shared.run_state[0] = RUNNING if now < 30.0 else STOPPING
            window.on_iteration(Iteration(0, 0, 0, 0, None, Lag()))
        return window

    def test_leaves_out_the_start_and_what_follows_too_closely(self, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
        window = self.iterations(lab, [10.0, 14.9, 15.1, 15.2, 20.0, 29.0], monkeypatch)
        assert window.ends() == (1, 3)

    def test_leaves_out_the_end(self, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
        window = self.iterations(lab, [10.0, 16.0, 29.0, 31.0], monkeypatch)
        assert window.ends() == (1, 2)

    def test_refuses_a_run_that_was_too_short(self, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
        window = self.iterations(lab, [10.0, 16.0], monkeypatch)
        with pytest.raises(UsageError, match=r"after the first 5 s, and 1 did with --train_for_seconds=20\. Give"):
            window.ends()


def test_probes_see_what_is_inside_the_environments_and_change_nothing(tmp_path: Path) -> None:
    lab = make_lab(tmp_path)
    envs = lab.build("rollout").groups[0].envs
    plain, seconds = list(envs.envs), np.zeros(2)
    probed = ProbedEnvs(envs, seconds)
    observations = {key: array[0, 0] for key, array in lab.slots.observations.items()}
    probed.reset(observations)
    actions, rewards = np.zeros_like(lab.slots.actions[0, 0]), lab.slots.rewards[0, 0]
    for _ in range(ONE_IN - 1):
        probed.step(actions, observations, rewards)
    assert not seconds.any()
    probed.step(actions, observations, rewards)
    whole, inside = seconds
    assert 0 < inside < whole
    assert envs.envs == plain
    probed.close()


TOPOLOGY = Topology(
    num_workers=2, groups_per_worker=2, envs_per_group=4, agents_per_env=1, rollout=8, slots_per_group=2,
    num_policies=1, inference_per_policy=2,
)  # fmt: skip


class TestDurations:
    def durations(self) -> Durations:
        return Durations(make_timings(TOPOLOGY), "request")

    def test_gives_what_came_after_the_counts_of_all_workers(self) -> None:
        durations = self.durations()
        durations.add(0, np.array([1, 2]))
        durations.add(1, np.array([10]))
        counts = durations.counts()
        durations.add(0, np.array([3]))
        durations.add(1, np.array([11, 12]))
        assert durations.since(counts).tolist() == [3, 11, 12]

    def test_keeps_the_newest(self) -> None:
        durations = self.durations()
        for first in range(0, KEPT + 20, KEPT // 2 + 10):
            durations.add(0, np.arange(first, first + KEPT // 2 + 10))
        assert (durations.since(np.zeros(2, np.int64)) == np.arange(20, KEPT + 20)).all()

    @pytest.mark.parametrize(
        ("nanoseconds", "expected"),
        [
            (np.arange(101) * 1_000_000, Percentiles(50.0, 90.0, 99.0, 100.0, 101)),
            (np.array([2_500_000]), Percentiles(2.5, 2.5, 2.5, 2.5, 1)),
        ],
    )
    def test_percentiles(self, nanoseconds: Array, expected: Percentiles) -> None:
        assert Percentiles.of(nanoseconds) == pytest.approx(expected)

    def test_percentiles_of_nothing(self) -> None:
        assert np.isnan(Percentiles.of(np.zeros(0))[:4]).all()


@pytest.fixture
def own_signals() -> Iterator[None]:
    """A run in this process takes SIGTERM for itself."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def as_long_as_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run ends when two readings have been taken, however long the machine takes for that."""
    look = Window.on_iteration

    def on_iteration(self: Window[Any], iteration: Iteration) -> bool:
        look(self, iteration)
        return len(self._readings) == 2

    monkeypatch.setattr(Window, "on_iteration", on_iteration)
    monkeypatch.setattr("sf.tools.bench.window.LONGEST_WARM_UP_S", 0.75)


def tiny_config(**flags: Any) -> Any:
    return make_config(num_workers=2, async_rl=True, batch_size=64, train_for_seconds=600, **flags)


@pytest.mark.more
@pytest.mark.usefixtures("own_signals", "as_long_as_needed")
@pytest.mark.parametrize(("serial", "inference"), [(False, 1), (True, 1), (False, 0)])
def test_train_measures_a_run(serial: bool, inference: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "_blocks", lambda *_: [Block(5e-6, 2e-6, 3e-6)])
    config = tiny_config(serial_mode=serial, policy_workers_per_policy=inference)
    printed = "\n".join(measurements.train(config))
    assert (found := re.search(r"CartPole-v1: ([\d,]+) samples/s over [\d.]+ s, (\d+)% of the limit$", printed, re.M))
    assert int(found[1].replace(",", "")) > 0
    names = {"rollout-0", "rollout-1", "learner-0", "supervisor"} | ({"inference-0-0"} if inference else set())
    rows = {line.split()[0]: line for line in printed.splitlines() if line.split()[:1] and line.split()[0] in names}
    assert rows.keys() == names
    shares_of_cores = [row.split()[1] for row in rows.values()]
    assert all("%" in share for share in shares_of_cores) or serial
    cpu = [float(row[2].rstrip("%")) for row in map(str.split, rows.values()) if "%" in row[1] and "%" in row[2]]
    assert sum(cpu) == pytest.approx(100, abs=1)
    line = next(line for line in printed.splitlines() if line.startswith("rollout workers: "))
    shares = [float(share) for share in re.findall(r"([\d.]+)%", line)]
    assert sum(shares) == pytest.approx(100, abs=1)
    assert shares[0] > 0
    assert len(shares) == (3 if inference else 4)
    assert printed.splitlines()[-1].startswith("verdict: ")


@pytest.mark.more
@pytest.mark.usefixtures("own_signals", "as_long_as_needed")
@pytest.mark.parametrize("inference", [1, 0])
def test_latency_gives_all_percentiles(inference: int) -> None:
    header, *rows = measurements.latency(tiny_config(policy_workers_per_policy=inference))
    assert header.split() == ["milliseconds", "p50", "p90", "p99", "max", "events"]
    assert [row[:23].strip() for row in rows] == ["publication → first use", "request → action"]
    for row in rows:
        *times, events = (float(figure.replace(",", "")) for figure in row[23:].split())
        assert times[0] > 0
        assert times == sorted(times)
        assert events > 0
