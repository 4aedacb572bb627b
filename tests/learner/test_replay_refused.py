"""What cannot work with `--replay=staleness` is refused, before a run begins if that can be known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sf.config import LearnerConfig, ReplayConfig, check
from sf.errors import ConfigError, ResourceError
from sf.learner.batch import Batch
from sf.learner.dataset import Transitions
from sf.learner.minibatches import Selection
from sf.learner.ppo import PPO
from sf.learner.replayed import ReplayedMinibatches
from sf.learner.update import Update
from sf.policy import ActorCritic
from tests.helpers.lab import make_lab
from tests.helpers.updates import act, learner_config, make_policy, one_thread_and_seed

REPLAY = ReplayConfig("staleness", replay_size=200)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    one_thread_and_seed()


class WideColumn(PPO):
    """Adds a column of 2^40 bytes to each transition, without taking them."""

    def prepare(self, batch: Batch, policy: ActorCritic) -> Transitions:
        transitions = super().prepare(batch, policy)
        return transitions.with_columns(wide=torch.zeros(1, 1).expand(len(transitions), 2**38))


def test_columns_of_an_algorithm_that_do_not_fit_are_refused_when_they_are_known() -> None:
    config, policy = learner_config(num_epochs=2, num_batches_per_epoch=2), make_policy()
    source = ReplayedMinibatches(policy, config, REPLAY, lambda: 0)
    batch = act(policy, num_steps=1, num_trajectories=1)
    wide = WideColumn(config).prepare(batch, policy)
    with pytest.raises(ResourceError, match=r"The replay buffer takes .* GiB, .* bytes for each of 200 entries, but"):
        source.add(batch, wide, Selection(batch.valid, 0 * batch.policy_version, 1000))


class PreparesOften(PPO):
    """Prepares before each epoch."""

    def __init__(self, config: LearnerConfig) -> None:
        super().__init__(config)
        self.prepares_each_epoch = True


def test_an_algorithm_that_prepares_before_each_epoch_is_refused() -> None:
    config = learner_config()
    with pytest.raises(ConfigError, match="algorithm=PreparesOften prepares the newest batch before each epoch"):
        Update(make_policy(), config, algorithm=PreparesOften(config), replay=REPLAY)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            {"replay_size": 63},
            r"replay_size=63 is less than one batch of 64 transitions .* Use --replay_size=64 or more",
        ),
        ({"max_staleness": 6, "num_epochs": 8}, r"max_staleness=6 leaves nothing to draw: .* Use --max_staleness=7 or"),
        (
            {"max_staleness": 4, "num_epochs": 2, "worker_num_splits": 1, "batch_size": 48},
            r"8 trajectories of a group share batches, so some wait for the next one. Use --max_staleness=5",
        ),
        (
            {"replay_size": 10**12},
            r"replay_size=1000000000000 transitions take .* GiB, 48 bytes each, but the (machine|container) has",
        ),
    ],
)
def test_a_buffer_that_cannot_work_is_refused(tmp_path: Path, flags: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make_lab(tmp_path, replay="staleness", async_rl=True, **{"max_staleness": -1, **flags})


@pytest.mark.parametrize(
    "flags",
    [
        {"with_vtrace": True},
        {"recompute_advantages": True},
        {"target_kl": 0.1},
        {"lr_schedule": "kl_adaptive_epoch"},
        {"objective": "decoupled"},
    ],
)
def test_what_compares_with_the_newest_batch_is_refused(tmp_path: Path, flags: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="with replay=staleness: it compares the policy with the newest batch"):
        make_lab(tmp_path, replay="staleness", **flags)


def test_a_buffer_of_several_learners_is_refused(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, replay="staleness")
    learner = replace(lab.config.learner, num_learners=2)
    config = replace(lab.config, learner=learner, run=replace(lab.config.run, serial_mode=False))
    with pytest.raises(ConfigError, match="num_learners=2 with replay=staleness: a buffer belongs to one learner"):
        check(config, lab.specs[0].arguments["context"].info)


def test_without_replay_its_flags_are_not_looked_at(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, replay_size=1, max_staleness=0)
    check(lab.config, lab.specs[0].arguments["context"].info)
