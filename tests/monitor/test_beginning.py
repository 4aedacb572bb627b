"""Slow environments: a stop is heard between two of them, and the console says how far the first batch is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sf.envs import EnvSource, probe
from sf.envs.batches import make_env_batch
from sf.envs.stepping import Host
from sf.monitor import PolicySnapshot, Snapshot
from sf.processes.process import Stopped
from sf.shared.ledger import Ledger
from tests.environments.first_hour import Endless, EndlessPair
from tests.helpers.commands import EXPERIMENT, run, summary_of
from tests.helpers.monitored import Start


class Watched:
    """Environments that count their calls; at the third one of a kind the run stops."""

    def __init__(self, kind: Callable[[], Any], call: str) -> None:
        self.kind, self.call = kind, call
        self.calls: list[str] = []
        self.word = np.zeros(1, np.int64)

    def make(self) -> Any:
        self.note("make")
        env = self.kind()
        for name in ("reset", "step", "close"):
            setattr(env, name, self.noted(name, getattr(env, name)))
        return env

    def noted(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **kwargs: Any) -> Any:
            self.note(name)
            return method(*arguments, **kwargs)

        return call

    def note(self, name: str) -> None:
        self.calls.append(name)
        if name == self.call and self.calls.count(name) == 3:
            self.word[0] = 1


@pytest.mark.parametrize("kind", [Endless, EndlessPair])
@pytest.mark.parametrize("call", ["make", "reset", "step"])
def test_a_stop_is_heard_between_two_environments(kind: Any, call: str) -> None:
    info = probe(EnvSource("Endless", factory=kind))
    watched = Watched(kind, call)
    rows = 8 * info.num_agents
    final, observations = {"obs": np.zeros((rows, 1), np.float32)}, {"obs": np.zeros((rows, 1), np.float32)}

    def make_reset_and_step() -> None:
        source, stop = EnvSource("Endless", factory=watched.make), watched.word.data
        envs = make_env_batch(source, info, range(8), final, np.zeros(rows, bool), "clip", Host(stop=stop))
        envs.reset(observations)
        envs.step(np.zeros(rows, np.int64), observations, np.zeros(rows, np.float32))

    with pytest.raises(Stopped):
        make_reset_and_step()
    assert watched.calls.count(call) == 3, "and not eight times"
    assert watched.calls.count("close") == (3 if call == "make" else 0), "the others are closed by their role"


@pytest.mark.alone
def test_a_run_of_slow_resets_ends_in_time_and_says_that_nothing_was_learned(tmp_path: Path) -> None:
    """32 resets of 0.5 s would take 16 s, and a hundred of them would be killed after the grace of 20 s."""
    arguments = json.dumps({"reset_s": 0.5})
    env = "--env=tests.environments.first_hour:Endless-v0"
    sizes = "--num_workers=1", "--num_envs_per_worker=32", "--policy_workers_per_policy=0"
    finished = run(tmp_path, env, f"--env_kwargs={arguments}", *sizes, "--train_for_seconds=6", "--seed=1")
    assert finished.code == 0, finished.err
    assert 6.0 <= summary_of(tmp_path)["wall_time_s"] < 8.5
    assert "did not stop" not in finished.out + finished.err
    assert "First batch: 0 of 1,024 steps; rollout workers inside reset(): 1." in finished.out
    assert "Nothing was learned: in 6." in finished.out
    assert "Its checkpoints are untrained." in finished.out
    assert "(periodic, policy_version 0, untrained)" in finished.out
    (state,) = (tmp_path / EXPERIMENT).glob("checkpoint_p0/checkpoint_*/state.json")
    assert json.loads(state.read_text())["is_trained"] is False


def snapshot(time_s: float, collected: int, iterations: int = 0, resetting: int = 0, version: int = 0) -> Snapshot:
    policy = PolicySnapshot(iterations=iterations, version=version)
    return Snapshot(time_s, (policy,), collected=collected, resetting=resetting)


def test_progress_of_the_first_batch_is_told_with_every_report_until_it_is_there(start: Start) -> None:
    run = start()
    for time_s, collected, iterations in (0.0, 0, 0), (5.0, 0, 0), (10.0, 250, 0), (15.0, 300, 0), (20.0, 512, 1):
        run.monitor.poll(snapshot(time_s, collected, iterations, resetting=int(collected == 0)))
    assert [line.rpartition("]")[2].strip() for line in run.tape.lines("First batch")] == [
        "First batch: 0 of 256 steps; rollout workers inside reset(): 1.",
        "First batch: 250 of 256 steps.",
        "First batch: 300 of 256 steps; learners wait for whole trajectories of 32 steps.",
    ]


@pytest.mark.parametrize(("version", "saved"), [(0, "are untrained"), (7, "hold what was learned before")])
def test_a_run_without_a_training_iteration_says_so_at_the_end(start: Start, version: int, saved: str) -> None:
    run = start()
    for time_s in 0.0, 3.0:
        run.monitor.poll(snapshot(time_s, 100, version=version))
    run.is_finished = True
    run.monitor.finish("train_for_seconds reached", 0, {}, Ledger(0, 0, {}, 0, 0))
    (line,) = run.tape.lines("Nothing was learned")
    assert "in 3.0 s 100 steps were collected, and a training iteration takes 256." in line
    assert f"Its checkpoints {saved}. Let the run go on longer" in line


def test_a_run_that_lost_all_trajectories_says_why(start: Start) -> None:
    run = start()
    for time_s in 0.0, 3.0:
        run.monitor.poll(snapshot(time_s, 300))
    run.is_finished = True
    run.monitor.finish("train_for_seconds reached", 0, {}, Ledger(14, 0, {"worker_died": 14}, 0, 0))
    (line,) = run.tape.lines("Nothing was learned")
    assert line.endswith(
        "14 trajectories were lost because rollout workers died, as is said above: correct what they died of."
    )
