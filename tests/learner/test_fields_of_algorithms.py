"""Columns that an algorithm asks for: heads of the acting network, and observations after cut episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sf
from examples.algorithms.second_value import PPOWithSecondValue, TwoValues
from sf.config import ModelConfig
from sf.errors import ConfigError, ExitCode
from sf.inference.carrier import OnHost
from sf.inference.packing import Packing, packed
from sf.learner.trial import fields_of, loss_terms_of
from sf.plugins import register_model
from sf.policy import ActorCritic
from sf.shared.fields import head_field
from sf.shared.slot_fields import last_observation_fields
from sf.spaces import EnvInfo, LeafSpec
from tests.helpers.commands import run
from tests.helpers.lab import make_lab_with_fields, step_until
from tests.helpers.updates import DISCRETE, learner_config, make_policy

EXAMPLE = "examples.algorithms.second_value"
INFO = EnvInfo("test", 1, {"obs": LeafSpec((4,), "float32")}, DISCRETE)


def two_values() -> ActorCritic:
    register_model("two_values", TwoValues)
    return ActorCritic(INFO, ModelConfig(encoder="two_values"))


@pytest.mark.parametrize("axes", [True, False])
def test_the_head_of_the_acting_network_is_stored_for_each_observation(axes: bool, tmp_path: Path) -> None:
    lab = make_lab_with_fields({"near_value": head_field(of_last=axes)}, tmp_path, encoder=f"{EXAMPLE}:TwoValues")
    slots, roles = lab.slots, lab.build_all()
    step_until(roles[1:], lambda: len(slots.waiting_for(0)) > 0)
    slot = slots.waiting_for(0)[0]
    network, (leaf,) = roles[0].network, slots.observations.values()
    seen, stored = torch.from_numpy(leaf[slot].copy()), slots["near_value"][slot]
    with torch.no_grad():
        (inputs,) = network.inputs({"obs": seen.flatten(0, 1)}).values()
        right = network.encoder.heads(network.encoder({"obs": inputs}))["near_value"].view(seen.shape[:2])
    assert len(stored) == slots.topology.rollout + axes
    np.testing.assert_allclose(stored, right[: len(stored)], rtol=1e-4, atol=1e-5)
    for role in roles:
        role.close()


@pytest.mark.more
@pytest.mark.parametrize("mode", [("--serial_mode=True", "--async_rl=False"), ()])
def test_an_algorithm_learns_from_a_field_that_the_network_computes(mode: tuple[str, ...], tmp_path: Path) -> None:
    done = run(
        tmp_path, "--env=CartPole-v1", f"--encoder={EXAMPLE}:TwoValues", f"--algorithm={EXAMPLE}:PPOWithSecondValue",
        "--num_workers=1", "--num_envs_per_worker=4", "--rollout=8", "--batch_size=64", "--num_batches_per_epoch=1",
        "--num_epochs=1", "--train_for_env_steps=640", *mode,
    )  # fmt: skip
    assert done.code == ExitCode.FINISHED, done.err


@pytest.mark.parametrize("with_memory", [True, False])
def test_heads_come_back_from_a_device_in_one_transfer(with_memory: bool) -> None:
    policy = two_values()
    policy.answer_heads(["near_value"])
    step = policy.act({"obs": torch.randn(5, 4)})
    wide = torch.randn(5, 2, 3)
    info = step.info._replace(heads={**step.info.heads, "wide": wide})
    step = step._replace(info=info, state=torch.randn(5, 2) if with_memory else ())
    with torch.inference_mode():
        there, here = Packing(step).unpack(packed(step).numpy()), OnHost().bring(step)
    assert there.heads.keys() == here.heads.keys() == {"near_value", "wide"}
    for found, right in zip(
        there[:4] + tuple(there.heads.values()), here[:4] + tuple(here.heads.values()), strict=True
    ):
        np.testing.assert_array_equal(found, right)


def test_a_field_without_its_head_is_refused_before_the_run() -> None:
    config = learner_config()
    algorithm = PPOWithSecondValue(config)
    assert loss_terms_of(algorithm, two_values())[-1] == "near_value_loss"
    with pytest.raises(ConfigError, match=r"field 'near_value' has values of shape \[\], but heads.* returns nothing"):
        loss_terms_of(algorithm, make_policy(DISCRETE))
    with pytest.raises(ConfigError, match="has no method heads"):
        make_policy(DISCRETE).answer_heads(["near_value"])


def test_what_are_no_fields_is_told() -> None:
    class Wrong(sf.PPO):
        def fields(self, info: EnvInfo) -> Any:
            return {"near_value": "float32"}

    with pytest.raises(ConfigError, match="algorithm=Wrong: fields must return a dict of StoredField by name"):
        fields_of(Wrong(learner_config()), INFO)


def test_the_last_observation_of_a_cut_episode_is_stored(tmp_path: Path) -> None:
    """Cut episodes are those that CartPole has not ended after 7 steps, so that pole and cart are where they can be."""
    info = EnvInfo("CartPole-v1", 1, {"obs": LeafSpec((4,), "float32")}, DISCRETE)
    lab = make_lab_with_fields(last_observation_fields(info), tmp_path, max_episode_steps=7, rollout=16)
    slots, roles = lab.slots, lab.build_all()
    step_until(roles[1:], lambda: len(slots.waiting_for(0)) > 0)
    slot = slots.waiting_for(0)[0]
    known, (last,), (seen,) = (
        slots["has_last_observation"][slot], slots.last_observations.values(), slots.observations.values(),
    )  # fmt: skip
    np.testing.assert_array_equal(known, slots.truncated[slot])
    assert known.any()
    for t, row in zip(*np.nonzero(known), strict=True):
        before, after = seen[slot, t, row], last[slot, t, row]
        np.testing.assert_allclose(after[0] - before[0], 0.02 * before[1], atol=1e-6)  # a step of Euler's rule
        np.testing.assert_allclose(after[2] - before[2], 0.02 * before[3], atol=1e-6)
        assert not np.array_equal(after, seen[slot, t + 1, row])  # which begins the next episode
    for role in roles:
        role.close()
