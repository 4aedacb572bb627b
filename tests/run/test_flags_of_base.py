"""Algorithms of users that derive from one of sf, whose name sets flags."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from sf.algorithms.dqn import DQN
from sf.algorithms.ppg import PPG
from sf.algorithms.sac import SAC
from sf.cli.train import parse_config
from sf.config import Config, RunConfig
from sf.config.presets import with_preset
from sf.errors import ConfigError
from sf.learner.ppo import PPO
from sf.run.probes import expect_flags_of_base

BASES = {"dqn": DQN, "sac": SAC, "ppg": PPG}


def config_of(base: str) -> Config:
    """What the name of an algorithm of sf sets, for one of the user's."""
    config = with_preset("none", Config(RunConfig("CartPole-v1")), base)
    return replace(config, learner=replace(config.learner, algorithm="mine:Mine"))


@pytest.mark.parametrize("base", BASES)
def test_a_class_that_derives_from_one_is_told_all_flags_at_once(base: str) -> None:
    kind, bare = type("Mine", (BASES[base],), {}), config_of("ppo")
    with pytest.raises(ConfigError, match=f"algorithm=mine:Mine derives from {base}, which needs") as refused:
        expect_flags_of_base(bare, kind)
    flags = shlex.split(str(refused.value).partition("keep: ")[2])
    given = parse_config(["--env=CartPole-v1", "--algorithm=mine:Mine", *flags])
    expect_flags_of_base(given, kind)
    wanted = config_of(base)
    assert replace(given.learner, algorithm="") == replace(wanted.learner, algorithm="")
    assert (given.model, given.replay) == (wanted.model, wanted.replay)


def test_subclasses_of_ppo_and_flags_that_decide_nothing_are_left_alone() -> None:
    expect_flags_of_base(config_of("ppo"), type("Mine", (PPO,), {}))
    config = config_of("dqn")
    expect_flags_of_base(replace(config, learner=replace(config.learner, learning_rate=0.5)), type("Mine", (DQN,), {}))
