"""`sf-bench`: its command, its instruments, and its figures on real runs."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sf.cli.bench import main
from sf.config import RunConfig
from sf.errors import ExitCode, UsageError
from sf.monitor import Lag
from sf.plugins import NOTHING
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
        blocks = roofline.measure(lab.config, arguments["source"], arguments["context"].info, NOTHING, seconds=0.0)
        assert len(blocks) == roofline.LEAST_BLOCKS
        assert all(seconds > 0 for block in blocks for seconds in block)

    @pytest.mark.more
    def test_command_prints_the_limit(self, tmp_path: Path) -> None:
        finished = commands.run(tmp_path, "roofline", *TINY, "--train_for_seconds=1", module="sf.cli.bench")
        assert finished.code == ExitCode.FINISHED, finished.err
        assert finished.out.startswith("CPU time per sample"), "what was chosen is no figure"
        assert re.search(r"limit = cores / .* = [\d,]+ samples/s$", finished.out)
        assert {path.name for path in tmp_path.iterdir()} == {"out.txt", "err.txt"}


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
