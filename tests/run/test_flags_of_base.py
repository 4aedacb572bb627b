"""Algorithms of users that derive from one of sf, whose name sets flags."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import pytest

from sf.algorithms.dqn import DQN
from sf.algorithms.ppg import PPG
from sf.algorithms.sac import SAC
from sf.cli.train import parse_config
from sf.config import Config, RunConfig
from sf.config.presets import with_preset
from sf.errors import ConfigError
from sf.learner.ppo import PPO
from sf.plugins import ALGORITHMS, name_of_algorithm
from sf.run.probes import expect_flags_of_base
from tests.helpers.commands import run

BASES = {"dqn": DQN, "sac": SAC, "ppg": PPG}
DERIVED = """from sf.algorithms.dqn import DQN

class Quicker(DQN):
    def update(self, minibatch):
        return super().update(minibatch)
"""


def config_of(base: str) -> Config:
    """What the name of an algorithm of sf sets, for one of the user's."""
    config = with_preset("none", Config(RunConfig("CartPole-v1")), base)
    return replace(config, learner=replace(config.learner, algorithm="mine:Mine"))


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("is_partial", [False, True])
def test_a_class_has_the_flags_of_its_base(
    base: str, is_partial: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ALGORITHMS, "registered", {})
    kind = type("Mine", (BASES[base],), {})
    name = name_of_algorithm(functools.partial(kind, 1) if is_partial else kind)
    given = parse_config(["--env=CartPole-v1", f"--algorithm={name}", "--gamma=0.5"])
    assert f"algorithm: {name} derives from {base} and has its defaults" in capsys.readouterr().out
    expect_flags_of_base(given, kind)
    wanted = config_of(base)
    assert replace(given.learner, algorithm="mine:Mine") == replace(wanted.learner, gamma=0.5)
    assert (given.model, given.replay, given.rollout) == (wanted.model, wanted.replay, wanted.rollout)


@pytest.mark.parametrize("base", BASES)
def test_a_flag_that_does_not_go_with_the_base_is_refused(base: str) -> None:
    with pytest.raises(ConfigError, match=f"algorithm=mine:Mine derives from {base}, which needs .* Leave --"):
        expect_flags_of_base(config_of("ppo"), type("Mine", (BASES[base],), {}))


def test_subclasses_of_ppo_and_flags_that_decide_nothing_are_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    expect_flags_of_base(config_of("ppo"), type("Mine", (PPO,), {}))
    config = config_of("dqn")
    expect_flags_of_base(replace(config, learner=replace(config.learner, learning_rate=0.5)), type("Mine", (DQN,), {}))
    for name in ("ppo", "dqn", "sf.algorithms.dqn:DQN", "nowhere:Mine", "collections:Counter"):
        base = ALGORITHMS.base_of(name)
        assert base == ("dqn" if "DQN" in name else name)
        parse_config(["--env=CartPole-v1", f"--algorithm={name}"])
    assert "derives" not in capsys.readouterr().out


@pytest.mark.more
@pytest.mark.parametrize("serial", [True, False])
def test_a_subclass_of_dqn_trains_and_resumes_without_further_flags(tmp_path: Path, serial: bool) -> None:
    (tmp_path / "derived.py").write_text(DERIVED)
    words = "--env=CartPole-v1", "--algorithm=derived:Quicker", f"--serial_mode={serial}"
    for frames in (3000, 5000):
        finished = run(tmp_path, *words, f"--train_for_env_steps={frames}")
        assert finished.code == 0, finished.out + finished.err
        assert "derived:Quicker derives from dqn and has its defaults" in finished.out
    assert "Resumed from" in finished.out
