"""What a supervisor sees and says of those it starts, at the beginning, in the middle and at the end."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import psutil
import pytest
from torch import Tensor, nn

from sf import children
from sf.callbacks import Callbacks, Iteration
from sf.child import Child
from sf.children import Processes
from sf.envs import find_env, probe_and_time
from sf.errors import InternalError
from sf.fork_server import ForkServer
from sf.hangs import HangWatch
from sf.learner.update import Update
from sf.learner.worker import Learner
from sf.monitor import Monitor
from sf.preparation import prepare
from sf.progress import Phase, Progress
from sf.records import Episode, EpisodeRing
from sf.role import RoleSpec
from sf.session import ExitReason, Session
from sf.signals import Signals
from sf.simulators import Simulators, marked
from sf.supervisor import train, train_prepared
from sf.wiring import Shared
from tests.commands import (
    CARTPOLE,
    EXPERIMENT,
    ROOT,
    Running,
    fault_run,
    run,
    running,
    wait_for_training,
)
from tests.lab import make_config, make_lab


def test_fault_a8_learner_killed_while_the_run_ends_is_told(tmp_path: Path) -> None:
    with running(tmp_path, *CARTPOLE) as command:
        command.wait_for_text("Fps is")
        (learner,) = command.named("sf-learner")
        learner.suspend()
        command.process.terminate()
        time.sleep(1.0)
        learner.kill()
        finished = command.finish()
    assert finished.code == 7
    assert re.search(r"learner-0 \(pid \d+\) was killed by SIGKILL without being told to", finished.err)
    summary = json.loads((tmp_path / EXPERIMENT / "summary.json").read_text())
    assert summary["exit_code"] == 7


@pytest.mark.parametrize("ends", ["while stacks are shown", "before it is killed"])
def test_fault_e1_e2_whoever_ends_by_itself_in_the_last_moment_was_not_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], ends: str
) -> None:
    """Nobody has any time to stop here, but while stacks are shown, or right before the kill."""
    monkeypatch.setattr(children, "STOP_GRACE_S", 0.0)
    monkeypatch.setattr(children, "STACKS_GRACE_S", 0.0)
    show_stacks, work_of, stop = Processes._show_stacks, Processes._work_of, Processes.stop

    def wait_for_all(processes: Processes) -> None:
        for child in processes.children:
            assert child.has_ended(60.0)

    def show_stacks_and_wait(processes: Processes, hanging: Sequence[Child], why: str) -> None:
        show_stacks(processes, hanging, why)
        wait_for_all(processes)

    def work_of_late(processes: Processes, spec: RoleSpec) -> int:
        wait_for_all(processes)
        return work_of(processes, spec)

    def stop_late(processes: Processes, signals: Signals) -> list[str]:
        if ends == "while stacks are shown":
            monkeypatch.setattr(Processes, "_show_stacks", show_stacks_and_wait)
        else:
            monkeypatch.setattr(Processes, "_work_of", work_of_late)
        return stop(processes, signals)

    monkeypatch.setattr(Processes, "stop", stop_late)
    config = make_config(train_dir=str(tmp_path), train_for_env_steps=2000)
    assert train(replace(config, run=replace(config.run, serial_mode=False))).code == 0
    told = capfd.readouterr().out
    assert re.search(r"learner-0 \(pid \d+\) did not stop\. Its stacks follow\.", told)
    assert "was killed" not in told


class Endless(nn.Module):
    """An encoder that acts and cannot be trained: 64 rows at once take for ever, in a program that it starts."""

    def __init__(self, shapes: Any, config: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 8)

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        if len(inputs["obs"]) >= 64:
            subprocess.run([sys.executable, "-c", "import time; time.sleep(1000)"], check=True)
        features: Tensor = self.layer(inputs["obs"])
        return features


def command_of(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def sleepers() -> list[psutil.Process]:
    return [one for one in psutil.Process().children(recursive=True) if "time.sleep(1000)" in command_of(one)]


def interrupt_when_it_sleeps() -> None:
    deadline = time.monotonic() + 50
    while not sleepers() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)


def test_fault_a14_e1_learner_that_has_learned_nothing_may_be_killed_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing is lost with it, and what it has started ends as well."""
    monkeypatch.setattr(children, "STOP_GRACE_S", 1.0)
    encoder = f"{__name__}:{Endless.__name__}"
    config = make_config(train_dir=str(tmp_path), encoder=encoder, train_for_seconds=60)
    threading.Thread(target=interrupt_when_it_sleeps, daemon=True).start()
    assert train(replace(config, run=replace(config.run, serial_mode=False))).code == 130
    told = r"At the end: Learner-0 \(pid (\d+)\) did not stop and was killed\. Nothing that was learned is lost\."
    assert re.search(told, capfd.readouterr().out, re.I)
    assert not sleepers()


def test_episodes_of_a_resumed_run_are_recalled_in_the_order_in_which_they_ended(tmp_path: Path) -> None:
    """Where workers had rings of their own, those of the first one, which all share now, are the newest."""
    lab = make_lab(tmp_path, num_workers=2)
    for ring, reward, count in (1, 1.0, 150), (0, 500.0, 10_000):
        for _ in range(count):
            EpisodeRing(lab.arena, ring).append(Episode(0, reward, 10, reward))
    session = Session(lab.config, lab.shared, Monitor(lab.config, tmp_path, 1), Callbacks())
    session.recall_episodes()
    assert session.monitor.episodes.mean_rewards() == {0: 500.0}
    assert session.faults()["faults/unread_episodes"] == 0


def test_fault_a10_watchdog_that_cannot_be_replaced_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = make_lab(tmp_path)
    with ForkServer(1) as fork_server:
        processes = Processes(lab.shared, lab.config.faults, fork_server)
        fork_server.simulators = simulators = Simulators()
        simulators._watchdog.kill()
        simulators._watchdog.wait()
        signals = Signals(second_one_exits=False, parent=None)
        try:
            with monkeypatch.context() as patch:
                patch.setattr(Simulators, "_new_watchdog", lambda _: _raise(BlockingIOError(errno.EAGAIN, "none left")))
                for _ in range(2):
                    processes.next_look_s = 0.0
                    processes.advance(0.0, signals)
            assert capsys.readouterr().out.count("no other one can be started now ([Errno 11] none left)") == 1
            processes.next_look_s = 0.0
            processes.advance(0.0, signals)
            assert (processes.has_no_watchdog, capsys.readouterr().out) == ("", "")
        finally:
            signals.close()


def _raise(error: BaseException) -> NoReturn:
    raise error


def test_fault_d2_summary_has_the_code_of_the_command(tmp_path: Path) -> None:
    with running(tmp_path, *CARTPOLE) as command:
        command.wait_for_text("Fps is")
        shutil.rmtree(tmp_path / EXPERIMENT / "checkpoint_p0")
        (tmp_path / EXPERIMENT / "checkpoint_p0").touch()  # where there should be a directory
        command.process.terminate()
        assert command.finish().code == 4
    summary = json.loads((tmp_path / EXPERIMENT / "summary.json").read_text())
    assert summary["exit_code"] == 4
    assert "final checkpoint was not written" in summary["exit_reason"]


def test_fault_d2_best_checkpoint_that_could_not_be_written_is_written_later(tmp_path: Path) -> None:
    """Although no mean was better since; one that is on disk is not written again."""
    lab = make_lab(tmp_path, save_every_sec=10, save_best_every_sec=1)
    saved: list[str] = []
    callbacks = Callbacks(on_checkpoint=lambda one: saved.append(one.kind))

    def take_messages() -> list[Any]:
        found, lab.told[:] = lab.told.copy(), []
        return found

    session = Session(lab.config, lab.shared, Monitor(lab.config, tmp_path, 1), callbacks, take_messages)
    for _ in range(100):
        EpisodeRing(lab.arena, 0).append(Episode(0, 5.0, 10, 5.0))
    learner = lab.build("learner-0")
    in_its_place = learner.saver.directory / "best"
    in_its_place.touch()
    session.poll()
    start_s = time.monotonic()
    for second in range(25):
        session._request_saves(start_s + second)
        learner.step()
        session.poll()
        if second == 5:
            in_its_place.unlink()
    assert saved == ["periodic", "best", "periodic"]


def test_best_policy_is_saved_when_the_run_stops(tmp_path: Path) -> None:
    """Also where the next look for a better one is far away."""
    assert run(tmp_path, *CARTPOLE, "--stop_at_reward=25", "--save_best_every_sec=1000").code == 0
    (best,) = (tmp_path / EXPERIMENT / "checkpoint_p0" / "best").iterdir()
    assert json.loads((best / "state.json").read_text())["reward"] >= 25


@pytest.mark.parametrize("kind", ["best", "milestones"])
def test_fault_d4_run_goes_on_from_what_there_is(tmp_path: Path, kind: str) -> None:
    assert run(tmp_path, *CARTPOLE, "--train_for_env_steps=2000").code == 0
    checkpoints = tmp_path / EXPERIMENT / "checkpoint_p0"
    (newest,) = checkpoints.glob("checkpoint_*")
    (checkpoints / kind).mkdir()
    newest.rename(checkpoints / kind / newest.name)
    resumed = run(tmp_path, *CARTPOLE, "--train_for_env_steps=4000")
    assert resumed.code == 0, resumed.err
    assert f"Resumed from {checkpoints / kind / newest.name} (policy_version" in resumed.out
    summary = json.loads((tmp_path / EXPERIMENT / "summary.json").read_text())
    assert 4000 <= summary["frames"] < 2 * 4000
    assert summary["new_frames"] < summary["frames"] - 1500


class Poisoned(RuntimeError):
    pass


@pytest.mark.parametrize("async_rl", [False, True])
def test_serial_run_that_fails_within_an_iteration_goes_on_from_before_it(
    tmp_path: Path, async_rl: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"serial_mode": True, "num_envs_per_worker": 8, "rollout": 16, "async_rl": async_rl}
    settings |= {"num_batches_per_epoch": 2, "batch_size": 64, "train_dir": str(tmp_path)}
    train(make_config(train_for_env_steps=1000, **settings))
    right = Update._step

    def fails_in_the_middle(update: Update, *arguments: Any) -> bool:
        if update.version % 2 == 1 and update.version > 30:
            raise Poisoned("in the middle of a dataset")
        return right(update, *arguments)

    longer = make_config(train_for_env_steps=5000, train_for_seconds=60, **settings)
    with monkeypatch.context() as patch:
        patch.setattr(Update, "_step", fails_in_the_middle)
        with pytest.raises(Poisoned):
            train(longer)
    frames: list[int] = []
    train(longer, Callbacks(on_iteration=lambda iteration: frames.append(iteration.frames)))
    assert frames[-1] >= 5000


def test_fault_b5_first_look_sees_a_death_behind_a_fork(tmp_path: Path) -> None:
    began = time.monotonic()
    finished = run(tmp_path, "--env=tests.fault_envs:ForksAndDies-v0")
    assert finished.code == 3, finished.err
    assert "its process was killed by SIGABRT" in finished.err
    assert time.monotonic() - began < 10


def test_fault_b4_first_look_is_over_where_a_later_step_raises(tmp_path: Path) -> None:
    """As a worker of the run may, which is replaced."""
    (tmp_path / "step-always-raise").touch()
    look = probe_and_time(find_env("tests.fault_envs:Fault-v0", {"orders": str(tmp_path)}), 60.0)
    (note,) = look.notes
    assert note.startswith("Warning: in step 41 of the first look, Fault-v0 raised ValueError in step")
    assert look.step_time.wall_s > 0


def test_fault_b1_constructor_that_takes_longer_than_workers_may_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    prepare(make_config("tests.fault_envs:Fault-v0", env_kwargs='{"init_s": 1.2}', env_init_timeout=1))
    told = r"Warning: the constructor of Fault-v0 took [\d.]+ s, and .* --env_init_timeout=1 are replaced"
    assert re.search(told, capsys.readouterr().out)


SLOW_START = """
import sys
import time

if "spawn_main" in " ".join(sys.orig_argv):
    time.sleep({seconds})
"""


def test_fault_e4_who_has_not_begun_to_work_is_killed_like_all_that_do_not_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """And not by the signal that asks for its stacks, which it does not know yet."""
    (tmp_path / "sitecustomize.py").write_text(SLOW_START.format(seconds=1000))
    monkeypatch.setattr(children, "STOP_GRACE_S", 0.5)
    prepared = prepare(make_config(train_dir=str(tmp_path), serial_mode=False))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    assert train_prepared(prepared).code == 130
    told = r"At the end: rollout-0 \(pid \d+\) did not stop and was killed\. Nothing that was learned is lost\."
    assert re.search(told, capfd.readouterr().out)


def test_fault_b1_b3_worker_that_hangs_while_it_makes_environments(tmp_path: Path) -> None:
    """Starting, which takes longer than the limit here, is no time of an environment."""
    (tmp_path / "sitecustomize.py").write_text(SLOW_START.format(seconds=4.5))
    flags = *fault_run(tmp_path)[:-1], "--env_init_timeout=3"
    with running(tmp_path, *flags, python_path=f"{tmp_path}:{ROOT}") as command:
        wait_for_training(command)
        (tmp_path / "orders" / "init-hang").touch()
        command.named("sf-rollout-0")[0].kill()
        command.wait_for_text("Restart 2 of rollout-0")
        command.process.terminate()
        finished = command.finish()
    assert finished.code == 143, finished.err
    blamed = re.findall(r"(\S+) \(pid \d+\) took longer than (.*?) \(--env_init_timeout\), and was", finished.out)
    assert [who for who, _ in blamed] == ["rollout-0"]
    assert re.fullmatch(r"3 s to make environment \d", blamed[0][1])


def test_fault_a6_evaluations_are_the_work_of_an_evaluator(tmp_path: Path) -> None:
    """One that has delivered is replaced at once, however often."""
    with running(tmp_path, *CARTPOLE, "--eval_every_steps=500", "--eval_episodes=2") as command:
        for restart in (1, 2):
            wait_for_evaluation(command)
            command.named("sf-eval-0")[0].kill()
            command.wait_for_text(f"Restart {restart} of eval-0 follows.")
        command.process.terminate()
        assert command.finish().code == 143


def wait_for_evaluation(command: Running) -> None:
    """A new one."""
    done = command.out.count("Evaluation of policy 0")
    command.wait_for(lambda: command.out.count("Evaluation of policy 0") > done, "an evaluation")


def test_fault_a14_orphans_that_left_the_session_are_reaped_and_children_of_others_are_not(tmp_path: Path) -> None:
    simulators = Simulators()
    child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
    alone = subprocess.Popen([sys.executable, "-c", "raise SystemExit(8)"], start_new_session=True)
    try:
        with marked(simulators.mark_of("rollout-0", 0)):
            subprocess.run(f"setsid sh -c 'echo $$ > {tmp_path}/pid; sleep 1' &", shell=True, check=True)
        deadline = time.monotonic() + 20
        while not (pid := "".join(path.read_text() for path in tmp_path.glob("pid"))):
            time.sleep(0.02)
        orphan = int(pid)  # adopted by this process
        while not {child.pid, alone.pid, orphan} <= zombies():
            assert time.monotonic() < deadline, zombies()
            simulators.reap()
            if orphan not in {one.pid for one in psutil.Process().children()}:
                break
            time.sleep(0.02)
        simulators.reap()
        assert orphan not in zombies()
        assert (child.wait(), alone.wait()) == (7, 8)
    finally:
        child.wait()
        alone.wait()
        simulators.close()


def test_fault_a10_watchdog_that_cannot_be_replaced_now_is_replaced_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the machine gives no more processes there is none, which ends nothing."""

    def refuse(*_: Any, **__: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    simulators, nobody = Simulators(), 2**22
    try:
        first = simulators._watchdog
        first.kill()
        first.wait()
        with monkeypatch.context() as patch:
            patch.setattr(subprocess, "Popen", refuse)
            simulators.reap()
            assert "temporarily unavailable" in simulators.has_no_watchdog
            simulators.watch(nobody)
            simulators.end_of(nobody, simulators.mark_of("rollout-0", 0))
        simulators.reap()
        assert simulators._watchdog.pid != first.pid
        assert simulators._watchdog.poll() is None
        assert simulators.has_no_watchdog == ""
    finally:
        simulators.close()


def zombies() -> set[int]:
    """Children of this process that nobody has waited for."""
    return {one.pid for one in psutil.Process().children() if one.status() == psutil.STATUS_ZOMBIE}


def test_fault_b1_hang_is_seen_however_long_callbacks_take(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Of what a callback takes a second counts, as of any time in which nobody looks."""
    (tmp_path / "step-hang").touch()
    arguments = json.dumps({"orders": str(tmp_path), "step_s": 0.001})
    config = make_config(
        "tests.fault_envs:Fault-v0", env_kwargs=arguments, train_dir=str(tmp_path / "runs"), num_workers=2,
        async_rl=True, env_step_timeout=4.0, train_for_env_steps=10**9, train_for_seconds=60,
    )  # fmt: skip
    looks = 0

    def slow(_: Iteration) -> bool:
        nonlocal looks
        looks += 1
        time.sleep(3.0)
        return looks == 10

    assert train(replace(config, run=replace(config.run, serial_mode=False)), Callbacks(on_iteration=slow)).code == 0
    told = capfd.readouterr().out
    assert re.search(r"took longer than 4 s to step environment \d+ \(--env_step_timeout\)\. Its stacks follow", told)
    assert "Restart 1 of rollout-" in told


def test_fault_a13_b1_b3_of_time_in_which_nobody_looked_a_second_counts() -> None:
    """Whoever waited for the supervisor to read a pipe gets on as soon as it does."""
    progress = Progress(np.zeros(1, np.int64), 0)
    progress.enter(Phase.STEP)
    watch = HangWatch(progress, {Phase.STEP: 60.0}, 0.0)
    assert watch.look(0.1) is None
    assert watch.look(1000.0) is None
    progress.enter(Phase.STEP)
    assert watch.look(1000.1) is None
    times = [1000.1 + 600.0 * gap for gap in range(1, 61)]
    assert not any(watch.look(now) for now in times), "60 looks, each after ten minutes"
    hang = watch.look(times[-1] + 0.2)
    assert hang is not None
    assert (hang.phase, hang.deadline_s) == (Phase.STEP, 60.0)


def test_a_run_whose_books_do_not_balance_says_so_whatever_else_went_wrong(tmp_path: Path) -> None:
    """A learner that counts a slot twice, and then fails."""
    config = make_config(train_dir=str(tmp_path), train_for_env_steps=2000)
    prepared = prepare(replace(config, run=replace(config.run, serial_mode=True)))

    def change(shared: Shared, specs: list[RoleSpec]) -> list[RoleSpec]:
        def build(**arguments: Any) -> Learner:
            learner = Learner(**arguments)
            release = learner.batcher.release

            def count_too_much_and_fail(was_trained_on: bool = True) -> int:
                release(was_trained_on)
                learner.batcher.slots.released[0] += 1
                raise RuntimeError("something else")

            learner.batcher.release = count_too_much_and_fail  # type: ignore[method-assign]
            return learner

        return [replace(spec, factory=build) if spec.name == "learner-0" else spec for spec in specs]

    with pytest.raises(InternalError, match="slots are unaccounted for") as caught:
        train_prepared(prepared, change=change)
    assert "something else" in str(caught.value.__cause__)


def test_fault_b1_inference_worker_that_does_nothing_at_all_is_replaced(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whoever waits looks around every now and then; one that was stopped does not."""
    config = make_config(train_dir=str(tmp_path), train_for_env_steps=10**9, train_for_seconds=60)
    prepared = prepare(replace(config, run=replace(config.run, serial_mode=False)))
    stopped: list[int] = []
    frames = 0

    def stop_one(iteration: Iteration) -> bool:
        nonlocal frames
        if not stopped:
            (victim,) = (one for one in psutil.Process().children() if "sf-inference" in command_of(one))
            victim.suspend()
            stopped.append(victim.pid)
            frames = iteration.frames
        return iteration.frames > frames + 2000

    def change(_: Shared, specs: list[RoleSpec]) -> list[RoleSpec]:
        soon = {Phase.STEP: 5.0, Phase.WAIT: 5.0}
        return [replace(spec, deadlines_s=soon) if spec.kind == "inference" else spec for spec in specs]

    end = train_prepared(prepared, Callbacks(on_iteration=stop_one), change)
    assert end.reason == ExitReason.CALLBACK.value
    told = capfd.readouterr().out
    assert re.search(rf"inference-0-0 \(pid {stopped[0]}\) .* for longer than 5 s.*\. Its stacks follow\.", told)
    assert "Restart 1 of inference-0-0 follows" in told
