"""`sf.evaluate`: the numbers of `sf-eval`, and refusals before anything plays."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sf
from sf.cli import evaluate as command
from sf.envs import find_env, probe, register_env
from sf.errors import CheckpointError, EnvError, UsageError
from sf.policy import ActorCritic, GreedyPolicy, PolicySaver, RandomPolicy, TrainedPolicy
from tests.cli.test_evaluate import SMALL, save
from tests.environments.luck import Luck


@pytest.fixture
def run(tmp_path: Path) -> Path:
    save(tmp_path / "run1" / "checkpoint_p0")
    return tmp_path / "run1"


def numbers_of_command(capsys: pytest.CaptureFixture[str], run: Path, *flags: str) -> dict[str, Any]:
    capsys.readouterr()
    assert command.main([f"--train_dir={run.parent}", f"--experiment={run.name}", "--json", *flags]) == 0
    (numbers,) = json.loads(capsys.readouterr().out)["policies"].values()
    return dict(numbers)


@pytest.mark.more
@pytest.mark.parametrize("num_workers", [1, 2])
def test_the_numbers_are_those_of_the_command(run: Path, capsys: pytest.CaptureFixture[str], num_workers: int) -> None:
    expected = numbers_of_command(capsys, run, "--num_episodes=12", "--seed=3", f"--num_workers={num_workers}")
    for policy, env in ((run, None), (str(run), "CartPole-v1"), (sf.load_policy(run), "CartPole-v1")):
        found = sf.evaluate(policy, env, episodes=12, seed=3, num_workers=num_workers)
        assert found.num_episodes == 12
        assert (found.mean, found.low, found.high) == (expected["mean"], expected["low"], expected["high"])
        assert list(found.quantiles) == expected["quantiles"]
    assert sf.evaluate(run, episodes=12, seed=4).mean != expected["mean"]


def test_greedy_actions_of_either_kind(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = numbers_of_command(capsys, run, "--num_episodes=5", "--deterministic=True")["mean"]
    policy = sf.load_policy(run)
    assert sf.evaluate(run, episodes=5, deterministic=True).mean == expected
    assert sf.evaluate(policy, "CartPole-v1", episodes=5, deterministic=True).mean == expected
    assert sf.evaluate(GreedyPolicy(policy), "CartPole-v1", episodes=5).mean == expected
    assert sf.evaluate(policy, "CartPole-v1", episodes=5).mean != expected


def test_a_saved_policy_and_arguments_of_the_environment(run: Path, tmp_path: Path) -> None:
    PolicySaver(sf.load_policy(run)).save(tmp_path / "saved")
    paid = sf.evaluate(
        tmp_path / "saved", "CartPole-v1", episodes=5, env_kwargs={"sutton_barto_reward": np.bool_(True)}
    )
    assert paid.mean == -1.0
    assert sf.evaluate(tmp_path / "saved", "CartPole-v1", episodes=5, max_episode_steps=3).maximum == 3.0


def test_the_generators_of_the_program_and_its_threads_stay_as_they_are() -> None:
    register_env("ForLuck", Luck)
    policy = TrainedPolicy(ActorCritic(probe(find_env("ForLuck", {"kind": "numpy"})), SMALL))

    def drawn(after: bool) -> list[float]:
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        if after:
            first = sf.evaluate(policy, "ForLuck", episodes=3, env_kwargs={"kind": "numpy"})
            assert first == sf.evaluate(policy, "ForLuck", episodes=3, env_kwargs={"kind": "numpy"})
        return [random.random(), float(np.random.random()), float(torch.rand(()))]

    num_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert drawn(after=True) == drawn(after=False)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(num_threads)


@pytest.mark.parametrize(
    ("arguments", "flags", "error", "message"),
    [
        ((3,), {}, UsageError, "policy is a int, expected one of sf.load_policy, or the directory of a run"),
        (("run1", object()), {}, UsageError, "env is a object, expected the id of an environment such as CartPole-v1"),
        (("run1", None, 0), {}, UsageError, "episodes=0, expected an integer of at least 1"),
        (("run1", None, 2.5), {}, UsageError, "episodes=2.5, expected an integer of at least 1"),
        (("run1", None, 2, -1), {}, UsageError, "seed=-1, expected an integer of at least 0"),
        (("run1",), {"num_workers": 0}, UsageError, "num_workers=0, expected"),
        (("run1",), {"policy_id": 1}, UsageError, r"policy_id=1, but .*run1 has the policies 0 to 0"),
        (("run1",), {"checkpoint": "best"}, CheckpointError, "There is no checkpoint in"),
        (("elsewhere", "CartPole-v1"), {}, CheckpointError, "There is no policy in .*elsewhere"),
        (("run1", "Acrobot-v1"), {}, EnvError, "Acrobot-v1 is not what it should be"),
        (("run1",), {"env_kwargs": {"rule": object()}}, UsageError, "cannot be written as a JSON object"),
    ],
)
def test_refusals(
    run: Path, monkeypatch: pytest.MonkeyPatch, arguments: Any, flags: Any, error: type[Exception], message: str
) -> None:
    monkeypatch.chdir(run.parent)
    with pytest.raises(error, match=message):
        sf.evaluate(*arguments, **flags)


def test_policies_that_cannot_be_played(run: Path) -> None:
    trained = sf.load_policy(run)
    with pytest.raises(UsageError, match="A policy does not know its environment"):
        sf.evaluate(trained)
    drawing = RandomPolicy(trained.time_step_spec, trained.action_spec)
    with pytest.raises(UsageError, match="policy is a RandomPolicy, but only a TrainedPolicy"):
        sf.evaluate(drawing, "CartPole-v1")


@pytest.mark.more
def test_a_script_without_main_guard_is_told_so(run: Path) -> None:
    (run.parent / "script.py").write_text("import sf\nprint(sf.evaluate('run1', episodes=4, num_workers=2))\n")
    finished = subprocess.run(
        [sys.executable, "script.py"], cwd=run.parent, capture_output=True, text=True, timeout=120, check=False
    )
    assert finished.returncode == 1
    assert 'Put the call of sf below\n    if __name__ == "__main__":\n' in finished.stderr
    assert "Summary" not in finished.stdout
