"""Back-pressure: who is slower makes the others wait, and nothing is dropped or grows."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest

from sf.errors import InternalError
from sf.run.reasons import ExitReason
from sf.run.session import POLL_S, Session
from sf.run.supervisor import train
from sf.shared.control import ControlEnd, connect
from sf.shared.ledger import Ledger
from sf.shared.messages import SaveRequest
from sf.shared.slots import SlotState
from tests.helpers.commands import run, running, version_of, wait_for_training
from tests.helpers.lab import make_config, make_lab, step_until

ROLES = "sf-rollout", "sf-learner", "sf-inference", "sf-train"


def test_fault_f1_samplers_wait_for_a_learner_that_is_slow(tmp_path: Path) -> None:
    """Every slot becomes full, then nobody samples; what was collected is learned, and nothing else was lost."""
    lab = make_lab(tmp_path, async_rl=True, num_workers=2)
    learner, *others = lab.build_all()
    while any([role.step() for role in others]):
        pass
    slots, topology = lab.slots, lab.shared.topology
    assert all(slots.state(slot) is SlotState.FULL for slot in range(topology.num_slots))
    before = Ledger.of(slots, has_ended=False)
    assert (before.allocated, before.in_flight) == (topology.num_slots, topology.num_slots)
    step_until([learner, *others], lambda: Ledger.of(slots, has_ended=False).learned >= 10 * topology.num_slots)
    after = Ledger.of(slots, has_ended=False)
    assert after.is_balanced
    assert sum(after.discarded.values()) == 0
    assert after.in_flight <= topology.num_slots


@pytest.mark.slow
def test_fault_f1_memory_is_flat_while_the_learner_is_slow(tmp_path: Path) -> None:
    """Twenty passes over every dataset: samplers wait for slots, nothing is dropped, and nobody's memory grows."""
    flags = "--env=CartPole-v1", "--num_workers=2", "--num_envs_per_worker=16", "--policy_workers_per_policy=1"
    steps_per_dataset = 20 * 4
    with running(tmp_path, *flags, "--num_epochs=20", "--num_batches_per_epoch=4", "--batch_size=512") as command:
        command.wait_for(lambda: version_of(command) > 3 * steps_per_dataset, "three datasets")
        time.sleep(10)
        before = command.resident_mib(ROLES)
        assert all(size > 0 for size in before.values()), before
        time.sleep(30)
        after = command.resident_mib(ROLES)
        command.process.send_signal(signal.SIGTERM)
        done = command.finish(20)
    assert done.code == 143
    for name in ROLES:
        assert after[name] < before[name] + 8, (before, after)
    waiting = {name: float(percent) for name, percent in re.findall(r"^  (\S+) .*\bwait +([\d.]+)%", done.out, re.M)}
    assert min(waiting["rollout-0"], waiting["rollout-1"]) > 50 > waiting["learner-0"], done.out
    # Only what was complete when the run ended.
    assert re.search(r" \+ (0 discarded|\d+ discarded \(\d+ not learned\)) \+ ", done.out), done.out
    lags = [float(lag) for lag in re.findall(r"lag: .* max: ([\d.]+)\)", done.out)]
    assert max(lags) <= 2 * steps_per_dataset  # two datasets may be in flight


@pytest.mark.more
def test_fault_f2_learner_waits_without_spinning(tmp_path: Path) -> None:
    """Nobody samples for two seconds: learner and inference worker use next to no time."""
    flags = "--env=CartPole-v1", "--num_workers=2", "--num_envs_per_worker=4", "--policy_workers_per_policy=1"
    with running(tmp_path, *flags) as command:
        wait_for_training(command)
        for worker in command.named("sf-rollout"):
            worker.suspend()
        time.sleep(0.5)
        waiting = command.named("sf-learner-0") + command.named("sf-inference-0-0")
        assert len(waiting) == 2
        before = [sum(process.cpu_times()[:2]) for process in waiting]
        time.sleep(2.0)
        used = [sum(process.cpu_times()[:2]) - start for process, start in zip(waiting, before, strict=True)]
        assert max(used) < 0.05 * 2.0, used
        for worker in command.named("sf-rollout"):
            worker.resume()
        command.process.send_signal(signal.SIGTERM)
        assert command.finish(20).code == 143


@pytest.mark.more
@pytest.mark.parametrize(
    ("mode", "inference"), [("--async_rl=False", 1), ("--async_rl=True", 1), ("--async_rl=True", 0)]
)
def test_fault_a13_f4_one_slow_environment(tmp_path: Path, mode: str, inference: int) -> None:
    """A worker that stands still for ten seconds: others train on, or wait for it where they must."""
    flags = "--env=CartPole-v1", "--num_workers=2", "--num_envs_per_worker=4"
    often = "--rollout=2", "--batch_size=16", "--num_batches_per_epoch=2", f"--policy_workers_per_policy={inference}"
    with running(tmp_path, *flags, *often, mode) as command:
        wait_for_training(command)
        slow = command.named("sf-rollout-1")[0]
        slow.suspend()
        time.sleep(5.5)  # until a report has told of what was learned before
        before = version_of(command)
        time.sleep(4.5)  # in which there are two points of the curves
        after = version_of(command)
        slow.resume()
        command.wait_for(lambda: version_of(command) > after, "more training")
        command.process.send_signal(signal.SIGTERM)
        finished = command.finish(20)
    assert finished.code == 143
    assert (after > before) == (mode == "--async_rl=True")
    assert "Restart" not in finished.out
    assert "worker died" not in finished.out


def test_fault_f3_full_control_queue_is_an_error_and_no_lost_signal() -> None:
    supervisor, learner = ControlEnd("supervisor", serial=False), ControlEnd("learner", serial=False)
    connect(supervisor, learner)
    sent: list[float] = []

    def send_for_ever() -> None:
        while len(sent) < 1_000_000:
            supervisor.send(SaveRequest("periodic", float(len(sent))))
            sent.append(float(len(sent)))

    with pytest.raises(InternalError, match="the queue of the other end is full"):
        send_for_ever()
    assert [message.reward for message in learner.poll()] == sent


@pytest.mark.more
@pytest.mark.parametrize("async_rl", [True, False])
def test_fault_f5_serial_mode_does_not_wait_for_itself(tmp_path: Path, async_rl: bool) -> None:
    """With the smallest buffers there are."""
    flags = "--env=CartPole-v1", "--serial_mode=True", f"--async_rl={async_rl}", "--num_envs_per_worker=1", "--seed=1"
    small = "--worker_num_splits=1", "--rollout=2", "--batch_size=2", "--num_batches_per_epoch=1"
    finished = run(tmp_path, *flags, *small, "--train_for_env_steps=500")
    assert finished.code == 0, finished.err


def test_fault_f5_serial_mode_works_between_looks_that_take_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poll = Session.poll

    def late(session: Session) -> ExitReason | None:
        time.sleep(2 * POLL_S)
        return poll(session)

    monkeypatch.setattr(Session, "poll", late)
    config = make_config(train_dir=str(tmp_path), serial_mode=True, train_for_env_steps=1000, train_for_seconds=30)
    assert train(config).reason == ExitReason.ENV_STEPS.value


def test_fault_a13_f4_slots_of_a_group_are_taken_in_the_order_in_which_it_filled_them(tmp_path: Path) -> None:
    """It fills them in turn and waits for the one that it filled first, whichever place that has."""
    slots = make_lab(tmp_path, async_rl=True, num_workers=2).slots
    first, second, *_ = slots.topology.slots_of_group(0)
    for slot in (first, second, first):
        slots.start_filling(slot)
        slots.finish_filling(slot)
        if slot == first and not slots.taken[slot].any():
            slots.take(slot, 0)
            slots.release(slot, 0)
    assert slots.waiting_for(0).tolist() == [second, first]
