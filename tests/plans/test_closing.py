"""What is under way when an iterator is closed, or a worker dies, reaches nothing that comes later."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from sf.plans import LocalIterator, ParallelRollouts, SampleBatch, WorkerSet
from tests.helpers.planned import TEN_STEPS, CountingPolicy

SETTINGS: dict[str, Any] = {"env": TEN_STEPS, "num_workers": 1, "rollout_fragment_length": 1, "seed": 1}


def push(workers: WorkerSet, value: float) -> None:
    workers.local_worker().set_weights({"default_policy": {"w": value}})


@pytest.mark.more
@pytest.mark.parametrize("length", [1, 40])
def test_nothing_of_a_closed_iterator_comes_later(length: int) -> None:
    """Neither to the next iterator, nor into what its functions keep, nor to a sample."""
    with WorkerSet(CountingPolicy, {**SETTINGS, "rollout_fragment_length": length}) as workers:
        for turn in range(6):
            push(workers, turn + 0.25)
            plain = ParallelRollouts(workers, mode="async", num_async=2)
            for batch in plain.take(2):
                assert set(batch["some_value"]) == {turn + 0.25}
            plain.close()
            push(workers, turn + 0.5)
            pairs = ParallelRollouts(workers, mode="raw").batch(2).gather_async(2)
            for batch in next(pairs):
                assert set(batch["some_value"]) == {turn + 0.5}
            pairs.close()
            push(workers, turn + 0.75)
            workers.sync_weights()
            assert set(workers.remote_workers()[0].sample()["some_value"]) == {turn + 0.75}


def whole(batch: SampleBatch) -> bool:
    parts = batch.split_by_episode()
    return all(part["t"].tolist() == list(range(10)) for part in parts)


@pytest.mark.more
def test_episodes_whose_fragments_were_dropped_are_not_put_together() -> None:
    settings = {**SETTINGS, "rollout_fragment_length": 3, "batch_mode": "complete_episodes", "num_envs_per_worker": 2}
    with WorkerSet(CountingPolicy, settings) as workers:
        for _ in range(4):
            rollouts: LocalIterator = ParallelRollouts(workers, mode="async", num_async=2)
            assert all(whole(batch) for batch in rollouts.take(3))
            rollouts.close()


@pytest.mark.more
def test_parts_of_the_episodes_of_dead_workers_are_forgotten() -> None:
    settings = {**SETTINGS, "rollout_fragment_length": 5, "batch_mode": "complete_episodes"}
    with WorkerSet(CountingPolicy, settings) as workers:
        (worker,) = workers.remote_workers()
        worker.sample()
        for _ in range(3):
            future = worker.remote.sample()
            processes = workers.fragments.processes
            os.kill(processes.pids()["rollout-0"], signal.SIGKILL)
            assert whole(future.result())


@pytest.mark.more
def test_returns_of_teams_leave_out_what_was_dropped() -> None:
    """In the environment the returns of both agents add up to 0, and each episode has ten moves."""
    settings = {**SETTINGS, "env": "examples.plans.environments:RockPaperScissors", "rollout_fragment_length": 3}
    from examples.plans.a2c import A2CPolicy

    with WorkerSet({"a": (A2CPolicy,)}, settings, lambda agent: "a") as workers:
        for _ in range(4):
            rollouts: LocalIterator = ParallelRollouts(workers, mode="async", num_async=3)
            rollouts.take(4)
            rollouts.close()
        rollouts = ParallelRollouts(workers)
        rollouts.take(7)
        episodes = workers.new_episodes()
        assert len(episodes) >= 2
        assert {episode.length for episode in episodes} == {10}
        assert np.allclose([episode.reward for episode in episodes], 0)


MANY = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (150, 4000))
from sf.plans import WorkerSet
from tests.helpers.planned import TEN_STEPS, CountingPolicy
with WorkerSet(CountingPolicy, {"env": TEN_STEPS, "num_workers": 16, "rollout_fragment_length": 5}) as workers:
    print([worker.sample().count for worker in workers.remote_workers()] == [5] * 16)
"""


@pytest.mark.more
def test_the_limit_on_open_files_grows_with_the_workers() -> None:
    done = subprocess.run([sys.executable, "-c", MANY], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "True", done.stderr
