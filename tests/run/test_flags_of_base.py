"""Algorithms of users that derive from one of sf, whose name sets flags."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sf.algorithms.dqn import DQN
from sf.algorithms.ppg import PPG
from sf.algorithms.sac import SAC
from sf.cli.train import parse_config
from sf.config import Config, RunConfig, check
from sf.config.algorithm_flags import changed_algorithm_flags
from sf.config.given import given_flags
from sf.config.presets import with_preset
from sf.errors import ConfigError
from sf.learner.ppo import PPO
from sf.plugins import ALGORITHMS
from sf.run.probes import expect_flags_of_base
from tests.helpers.lab import make_config

BASES = {"dqn": DQN, "sac": SAC, "ppg": PPG}
DERIVED = """import sys
import sf
from sf.algorithms.dqn import DQN

class Quicker(DQN):
    def update(self, minibatch):
        return super().update(minibatch)

if __name__ == "__main__":
    sf.train("CartPole-v1", algorithm=Quicker, algorithm_defaults="dqn", train_for_env_steps=int(sys.argv[1]))
"""


def config_of(base: str) -> Config:
    """What the name of an algorithm of sf sets, for one of the user's."""
    config = with_preset("none", Config(RunConfig("CartPole-v1")), base)
    return replace(config, learner=replace(config.learner, algorithm="mine:Mine"))


@pytest.mark.parametrize("base", BASES)
def test_one_flag_gives_the_defaults_of_the_base(base: str) -> None:
    kind, words = (
        type("Mine", (BASES[base],), {}),
        ("--env=CartPole-v1", "--algorithm=mine:Mine", "--train_for_env_steps=9999"),
    )
    with pytest.raises(ConfigError, match=f"algorithm=mine:Mine derives from {base}, which needs") as refused:
        expect_flags_of_base(parse_config(words), kind)
    (flag,) = re.findall(r"Add (--[a-z_]+=[a-z]+),", str(refused.value))
    given = parse_config([*words, flag, "--gamma=0.5"])
    expect_flags_of_base(given, kind)
    check(given)
    wanted = config_of(base)
    assert replace(given.learner, algorithm_defaults="") == replace(wanted.learner, gamma=0.5)
    assert (given.model, given.replay, given.rollout) == (wanted.model, wanted.replay, wanted.rollout)
    names = {"env", "preset", "experiment", "train_for_env_steps", "algorithm", "algorithm_defaults", "gamma"}
    assert given_flags(given).keys() == names
    assert changed_algorithm_flags(given.learner) == ["gamma"]


def test_a_value_that_does_not_go_with_the_base_is_to_be_left_out() -> None:
    words = "--env=CartPole-v1", "--algorithm=mine:Mine", "--algorithm_defaults=dqn", "--exploration=sample"
    with pytest.raises(ConfigError, match=r"needs exploration=epsilon_greedy; found sample\. Leave --exploration out"):
        expect_flags_of_base(parse_config(words), type("Mine", (DQN,), {}))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--algorithm=mine:Mine", "--algorithm_defaults=dqqn"), "algorithm_defaults=dqqn must be one of appo, disc"),
        (("--algorithm=sac", "--algorithm_defaults=dqn"), "algorithm=sac has its own defaults. Leave it out."),
        (("--algorithm=sf.algorithms.sac:SAC", "--algorithm_defaults=dqn"), "has its own defaults. Leave it out."),
        (("--algorithm_defaults=dqn",), "algorithm=ppo has its own defaults. Leave it out."),
    ],
)
def test_defaults_of_no_base_are_refused(words: tuple[str, ...], told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check(parse_config(["--env=CartPole-v1", *words]))
    assert told in str(refused.value)


def test_subclasses_of_ppo_and_flags_that_decide_nothing_are_left_alone() -> None:
    expect_flags_of_base(config_of("ppo"), type("Mine", (PPO,), {}))
    config = config_of("dqn")
    expect_flags_of_base(replace(config, learner=replace(config.learner, learning_rate=0.5)), type("Mine", (DQN,), {}))
    partial = functools.partial(SAC, make_config().learner)
    assert [ALGORITHMS.bases_of(made) for made in (PPO, DQN, partial, "dqn", dict)] == [[], ["dqn"], ["sac"], [], []]


def test_defaults_of_another_base_are_refused() -> None:
    config = parse_config(["--env=CartPole-v1", "--algorithm=mine:Mine", "--algorithm_defaults=dqn"])
    with pytest.raises(ConfigError, match="algorithm_defaults=dqn, but algorithm=mine:Mine derives from ppg"):
        expect_flags_of_base(config, type("Mine", (PPG,), {}))
    expect_flags_of_base(config, type("Mine", (PPO,), {}))


@pytest.mark.more
def test_a_subclass_of_dqn_in_a_program_trains_and_resumes_with_one_flag(tmp_path: Path) -> None:
    (tmp_path / "derived.py").write_text(DERIVED)
    for frames in (3000, 5000):
        done = subprocess.run(
            [sys.executable, "derived.py", str(frames)], cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert "Resumed from" in done.stdout
    assert "replay buffer of policy 0 begins empty" in done.stdout
