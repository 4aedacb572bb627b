"""The speed of a run on another machine, from its costs here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sf.cli import bench
from sf.errors import UsageError
from sf.run.sizes import resolve
from sf.tools.bench import measurements
from sf.tools.bench.predict import Loads, Machine, best, predict, prediction_lines
from sf.tools.bench.usage import Usage
from tests.helpers.configs import env_info
from tests.helpers.lab import make_config

LOADS = Loads(rollout=10e-6, inference=0.0, learner=5e-6, other=1e-6, worker=10e-6, learner_wall=5e-6, used=0.8)
TWO = Machine(cores=2, gpus=0, num_workers=2, num_inference=0, num_learners=1)


def usage(**changes: float) -> Usage:
    cpu = {"rollout-0": 4.0, "rollout-1": 6.0, "learner-0": 5.0, "supervisor": 1.0}
    activities = {
        "rollout-0": {"step": 3.0, "act": 2.0, "wait": 5.0},
        "rollout-1": {"step": 7.0, "wait": 3.0},
        "learner-0": {"update": 4.0, "wait": 6.0},
    }
    return replace(Usage(10.0, 1e6, 18.0, cpu, activities, 0.0, 0.0), **changes)  # type: ignore[arg-type]


def test_loads_are_seconds_of_each_role_for_a_sample() -> None:
    loads = Loads.of(usage(), cores=2)
    found = loads.rollout, loads.inference, loads.learner, loads.other
    assert found == pytest.approx((10e-6, 0.0, 5e-6, 1e-6))
    assert loads.worker == loads.rollout, "the cores are busy, so a worker that is not waiting may want for a core"
    assert loads.learner_wall == pytest.approx(4e-6), "it has used more than one core"
    assert loads.used == pytest.approx(16 / 20)


def test_simulators_that_sleep_hold_a_worker_back_and_no_core() -> None:
    loads = Loads.of(usage(machine=8.0), cores=2)
    assert loads.worker == pytest.approx(12e-6)
    assert loads.used == 1.0


def test_limit_is_what_gives_out_first() -> None:
    assert predict(LOADS, TWO).limit == "the cores"
    assert predict(LOADS, TWO).rate == pytest.approx(2 * 0.8 / 16e-6)
    many = replace(TWO, cores=64, num_workers=16)
    assert predict(LOADS, many).limit == "the learner"
    assert predict(LOADS, many).rate == pytest.approx(1 / 5e-6)
    assert predict(LOADS, replace(many, num_workers=1)).limit == "the rollout workers"
    assert predict(LOADS, replace(many, gpus=1)).rate == pytest.approx(16 / 10e-6)
    inferring = replace(LOADS, inference=50e-6)
    assert predict(inferring, replace(many, num_inference=2)).limit == "the inference workers"


@pytest.mark.parametrize("is_async", [True, False])
def test_processes_of_the_run_here_have_the_sizes_that_they_have_there(tmp_path: Path, is_async: bool) -> None:
    open_sizes = dict.fromkeys(
        (
            "num_workers",
            "num_envs_per_worker",
            "worker_num_splits",
            "batch_size",
            "num_batches_per_epoch",
            "num_epochs",
            "policy_workers_per_policy",
            "rollout",
        )
    )
    config = make_config("CartPole-v1", train_dir=str(tmp_path), async_rl=is_async, **open_sizes)
    info = env_info()
    there = resolve(config, info, cores=64)
    here = resolve(measurements.with_processes_of(config, there), info, cores=2)
    assert there.rollout.num_workers != here.rollout.num_workers
    assert here.rollout.num_envs_per_worker == there.rollout.num_envs_per_worker
    assert here.groups_per_worker == there.groups_per_worker
    assert here.workers_act == there.workers_act
    if is_async:
        assert here.learner.batch_size == there.learner.batch_size
        assert here.learner.num_minibatches == there.learner.num_minibatches


def test_taking_turns_adds_both_times() -> None:
    turns = replace(TWO, cores=4, num_workers=4, takes_turns=True)
    found = predict(LOADS, turns)
    assert found.rate == pytest.approx(1 / (10e-6 / 4 + 5e-6 + 1e-6 / 4))
    assert found.limit == "mostly the learner"


def test_best_is_at_least_as_fast_as_any_and_uses_no_more_than_it_needs() -> None:
    machine = replace(TWO, cores=16)
    option, found = best(LOADS, machine)
    rates = [
        predict(LOADS, replace(machine, num_workers=workers, num_learners=learners)).rate
        for learners in range(1, 17)
        for workers in range(learners, 17, learners)
    ]
    assert found.rate == max(rates)
    assert (option.num_workers, option.num_learners) == (8, 4), "16 cores give 0.8 million; 8 workers can, 4 learners"


def test_lines_name_the_choice_and_a_better_one() -> None:
    lines = list(prediction_lines(LOADS, 90_000.0, replace(TWO, cores=64, num_workers=8)))
    assert lines[0] == "90,000 samples/s here, in processes of the sizes that they have there. CPU time per sample:"
    assert lines[1].split() == ["rollout", "10.00", "us"]
    assert lines[5] == (
        "64 cores: 200,000 samples/s with 8 rollout workers and 1 learner, which a run takes by itself; the limit: the "
        "learner"
    )
    assert "--num_workers=" in lines[6]
    assert list(prediction_lines(LOADS, 1.0, replace(TWO, gpus=1)))[-1].startswith("The update is taken to be no limit")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            [],
            r"--cores is the number of cores of the other machine, at least 1; found nothing\. Example",
        ),
        (["--cores=0"], "at least 1; found '0'"),
        (["--cores=4", "--gpus=some"], "--gpus is the number of gpus of the other machine, at least 0; found 'some'"),
        (["--cores=4", "--env=CartPole-v1", "--serial_mode=True"], "sf-bench predict is about several processes"),
    ],
)
def test_wrong_input_is_told(flags: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        bench._bench(["predict", *flags])
