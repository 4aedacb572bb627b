"""Classes and functions that other processes cannot import: of a notebook, below a main guard, of a function."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from sf.config import LearnerConfig
from sf.errors import ExitCode, UsageError
from sf.learner.ppo import PPO
from sf.nets.networks import Encoder
from sf.plugins import ALGORITHMS, ENCODERS, name_of_algorithm, name_of_encoder
from tests.helpers.commands import ROOT, TIMEOUT_S

SCRIPT = """
import functools
import gymnasium
import sf

if __name__ == "__main__":
    class Guarded(sf.PPO):
        def __init__(self, config, scale=1.0):
            super().__init__(config)
            self.scale = scale

        def loss(self, evaluation, minibatch):
            return super().loss(evaluation, minibatch).plus(extra=0.0 * self.scale * evaluation.entropy.mean())

    class Stepping(gymnasium.wrappers.TimeLimit):
        def __init__(self):
            super().__init__(gymnasium.make("CartPole-v1").unwrapped, 50)

    sf.register_env("Mine", lambda: Stepping())
    gymnasium.register("Mine-v0", entry_point=Stepping)
    sf.register_model("small", lambda shapes, config: __import__("torch").nn.Linear(4, 8))
    result = sf.train(
        "{env}", algorithm={algorithm}, train_for_env_steps=1500, num_workers=1, seed=1, serial_mode={serial},
        experiment_summaries_interval=1,
    )
    assert "train/extra" in result.metrics, sorted(result.metrics)
    print(result.exit_reason)
"""


@pytest.mark.more
@pytest.mark.parametrize(
    ("env", "algorithm", "serial"),
    [("Mine", "Guarded", True), ("Mine-v0", "functools.partial(Guarded, scale=2.0)", False)],
)
def test_classes_below_a_main_guard_train(env: str, algorithm: str, serial: bool, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(env=env, algorithm=algorithm, serial=serial))
    finished = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S,
        env={"PYTHONPATH": ROOT, "PATH": "/usr/bin:/bin"}, check=False,
    )  # fmt: skip
    assert finished.returncode == ExitCode.FINISHED, finished.stderr
    assert "train_for_env_steps reached" in finished.stdout


def test_a_partial_class_has_its_arguments_in_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ALGORITHMS, "registered", {})
    partial = functools.partial(PPO, scale=2.0)  # type: ignore[call-arg]  # that of a subclass
    name = name_of_algorithm(partial)
    assert name == "sf.learner.ppo:PPO(scale=2.0)"
    assert ALGORITHMS.find(name) is partial
    arguments: Any = {"key": [1]}
    named = name_of_algorithm(functools.partial(PPO, *(LearnerConfig(), len), **arguments))  # type: ignore[call-arg]
    assert named == "sf.learner.ppo:PPO(LearnerConfig, len, key=list)", "the same in every process"


def test_an_encoder_is_named_after_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ENCODERS, "registered", {})
    assert name_of_encoder("auto") == "auto"
    assert name_of_encoder(Encoder) == "sf.nets.networks:Encoder"
    assert ENCODERS.find("sf.nets.networks:Encoder") is Encoder
    with pytest.raises(UsageError, match=r"encoder is .*, expected a torch module's class or a function"):
        name_of_encoder(nn.Linear(2, 2))


@pytest.mark.parametrize("wrong", [PPO(LearnerConfig()), None, 3])
def test_an_object_in_place_of_a_class_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match=r"algorithm is .*, expected a subclass of sf\.Algorithm, a functools"):
        name_of_algorithm(wrong)
