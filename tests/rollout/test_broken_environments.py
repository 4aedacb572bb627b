"""Environments in a rollout worker that raise, return what does not fit, or cannot be closed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from sf.envs import register_env
from sf.errors import EnvError
from sf.rollout import finite
from sf.shared.slots import SlotState
from tests.environments.fault import Unpicklable
from tests.helpers.lab import make_lab
from tests.helpers.rollouts import play


class Misbehaving(gymnasium.Env[Any, Any]):
    """Behaves for 20 steps, so that the first look finds nothing."""

    def __init__(self, fault: str):
        self.fault, self.steps = fault, 0
        self.observation_space = spaces.Box(-1, 1, (4,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if self.fault == "reset raises" and self.steps > 20:
            raise RuntimeError("the door is locked")
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.steps += 1
        observation: Any = np.zeros(4, np.float32)
        reward: Any = 0.0
        if self.steps > 20:
            match self.fault:
                case "step raises":
                    raise ZeroDivisionError("no such thing")
                case "shape":
                    observation = np.zeros(1, np.float32)
                case "dtype":
                    observation = np.zeros(4, np.complex64)
                case "nan observation":
                    observation[2] = np.nan
                case "nan reward":
                    reward = float("nan")
                case "no reward":
                    reward = None
                case "array reward":
                    reward = np.zeros(3)
        return observation, reward, self.fault == "reset raises" and self.steps > 20, False, {}


register_env("test/Misbehaving", Misbehaving)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("step raises", r"environment 0: step\(\) raised ZeroDivisionError: no such thing\n.*line \d+, in step"),
        ("reset raises", r"environment 0: reset\(\) raised RuntimeError: the door is locked"),
        ("shape", r"environment 0, step\(\): it returned an observation 'obs' of shape \(1,\), but .* promises \(4,\)"),
        ("dtype", r"it returned an observation \'obs\' of dtype complex64, which does not fit into float32"),
        ("nan observation", r", environment 0 of group 0, returned a non-finite observation"),
        ("nan reward", r", environment 0 of group 0, returned a non-finite reward: nan"),
        ("no reward", r"environment 0, step\(\): it returned the reward None from step, expected a finite number"),
        ("array reward", r"it returned the reward array\(\[0., 0., 0.\]\) from step, expected a finite number"),
    ],
)
def test_environment_that_breaks_its_contract_is_named(tmp_path: Path, fault: str, message: str) -> None:
    """Rows B4, B5, B7, B8, B10, B11, B14: nothing is broadcast, cast or learned."""
    lab = make_lab(tmp_path, "test/Misbehaving", env_kwargs=f'{{"fault": "{fault}"}}', num_envs_per_worker=2)
    with pytest.raises(EnvError, match=f"(?s){message}"):
        play(lab, 10)
    assert not (lab.slots.state(0) is SlotState.FULL and np.isnan(lab.slots.rewards[0]).any())


def test_fault_b4_rewards_that_are_never_finite_end_the_run_also_where_they_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finite, "MOST_SPOILED", 30)
    kwargs = '{"fault": "nan reward"}'
    lab = make_lab(tmp_path, "test/Misbehaving", env_kwargs=kwargs, num_envs_per_worker=2, on_nonfinite="drop")
    with pytest.raises(EnvError, match=r"non-finite reward: nan\. So were all rewards of this group for 30 steps"):
        play(lab, 100)


@pytest.mark.parametrize("vectorization", ["none", "native"])
def test_fault_b6_environments_that_cannot_be_closed_nor_say_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], vectorization: str
) -> None:
    """The others are closed all the same."""
    lab = make_lab(tmp_path, "CartPole-v1", num_envs_per_worker=4, vectorization=vectorization)
    worker, closed = lab.build("rollout-0"), []

    def close(env: Any) -> None:
        closed.append(env)
        raise Unpicklable(env)

    batches = [group.envs for group in worker.groups]
    envs = [env for batch in batches for env in (batch.envs if vectorization == "none" else [batch.env])]
    for env in envs:
        monkeypatch.setattr(env, "close", lambda env=env: close(env))
    worker.close()
    assert closed == envs
    told = "close() raised Unpicklable: (the text of the exception cannot be shown)"
    assert capsys.readouterr().err.count(told) == len(envs) >= 2


@pytest.mark.parametrize("env", ["test/Counter", "test/CounterPair"])
def test_fault_b5_second_try_of_a_reset_has_the_seed_of_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], env: str
) -> None:
    """Also where a serial run keeps the seeds of all episodes, which then are as many as episodes."""
    lab = make_lab(tmp_path, env, num_envs_per_worker=2, worker_num_splits=1)
    batch = lab.build("rollout-0").groups[0].envs
    reset, seeds = batch.envs[1].reset, []

    def failing(**arguments: Any) -> Any:
        seeds.append(arguments)
        if len(seeds) % 2:
            raise OSError("the port is taken")
        return reset(**arguments)

    batch.envs[1].reset = failing
    for number in range(1, 4):
        batch.reset_one(1)
        assert seeds[-1] == seeds[-2]
        assert len(seeds) == 2 * number
    told = capsys.readouterr().out
    assert told.count("environment 1, is reset once more") == 2, "after the first and the second one"
    assert "reset() raised OSError: the port is taken" in told
    batch.envs[1].reset = lambda **_: _raise(OSError("nobody is there"))
    with pytest.raises(OSError, match="nobody is there"):
        batch.reset_one(1)


def _raise(error: BaseException) -> Any:
    raise error
