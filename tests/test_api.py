"""Training from a program."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sf
from sf.config.as_flags import as_flags
from sf.errors import EnvError, UsageError
from sf.policy import NumpyPolicy, TimeStep
from sf.run.callbacks import Iteration

SMALL: dict[str, Any] = {"num_workers": 1, "num_envs_per_worker": 4, "rollout": 16, "serial_mode": True, "seed": 1}


def script(tmp_path: Path, code: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "script.py"
    path.write_text(code)
    return subprocess.run(
        [sys.executable, path], capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False
    )


def test_arguments_may_hold_numbers_and_arrays_of_numpy() -> None:
    given = {
        "length": np.int64(4),
        "width": np.float32(0.5),
        "is_wide": np.bool_(True),
        "nested": [{"a": np.arange(2)}],
    }
    (flag,) = as_flags("env_kwargs", given)
    assert flag == '--env_kwargs={"length": 4, "width": 0.5, "is_wide": true, "nested": [{"a": [0, 1]}]}'
    with pytest.raises(UsageError, match=r"cannot be written as a JSON object .*object at .*Use texts, numbers"):
        as_flags("env_kwargs", {"rule": object()})


def test_a_daemonic_process_is_no_place_to_train_from(monkeypatch: pytest.MonkeyPatch) -> None:
    process: Any = multiprocessing.current_process()
    monkeypatch.setitem(process._config, "daemon", True)
    with pytest.raises(UsageError, match=r"called in a daemonic process, .*daemon=False"):
        sf.train("CartPole-v1")


@pytest.mark.more
@pytest.mark.parametrize("serial_mode", [True, False])
def test_result_has_policy_curves_and_path(tmp_path: Path, serial_mode: bool) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    result = sf.train(
        "CartPole-v1",
        train_for_env_steps=20_000,
        train_dir=str(tmp_path),
        experiment="mine",
        encoder_mlp_layers=(16, 16),
        env_kwargs={"sutton_barto_reward": False},
        experiment_summaries_interval=1,
        **SMALL | {"serial_mode": serial_mode},
    )
    assert result.path == tmp_path / "mine"
    assert result.exit_reason == "train_for_env_steps reached"
    assert result.summary["frames"] >= 20_000
    frames, reward = result.metrics["reward/reward"][-1]
    assert frames >= 20_000
    assert 9 < reward < 500
    policy = NumpyPolicy(result.policy)
    assert policy.action(TimeStep.first(np.zeros(4))).action in (0, 1)
    assert result.policy.get_train_step() > 0
    assert signal.getsignal(signal.SIGTERM) is handler


def test_callbacks_hear_everything_and_can_stop(tmp_path: Path) -> None:
    iterations: list[Iteration] = []
    rewards, paths = [], []

    def on_iteration(iteration: Iteration) -> bool:
        iterations.append(iteration)
        return iteration.frames >= 3000

    result = sf.train(
        "CartPole-v1",
        train_dir=str(tmp_path),
        on_iteration=on_iteration,
        on_episode=lambda episode: rewards.append(episode.reward),
        on_checkpoint=lambda saved: paths.append(saved.path),
        **SMALL,
    )
    assert result.exit_reason == "stopped by a callback"
    assert iterations[-1].frames >= 3000
    assert [one.frames for one in iterations] == sorted({one.frames for one in iterations})
    assert iterations[-1].policy_version == result.policy.get_train_step()
    assert iterations[0].lag.max >= 0
    assert rewards
    assert all(Path(path).is_dir() for path in paths)
    assert paths[-1].endswith(f"_{iterations[-1].frames}")


@pytest.mark.parametrize("serial_mode", [True, False])
@pytest.mark.parametrize("error", [ZeroDivisionError("mine"), SystemExit("mine")])
def test_what_a_callback_raises_ends_the_run_and_is_raised(
    error: BaseException, serial_mode: bool, tmp_path: Path
) -> None:
    calls: list[object] = []

    def broken(news: object) -> None:
        calls.append(news)
        raise error

    with pytest.raises(type(error), match="mine"):
        sf.train("CartPole-v1", train_dir=str(tmp_path), on_iteration=broken, **SMALL | {"serial_mode": serial_mode})
    summary = json.loads((tmp_path / "CartPole-v1/summary.json").read_text())
    assert summary["exit_reason"] == f"{type(error).__name__}: mine"
    assert len(calls) == 1
    assert multiprocessing.active_children() == []
    assert list((tmp_path / "CartPole-v1/checkpoint_p0").glob("checkpoint_*"))


def test_a_numpy_bool_stops_the_run_and_other_answers_do_not(tmp_path: Path) -> None:
    result = sf.train(
        "CartPole-v1",
        train_dir=str(tmp_path),
        on_episode=lambda episode: np.float64(episode.reward),
        on_iteration=lambda iteration: np.bool_(iteration.frames >= 500),
        **SMALL,
    )
    assert result.exit_reason == "stopped by a callback"


@pytest.mark.more
def test_ctrl_c_while_the_roles_start(tmp_path: Path) -> None:
    code = """
import time, gymnasium, sf

class Slow(gymnasium.Wrapper):
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))
        time.sleep(2)

sf.register_env("Slow", Slow)
if __name__ == "__main__":
    result = sf.train("Slow", num_workers=1, num_envs_per_worker=2, train_dir="runs")
    print("reason:", result.exit_reason, flush=True)
"""
    (tmp_path / "script.py").write_text(code)
    process = subprocess.Popen(
        [sys.executable, "script.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "runs/Slow/.sf-experiment").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert "reason: stopped by SIGINT" in out


def test_refusals_are_those_of_the_command(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Unknown flag --num_worker\. Did you mean --num_workers\?"):
        sf.train("CartPole-v1", num_worker=3)
    with pytest.raises(UsageError, match="--rollout=x must be an integer"):
        sf.train("CartPole-v1", rollout="x")
    with pytest.raises(EnvError, match="CartPole-v0"):
        sf.train("CartPole-v1000", train_dir=str(tmp_path))
    with pytest.raises(UsageError, match=r"env is the class Path, expected the id .* with sf\.register_env\."):
        sf.train(Path)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="The callback on_iteration is 'x', expected a function"):
        sf.train("CartPole-v1", train_dir=str(tmp_path), on_iteration="x")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_only_in_the_main_thread() -> None:
    problems: list[str] = []

    def call() -> None:
        try:
            sf.train("CartPole-v1")
        except UsageError as error:
            problems.append(str(error))

    thread = threading.Thread(target=call, name="side")
    thread.start()
    thread.join()
    assert "sf.train was called in the thread side, but it must be in the main thread" in problems[0]


def test_a_script_without_main_guard_is_told_so(tmp_path: Path) -> None:
    finished = script(tmp_path, "import sf\nsf.train('CartPole-v1', train_dir='runs')\n")
    assert finished.returncode == 1
    assert 'Put the call of sf below\n    if __name__ == "__main__":\n' in finished.stderr
    assert finished.stderr.count("Traceback") == 1
    assert not (tmp_path / "runs").exists()


def test_a_script_that_calls_the_command_without_main_guard_is_told_so(tmp_path: Path) -> None:
    code = "from sf.cli.train import main\nexit(main(['--env=CartPole-v1', '--train_dir=runs']))\n"
    finished = script(tmp_path, code)
    assert finished.returncode == 2
    assert finished.stderr.startswith("UsageError: The script starts processes when it is imported")
    assert "Traceback" not in finished.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.more
def test_a_script_with_an_environment_of_its_own(tmp_path: Path) -> None:
    code = """
import gymnasium, sf

class Own(gymnasium.Wrapper):
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))

sf.register_env("Own", Own)
if __name__ == "__main__":
    result = sf.train("Own", train_for_env_steps=2000, num_workers=1, num_envs_per_worker=4, rollout=16)
    print("reason:", result.exit_reason)
"""
    finished = script(tmp_path, code)
    assert "reason: train_for_env_steps reached" in finished.stdout, finished.stderr


@pytest.mark.more
def test_sigterm_saves_and_ends_the_program(tmp_path: Path) -> None:
    code = """
import sf
if __name__ == "__main__":
    sf.train("CartPole-v1", num_workers=1, num_envs_per_worker=4, rollout=16, serial_mode=True,
             on_iteration=lambda it: print("iteration", it.iterations, flush=True))
    print("goes on")
"""
    (tmp_path / "script.py").write_text(code)
    process = subprocess.Popen(
        [sys.executable, "script.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    try:
        while "iteration" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 143
    assert "goes on" not in rest
    assert "Saved" in rest
