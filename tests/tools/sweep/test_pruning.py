"""Hopeless runs are found by their curves, ended, and marked; nothing runs them again."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from sf.errors import ExitCode, UsageError
from sf.tools.report.runs import read_run
from sf.tools.sweep.conduct import Queue, drive
from sf.tools.sweep.curves import NUM_STEPS, Axis, at_steps, values_at_steps
from sf.tools.sweep.description import Description
from sf.tools.sweep.pruning import FEWEST_ENDED, FIRST_STEP, KeepAll, MedianPruner, axis_of, make_pruner
from sf.tools.sweep.record import SweepRecord
from sf.tools.sweep.results import table
from sf.tools.sweep.search import make_search
from sf.tools.sweep.trials import TrialOutcome, TrialRun
from tests.helpers.commands import ROOT
from tests.helpers.sweeps import described

END = 1000
FRAMES = f"train_for_env_steps = {END}\n"
GAMMAS = f"{FRAMES}[values]\ngamma = [{', '.join(str(0.9 + index / 100) for index in range(10))}]\n"
BARELY = END * FIRST_STEP // NUM_STEPS
"""Frames from which a run may be pruned."""


def write_curve(run: TrialRun, values: Mapping[int, float], tag: str = "reward/reward") -> None:
    """As a run of one policy does."""
    run.directory.mkdir(parents=True, exist_ok=True)
    points = [
        {"time_s": 100.0 + frames, "policy_id": 0, "frames": frames, tag: value} for frames, value in values.items()
    ]
    (run.directory / "metrics.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))


def begun(path: Path, top: str = "", tables: str = GAMMAS) -> tuple[Description, SweepRecord, Queue]:
    """A sweep with a pruner, with the lines that it says in `said`."""
    description = described(path, tables, top)
    record = SweepRecord(description)
    queue = Queue(description, record, make_search(None, description, record), lambda _: None)
    queue.pruner = MedianPruner(description, record)
    return description, record, queue


def end(queue: Queue, run: TrialRun, value: float) -> None:
    """A run that was at the value all the time."""
    write_curve(run, {0: value, BARELY - 1: value, BARELY: value, END: value})
    queue.ended_run(run, TrialOutcome("finished", ExitCode.FINISHED, value, END, 10.0))


def start(queue: Queue) -> TrialRun:
    run = queue.next_run()
    assert run is not None
    return run


def test_a_step_has_the_value_of_the_first_point_at_or_beyond_it() -> None:
    assert NUM_STEPS == 20
    points = [(0.0, None), (49.0, 1.0), (50.0, 2.0), (60.0, 3.0), (160.0, 4.0), (5000.0, 5.0)]
    assert at_steps(points, 1000.0) == {1: 2.0, 2: 4.0, 3: 4.0, **dict.fromkeys(range(4, 21), 5.0)}
    assert at_steps([(100.0, None), (160.0, 1.0)], 1000.0) == {3: 1.0}, "no episode had ended at steps 1 and 2"
    assert at_steps([], 1000.0) == {}


def test_curves_of_all_policies_are_read_until_the_line_that_is_not_finished(tmp_path: Path) -> None:
    lines = [
        {"time_s": 5.0, "policy_id": 0, "frames": 30, "reward/reward": 1.0, "eval/reward": 7.0},
        {"time_s": 6.0, "policy_id": 1, "frames": 70, "reward/reward": 3.0, "eval/reward": 9.0},
        {"time_s": 9.0, "policy_id": 0, "frames": 130, "reward/reward": None},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "metrics.jsonl").write_text(f'{text}{{"time_s": 11.0, "pol')
    assert values_at_steps(tmp_path, "reward", Axis("frames", 1000)) == {1: 2.0, 2: 2.0, 3: 2.0, 4: 2.0}
    assert values_at_steps(tmp_path, "eval/reward", Axis("frames", 2000)) == {1: 7.0, 2: 7.0}, "that of policy 0"
    assert values_at_steps(tmp_path, "reward", Axis("seconds", 40)) == {1: 2.0, 2: 2.0}
    assert values_at_steps(tmp_path / "nothing", "reward", Axis("seconds", 40)) == {}


@pytest.mark.more
@pytest.mark.parametrize("minimise", [False, True])
def test_a_run_below_the_median_of_those_that_ended_is_hopeless_after_a_quarter(minimise: bool, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    sign = -1 if minimise else 1
    _, record, queue = begun(tmp_path, "minimise = true" if minimise else "")
    for number in reversed(range(FEWEST_ENDED)):
        run = start(queue)
        write_curve(run, {BARELY: sign * float(number)})
        assert not queue.pruner.hopeless([run]), "too few have ended"
        end(queue, run, sign * float(number))
    below, above = start(queue), start(queue)
    for run, value in ((below, 1.5), (above, 2.5)):
        write_curve(run, {0: sign * value, BARELY - 1: sign * value})
    assert not queue.pruner.hopeless([below, above]), "it is too early"
    for run, value in ((below, 1.5), (above, 2.5)):
        write_curve(run, {0: sign * value, BARELY: sign * value})
    assert queue.pruner.hopeless([below, above]) == [below], "the median is 2"
    record.close()


@pytest.mark.more
def test_the_next_start_knows_the_curves_of_those_that_ended(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    _, record, queue = begun(tmp_path)
    for _ in range(FEWEST_ENDED):
        end(queue, start(queue), 5.0)
    record.close()
    _, record, queue = begun(tmp_path)
    run = start(queue)
    assert run.trial == FEWEST_ENDED
    write_curve(run, {BARELY: 4.0})
    assert queue.pruner.hopeless([run]) == [run]
    record.close()


class Job:
    """A run that saves and ends when it is told to."""

    def __init__(self, run: TrialRun, value: float) -> None:
        self.run, self.value, self.is_cancelled = run, value, False
        write_curve(run, {BARELY: value})

    def done(self) -> bool:
        return self.is_cancelled or self.value > 0

    def result(self) -> TrialOutcome:
        if not self.is_cancelled:
            write_curve(self.run, {BARELY: self.value, END: self.value})
            return TrialOutcome("finished", ExitCode.FINISHED, self.value, END, 10.0)
        (self.run.directory / "summary.json").write_text(json.dumps({"policies": [{"reward": self.value}]}))
        return TrialOutcome("stopped", ExitCode.SIGINT, None, BARELY, 2.5)

    def cancel(self) -> None:
        assert not self.is_cancelled, "once is enough"
        self.is_cancelled = True


class NoSignals:
    """None arrives; a select of it returns at once."""

    received: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.file = Path("/dev/zero").open("rb")  # noqa: SIM115  # open as long as the test

    def fileno(self) -> int:
        return self.file.fileno()

    def clear(self) -> None:
        """Nothing arrives."""


@pytest.mark.more
def test_pruned_trials_are_ended_marked_and_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    monkeypatch.setattr("sf.tools.sweep.conduct.PRUNE_S", 0.0)
    _, record, queue = begun(tmp_path, "seeds = [1, 2, 3]")
    said: list[str] = []
    queue._tell = said.append
    hopeless = {3: 2, 6: 1}
    """The seed of a trial with which it is found."""

    def submit(run: TrialRun) -> Job:
        return Job(run, -1.0 if hopeless.get(run.trial) == run.seed else 5.0)

    signals = NoSignals()
    drive(queue, submit, 1, signals, said.append)  # type: ignore[arg-type]  # what it needs of them
    signals.file.close()
    assert len(record.outcomes) == 10 * 3 - 1 - 2, "other seeds of a hopeless trial are left out"
    for trial, seed in hopeless.items():
        outcome = record.outcomes[trial, seed]
        assert (outcome.state, outcome.value, outcome.frames) == ("pruned", -1.0, BARELY)
    assert "trial003-seed2: pruned at reward -1.000 (250 frames, 2.5 s)" in said
    assert said[-2] == "Trial 10 of 10, run 30 of 30: trial009-seed3 with --gamma=0.99"
    assert said[-1].startswith("trial009-seed3: reward 5.000")
    assert re.fullmatch(r"29 of 30 runs are over, about 0:00:\d\d left\.", said[-3]), said[-3]
    assert [trial.number for trial, _ in record.ranked()][-2:] == [3, 6], "last, those with more seeds first"
    shown = table(described(tmp_path, GAMMAS, "seeds = [1, 2, 3]"), record)
    assert len(re.findall(r" [12]/3 pruned ", shown)) == 2
    assert shown.endswith("2 of 10 trials were pruned, and count with what they had reached.")
    with (record.path / "results.csv").open() as file:
        assert sum(row["state"] == "pruned" for row in csv.DictReader(file)) == 2
    assert [read_run(record.path / f"trial003-seed{seed}")[0].end for seed in (1, 2)] == [
        "killed",
        "pruned by its sweep",
    ]
    record.close()
    _, record, queue = begun(tmp_path, "seeds = [1, 2, 3]")
    assert queue.next_run() is None
    record.close()


@pytest.mark.more
def test_a_seed_of_a_hopeless_trial_that_runs_beside_it_is_ended_too(tmp_path: Path) -> None:
    _, record, queue = begun(tmp_path, "seeds = [1, 2, 3]\njobs = 2")
    one, other = start(queue), start(queue)
    assert (one.trial, other.trial) == (0, 0)
    queue.prune(0)
    for run in (one, other):
        queue.ended_run(run, TrialOutcome("stopped", ExitCode.SIGINT, frames=10))
    assert [outcome.state for outcome in record.outcomes.values()] == ["pruned", "pruned"]
    assert start(queue).trial == 1
    record.close()


@pytest.mark.more
def test_tpe_hears_of_pruned_trials(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    description = described(tmp_path, GAMMAS, "trials = 4")
    record = SweepRecord(description)
    search = make_search("tpe", description, record)
    queue = Queue(description, record, search, lambda _: None)
    run = start(queue)
    queue.prune(run.trial)
    write_curve(run, {BARELY: 1.0})
    run.directory.joinpath("summary.json").write_text(json.dumps({"policies": [{"reward": 1.5}]}))
    queue.ended_run(run, TrialOutcome("stopped", ExitCode.SIGINT, frames=BARELY))
    studies = [search, make_search("tpe", description, record)]
    for study in (each._study for each in studies):  # type: ignore[attr-defined]  # of TPE
        (known,) = study.trials
        assert known.state == optuna.trial.TrialState.PRUNED
        assert known.intermediate_values == {BARELY: 1.5}
    record.close()


@pytest.mark.parametrize(
    ("top", "tables", "axis"),
    [
        ("", FRAMES, Axis("frames", END)),
        ("", "[values]\ntrain_for_env_steps = [100, 2000]\n", Axis("frames", 2000)),
        ("", "[ranges]\ntrain_for_env_steps = { low = 10, high = 300, integer = true }\n", Axis("frames", 300)),
        ("", "train_for_seconds = 60\n", Axis("seconds", 60)),
        ("time_limit_s = 90", "", Axis("seconds", 90)),
    ],
)
def test_runs_are_compared_by_their_frames_or_their_seconds(top: str, tables: str, axis: Axis, tmp_path: Path) -> None:
    assert axis_of(described(tmp_path, tables, top)) == axis


def test_what_cannot_be_compared_on_the_way_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal(tables: str, top: str = "") -> str:
        description = described(tmp_path, tables, top)
        with pytest.raises(UsageError) as caught:
            make_pruner("median", description, SweepRecord(description, read_only=True))
        return str(caught.value)

    assert "Give train_for_env_steps or train_for_seconds in [flags], or time_limit_s" in refusal("")
    assert "wall_time_s is known at their end only" in refusal(FRAMES, 'objective = "wall_time_s"')
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert refusal(FRAMES) == '--prune=median needs Optuna: pip install "sf-rl[sweep]"'
    description = described(tmp_path, "")
    assert isinstance(make_pruner("none", description, SweepRecord(description, read_only=True)), KeepAll)


SWEEP_AT_ONCE = """
import sys
from sf.cli.sweep import main
from sf.tools.sweep import conduct, pruning
pruning.FEWEST_ENDED, conduct.PRUNE_S = 1, 0.1
sys.exit(main(["sweep.toml", "--prune=median"]))
"""


@pytest.mark.more
def test_a_real_run_is_pruned_while_it_goes_on(tmp_path: Path) -> None:
    """The curve of the learning rate is as good as known, and so is which one is below the other."""
    pytest.importorskip("optuna")
    flags = f'env = "CartPole-v1"\nserial_mode = true\nnum_envs_per_worker = 4\nrollout = 16\nupdates = "fast"\n{LONG}'
    values = "[values]\nlearning_rate = [0.01, 0.0001]\n"
    (tmp_path / "sweep.toml").write_text(f'sweep = "small"\nobjective = "train/lr"\n[flags]\n{flags}{values}')
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT}/envs", "PATH": ""}
    ended = subprocess.run(
        [sys.executable, "-c", SWEEP_AT_ONCE],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == ExitCode.FINISHED, ended.stdout + ended.stderr
    assert "Trial 2 of 2, run 2 of 2: trial001-seed1 with --learning_rate=0.0001" in ended.stdout
    assert re.search(r"^trial001-seed1: pruned at train/lr 0\.000\d* \(", ended.stdout, re.M), ended.stdout
    trials = json.loads((tmp_path / "train_dir/small/results.json").read_text())["trials"]
    (one,), (other,) = (trial["runs"] for trial in trials)
    assert (one["state"], other["state"]) == ("finished", "pruned")
    assert 0 < other["frames"] < one["frames"]


LONG = "train_for_env_steps = 40_000\n"
