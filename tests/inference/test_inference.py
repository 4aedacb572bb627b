"""Inference workers: batching, labels and values, without any other process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sf_envs.counter import Counter
from sf_envs.echo import EPISODE_STEPS, TwoAgentEcho

from sf.envs import register_env
from sf.inference.network_actor import NetworkActor
from sf.inference.worker import InferenceWorker
from sf.nets.device import to_host
from sf.policy import ActorCritic
from sf.rollout.worker import RolloutWorker
from sf.shared.weights import PublishedWeights
from tests.helpers.lab import Lab, make_lab

register_env("test/Counter", Counter)
register_env("test/TwoAgentEcho", TwoAgentEcho)


def publisher(lab: Lab) -> tuple[PublishedWeights, ActorCritic]:
    """The weights that the learner would publish, and a policy to compare with."""
    spec = next(spec for spec in lab.specs if spec.name == "inference-0-0")
    weights: PublishedWeights = spec.arguments["weights"]
    torch.manual_seed(0)
    policy = ActorCritic(spec.arguments["context"].info, lab.config.model)
    weights.allocate(policy.flat.numel())
    return weights, policy


def make_roles(lab: Lab, num_workers: int = 1) -> tuple[list[RolloutWorker], InferenceWorker]:
    return [lab.build(f"rollout-{i}") for i in range(num_workers)], lab.build("inference-0-0")


def test_nothing_is_computed_before_the_first_publication(tmp_path: Path) -> None:
    lab = make_lab(tmp_path)
    weights, policy = publisher(lab)
    (worker,), inference = make_roles(lab)
    worker.step()
    assert not inference.step()
    weights.publish(0, to_host(policy.flat))
    assert inference.step()


def test_s4_one_forward_pass_serves_every_request_that_waits(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, num_envs_per_worker=8, worker_num_splits=4)
    weights, policy = publisher(lab)
    weights.publish(0, to_host(policy.flat))
    (worker,), inference = make_roles(lab)
    sizes: list[int] = []
    act = inference.actor.act

    def spy(observations: Any, *arguments: Any) -> Any:
        sizes.append(sum(map(len, observations["obs"])))
        return act(observations, *arguments)

    inference.actor.act = spy  # type: ignore[assignment,method-assign]
    for _ in range(3):
        worker.step()
        assert inference.step()
    assert sizes == [8, 8, 8]
    assert inference.record["requests"] / inference.record["forwards"] == 4


def test_s4_a_lonely_request_is_answered_at_once(tmp_path: Path) -> None:
    lab = make_lab(tmp_path)
    weights, policy = publisher(lab)
    weights.publish(0, to_host(policy.flat))
    (worker,), inference = make_roles(lab)
    worker.groups[0].advance()
    assert inference.step()
    assert worker.groups[0].requests.is_answered(0)
    assert not inference.step()


def test_s5_the_very_next_action_uses_new_weights_and_carries_their_label(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, rollout=6, normalize_input=False, normalize_returns=False)
    weights, policy = publisher(lab)
    (worker,), inference = make_roles(lab)
    for version in range(6):
        with torch.no_grad():
            policy.policy_head.bias[:] = torch.tensor([version * 1.0, -version * 0.5])
        weights.publish(version, to_host(policy.flat))
        worker.step()
        assert inference.step()
        slots = lab.slots
        assert (slots.policy_version[0, version] == version).all()
        observations = {"obs": torch.from_numpy(slots.observations["obs"][0, version])}
        expected = policy.evaluate(observations, torch.from_numpy(slots.actions[0, version]))
        np.testing.assert_allclose(slots.log_probs[0, version], expected.log_probs.detach(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(slots.values[0, version], expected.normalized_values.detach(), rtol=1e-5, atol=1e-6)


def test_final_observations_are_valued_in_the_same_forward_pass(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, "test/Counter", env_kwargs=json.dumps({"episode_steps": 4, "truncate": True}), rollout=6)
    weights, policy = publisher(lab)
    weights.publish(0, to_host(policy.flat))
    (worker,), inference = make_roles(lab)
    while not lab.slots.waiting_for(0).size:
        worker.step()
        inference.step()
    slot = int(lab.slots.waiting_for(0)[0])
    cut = lab.slots.truncated[slot]
    assert cut.sum() == cut[3].sum() == cut.shape[1]
    final = lab.slots.observations["obs"][slot, 3].copy()
    final[:, 2] = 4  # the observation that was replaced by the first one of the next episode
    np.testing.assert_allclose(
        lab.slots.final_values[slot, 3], policy.values({"obs": torch.from_numpy(final)}), rtol=1e-5, atol=1e-6
    )
    last = {"obs": torch.from_numpy(lab.slots.observations["obs"][slot, 6])}
    np.testing.assert_allclose(lab.slots.values[slot, 6], policy.values(last), rtol=1e-5, atol=1e-6)


def test_the_last_observation_is_valued_by_the_policy_that_acted_before_it(tmp_path: Path) -> None:
    """The last step of the slot is the first one of an episode, for which the policies of rows are drawn anew."""
    flags: dict[str, Any] = {"num_envs_per_worker": 8, "worker_num_splits": 1, "rollout": EPISODE_STEPS + 1}
    lab = make_lab(tmp_path, "test/TwoAgentEcho", num_policies=2, normalize_returns=False, **flags)
    roles = [lab.build(name) for name in ("rollout-0", "inference-0-0", "inference-1-0")]
    for number, spec in enumerate(spec for spec in lab.specs if spec.name.startswith("inference")):
        policy = ActorCritic(spec.arguments["context"].info, lab.config.model)
        policy.value_head.weight.data.zero_()
        policy.value_head.bias.data.fill_(number)
        spec.arguments["weights"].allocate(policy.flat.numel())
        spec.arguments["weights"].publish(0, to_host(policy.flat))
    while not lab.slots.waiting_for(0).size:
        for role in roles:
            role.step()
    slot = int(lab.slots.waiting_for(0)[0])
    owners = lab.slots.policy_id[slot]
    assert (owners[-1] != owners[-2]).any()
    np.testing.assert_array_equal(lab.slots.values[slot], np.concatenate([owners, owners[-1:]]))


def test_a17_refreshes_are_counted_with_the_version_that_is_there(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, rollout=64)
    weights, policy = publisher(lab)
    (worker,), inference = make_roles(lab)
    for version in (900, 901, 905):
        weights.publish(version, to_host(policy.flat))
        for _ in range(2):  # the second time there is nothing new
            worker.step()
            inference.step()
    assert (inference.record["refreshes"], inference.record["weights_version"]) == (3, 905)
    assert 0 < inference.record["refresh_seconds"] < 1


def test_random_numbers_of_another_device_begin_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Generators of other devices have states of other sizes; CUDA's has 16 bytes."""
    lab = make_lab(tmp_path)
    _, inference = make_roles(lab)
    actor = inference.actor
    assert isinstance(actor, NetworkActor)
    own, before = inference.state(), actor.generator.get_state()
    inference.load_state(own | {"generator": [0] * 16})
    assert torch.equal(actor.generator.get_state(), before)
    assert "on another device before" in capsys.readouterr().out
    actor.generator.manual_seed(5)
    inference.load_state(own)
    assert torch.equal(actor.generator.get_state(), before)
