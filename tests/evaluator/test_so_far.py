"""An evaluation says how far it is, and what it has reached so far."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sf.cli import evaluate
from sf.config import Config, ModelConfig, RunConfig
from sf.envs import find_env, probe
from sf.envs.stepping import Ended
from sf.evaluator.so_far import SoFar
from sf.evaluator.tally import Tally
from sf.policy import ActorCritic
from sf.processes import telling
from sf.storage import checkpoint

SMALL = ModelConfig(encoder_mlp_layers=(8,))
WAITING = "tests.environments.waiting:Waiting-v0"


def end(tally: Tally, rows: dict[int, float]) -> None:
    """One step in which the episodes of these rows end with these rewards."""
    rewards = np.array([rows.get(row, 0.0) for row in range(2)])
    tally.add(rewards, [Ended(row, True, False, {}) for row in rows])


def test_sentences_sum_up_what_all_processes_have_played() -> None:
    so_far = SoFar(num_workers=2, num_policies=1)
    assert so_far.told("Toy", 1200, 6.4) == "Evaluating on Toy: environments are being made or reset, 6 s so far."
    for worker, reward in enumerate((1.0, 4.0)):
        writer, tally = so_far.writer(worker), Tally(600, 2, np.zeros(2, int))
        writer.look(tally, 1)
        end(tally, {0: reward})
        writer.look(tally, 2)
        end(tally, {0: reward, 1: reward})
        writer.look(tally, 1500)
    assert so_far.told("Toy", 1200, 61.0) == (
        "Evaluating on Toy: 6 of 1,200 episodes have ended, mean return 2.500, 1,500 steps of each environment, "
        "61 s so far."
    )


def test_each_policy_has_a_mean_of_its_own_and_an_environment_of_several_agents_counts_once() -> None:
    so_far, tally = SoFar(num_workers=1, num_policies=2), Tally(2, 1, np.array([0, 1]))
    for row, is_last in ((0, False), (1, True)):
        tally.add(np.array([1.0, 2.0]), [Ended(row, True, False, {}, is_last)])
    so_far.writer(0).look(tally, 3)
    assert "1 of 2 episodes have ended, mean return 1.000, 4.000, 3 steps" in so_far.told("Toy", 2, 1.0)


@pytest.mark.more
def test_sf_eval_tells_of_all_processes_while_they_play_and_only_on_standard_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of two processes plays 130 episodes in 64 environments, which wait in their second step to be told about."""
    gate = tmp_path / "gate"
    save(tmp_path, gate)
    monkeypatch.setattr(telling, "FIRST_S", 0.0)
    monkeypatch.setattr(telling, "GROWTH", 1.0)
    monkeypatch.setattr(telling, "LOOK_S", 0.005)
    tell, ready = evaluate._tell_progress, evaluate._ready
    has_told_of_loading = threading.Event()

    def ready_late(*arguments: Any) -> Any:
        """Torch is here already, so that loading may be over before anything looks at it."""
        policies = ready(*arguments)
        assert has_told_of_loading.wait(60)
        return policies

    def heard(line: str) -> None:
        tell(line)
        if line.startswith("Loading torch and policies"):
            has_told_of_loading.set()
        if "128 of 260 episodes have ended, mean return 1.000, 1 steps of each environment" in line:
            gate.touch()

    monkeypatch.setattr(evaluate, "_tell_progress", heard)
    monkeypatch.setattr(evaluate, "_ready", ready_late)
    flags = [f"--train_dir={tmp_path}", "--experiment=run1", f"--env={WAITING}", "--json"]
    assert evaluate.main([*flags, "--num_episodes=260", "--num_workers=2"]) == 0
    shown = capsys.readouterr()
    assert next(iter(json.loads(shown.out)["policies"].values()))["mean"] == 1.0
    assert "Loading torch and policies, 0 s so far." in shown.err
    assert gate.exists()


def save(directory: Path, gate: Path) -> None:
    """What a learner would write."""
    arguments = {"gate": str(gate)}
    gate.touch()
    info = probe(find_env(WAITING, arguments))
    gate.unlink()
    config = Config(RunConfig(env=WAITING, env_kwargs=json.dumps(arguments)), model=SMALL)
    tensors = {f"policy.{name}": tensor for name, tensor in ActorCritic(info, SMALL).variables().items()}
    data = {"config": config.to_json(), "env": info.to_json(), "reward": None}
    (directory / "run1").mkdir()
    checkpoint.save(directory / "run1" / "checkpoint_p0", 0, 0, tensors | {"version": torch.tensor(0)}, data)
