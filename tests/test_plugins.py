"""Settings of encoders and algorithms of users: checked against the constructor, given to it, and kept."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import sf
from sf.cli import evaluate
from sf.config import LearnerConfig, ModelConfig, check
from sf.envs import find_env, probe
from sf.errors import ConfigError, ExitCode
from sf.learner.changes import refused_changes
from sf.plugins import ALGORITHMS, ENCODERS
from sf.plugins.settings import settings_for
from sf.policy import ActorCritic, PolicySaver, TrainedPolicy
from tests.helpers.commands import EXPERIMENT, run
from tests.helpers.lab import make_config

FILE = """
import sf, torch

class Scaled(sf.PPO):
    def __init__(self, config, scale, weight=0.5):
        super().__init__(config)
        print(f"scale {scale}, weight {weight}", flush=True)

class Wide(torch.nn.Module):
    def __init__(self, shapes, config, *, width=8):
        super().__init__()
        self.layer = torch.nn.Linear(shapes["obs"][0], width)

    def forward(self, observations):
        return self.layer(observations["obs"])
"""
SMALL = ("--env=CartPole-v1", "--experiment=default_experiment", "--num_workers=1", "--num_envs_per_worker=4")
MINE = ("--algorithm=mine:Scaled", "--encoder=mine:Wide")


def scaled(config: object, scale: float, weight: float = 0.5) -> None:
    pass


def anything(config: object, **settings: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("make", "text", "problem", "takes"),
    [
        (scaled, '{"scal": 1}', "missing a required argument: 'scale'", "scale, weight=0.5"),
        (scaled, '{"scale": 1, "wait": 1}', "got an unexpected keyword argument 'wait'", "scale, weight=0.5"),
        (functools.partial(scaled, scale=1), '{"config": 1}', "multiple values for argument 'config'", "scale=1, wei"),
        (lambda config: None, '{"a": 1}', "got an unexpected keyword argument 'a'", "no settings"),
    ],
)
def test_settings_that_do_not_fit_are_one_sentence(
    make: Callable[..., Any], text: str, problem: str, takes: str
) -> None:
    sentence = f"^algorithm_kwargs={re.escape(text)} does not fit algorithm=it: {problem}. It takes {re.escape(takes)}"
    with pytest.raises(ConfigError, match=sentence):
        settings_for("algorithm", "it", make, text, num_given=1)


def test_settings_that_fit_are_given() -> None:
    assert settings_for("algorithm", "it", scaled, '{"scale": [1, 2]}', num_given=1) == {"scale": [1, 2]}
    assert settings_for("algorithm", "it", anything, '{"scale": 1}', num_given=1) == {"scale": 1}


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"algorithm_kwargs": '{"scale": 1}'}, "settings of a plugin, and algorithm=ppo is none"),
        ({"encoder_kwargs": '{"width": 1}'}, "settings of a plugin, and encoder=auto is none"),
        ({"algorithm_kwargs": "[1]"}, r"algorithm_kwargs='\[1\]' is not a JSON object"),
        ({"encoder_kwargs": "{width: 1}"}, r"encoder_kwargs='{width: 1}' is not a JSON object \(Expecting"),
    ],
)
def test_settings_without_a_plugin_or_in_another_form_are_refused(flags: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check(make_config(**flags))


@pytest.mark.more
@pytest.mark.parametrize("serial", ["True", "False"])
def test_a_run_with_settings(tmp_path: Path, serial: str) -> None:
    (tmp_path / "mine.py").write_text(FILE)
    flags = (*SMALL, *MINE, f"--serial_mode={serial}", "--train_for_env_steps=200", '--encoder_kwargs={"width": 24}')
    refused = run(tmp_path, *flags, '--algorithm_kwargs={"scal": 2}')
    assert refused.code == ExitCode.USAGE
    assert "It takes scale, weight=0.5." in refused.err
    assert not (tmp_path / EXPERIMENT).exists()
    trained = run(tmp_path, *flags, '--algorithm_kwargs={"scale": 2}')
    assert trained.code == ExitCode.FINISHED, trained.err
    assert "scale 2, weight 0.5" in trained.out
    config = json.loads((tmp_path / EXPERIMENT / "config.json").read_text())
    assert json.loads(config["learner"]["algorithm_kwargs"]) == {"scale": 2}
    assert json.loads(config["model"]["encoder_kwargs"]) == {"width": 24}


class Wide(torch.nn.Module):
    def __init__(self, shapes: Any, config: Any, width: int = 8) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(shapes["obs"][0], width)

    def forward(self, observations: Any) -> Any:
        return self.layer(observations["obs"])


class Kept(sf.PPO):
    scales: list[float] = []  # noqa: RUF012  # shared on purpose

    def __init__(self, config: LearnerConfig, scale: float = 1.0) -> None:
        super().__init__(config)
        self.scales.append(scale)


def test_a_program_gives_dicts_and_a_policy_is_loaded_with_them(tmp_path: Path) -> None:
    sf.register_model("wide", Wide)
    try:
        result = sf.train(
            "CartPole-v1", train_dir=str(tmp_path), serial_mode=True, num_envs_per_worker=4, train_for_env_steps=200,
            algorithm=Kept, algorithm_kwargs={"scale": 3}, encoder="wide", encoder_kwargs={"width": 24},
        )  # fmt: skip
        assert Kept.scales[-1] == 3
        shapes = [tuple(variable.shape) for variable in result.policy.variables().values()]
        assert (24, 4) in shapes
    finally:
        del ENCODERS.registered["wide"]


def test_a_checkpoint_from_before_these_settings_has_none() -> None:
    now = {"config": make_config().to_json()}
    before = json.loads(json.dumps(now))
    del before["config"]["model"]["encoder_kwargs"]
    assert refused_changes(before, now) == []
    now["config"]["model"]["encoder_kwargs"] = '{"width": 24}'
    assert refused_changes(before, now) != []


def test_the_module_of_the_environment_registers_what_a_policy_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script gives names to an environment and an encoder; a command that plays its policy runs it."""
    monkeypatch.setattr(ENCODERS, "registered", {"wide": Wide})
    policy = ActorCritic(probe(find_env("CartPole-v1")), ModelConfig(encoder="wide"))
    PolicySaver(TrainedPolicy(policy)).save(tmp_path / "saved")
    script = "import sf\nfrom tests.test_plugins import Wide\nsf.register_model('wide', Wide)\n"
    (tmp_path / "script_with_names.py").write_text(script)
    monkeypatch.syspath_prepend(tmp_path)
    ENCODERS.registered.clear()
    words = f"--policy={tmp_path / 'saved'}", "--num_episodes=1", "--num_workers=1"
    assert evaluate.main([*words, "--env=CartPole-v1"]) == 4
    assert evaluate.main([*words, "--env=script_with_names:CartPole-v1"]) == 0


@pytest.mark.parametrize("name", ["PPO", "Ppo"])
def test_the_default_is_among_the_names_and_meant_by_its_capitals(name: str) -> None:
    with pytest.raises(ConfigError, match=r"registered: .*ppo, pqn.*\)\. Did you mean ppo\? Give"):
        ALGORITHMS.check(name)


def test_what_comes_with_sf_needs_no_trust(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ENCODERS, "registered", {})
    ENCODERS.trust("auto")
    assert ENCODERS.registered == {}
    with pytest.raises(ConfigError, match=r"encoder=nope is not registered \(registered: auto\)"):
        ENCODERS.trust("nope")
