"""Rollout workers that act for themselves: without torch, without inference processes, with the same labels."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from sf.config import Config, check
from sf.errors import ConfigError, InternalError
from sf.inference.small_worker import SmallInference
from sf.nets.activations import ACTIVATIONS as TORCH_ACTIVATIONS
from sf.nets.device import to_host
from sf.nets.distributions import action_distribution
from sf.nets.fast.numpy_network import ACTIVATIONS, noise_source
from sf.policy import ActorCritic
from sf.rollout.worker import RolloutWorker
from sf.run.sizes import resolve
from sf.run.supervisor import train
from sf.run.topology import Sizes
from sf.shared.role import RoleGroup
from sf.shared.weights import PublishedWeights
from sf.spaces import ActionSpec, EnvInfo, LeafSpec
from tests.helpers.commands import run, running, wait_for_training
from tests.helpers.lab import Lab, make_config, make_lab
from tests.helpers.networks import box, discrete
from tests.nets.test_acting import CHOICES
from tests.run.test_resources import maps_of

VECTOR = LeafSpec((4,), "float32")
BY_ITSELF = "--policy_workers_per_policy=0"


def make_together(lab: Lab) -> tuple[PublishedWeights, ActorCritic, RoleGroup]:
    """The weights that the learner would publish, a network to compare with, and the process of rollout worker 0."""
    together = lab.build("rollout-0")
    assert isinstance(together, RoleGroup)
    (inference,) = together.companions
    assert isinstance(inference, SmallInference)
    (weights,) = inference.weights
    torch.manual_seed(0)
    network = ActorCritic(next(spec for spec in lab.specs).arguments["context"].info, lab.config.model)
    weights.allocate(network.flat.numel())
    return weights, network, together


def test_nobody_acts_before_the_first_publication(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, policy_workers_per_policy=0)
    assert [spec.name for spec in lab.specs] == ["learner-0", "rollout-0"]
    weights, network, together = make_together(lab)
    assert together.step(), "the first observations"
    assert not together.step()
    weights.publish(0, to_host(network.flat))
    assert together.step()


@pytest.mark.parametrize("acting", [0, 1], ids=["rollout workers act", "inference workers act"])
def test_learner_begins_only_where_numpy_acts_as_torch_does(
    tmp_path: Path, acting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = make_lab(tmp_path, policy_workers_per_policy=acting)
    monkeypatch.setitem(ACTIVATIONS, lab.config.model.nonlinearity, lambda x: x)
    if acting == 0:
        with pytest.raises(InternalError, match="acts differently in NumPy"):
            lab.build("learner-0")
    else:
        lab.build("learner-0")


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_s5_the_very_next_action_uses_new_weights_and_carries_their_label(tmp_path: Path, env: str) -> None:
    lab = make_lab(tmp_path, env, rollout=6, worker_num_splits=2, policy_workers_per_policy=0, normalize_returns=False)
    weights, network, together = make_together(lab)
    together.step()
    for version in range(6):
        with torch.no_grad():
            network.policy_head.bias.add_(0.3 * version)
        weights.publish(version, to_host(network.flat))
        assert together.step()
        slots = lab.slots
        for group in (0, 1):
            slot = slots.topology.slots_of_group(group)[0]
            assert (slots.policy_version[slot, version] == version).all()
            observations = {"obs": torch.from_numpy(slots.observations["obs"][slot, version])}
            expected = network.evaluate(observations, torch.from_numpy(slots.actions[slot, version]))
            found = slots.log_probs[slot, version], slots.values[slot, version]
            for array, tensor in zip(found, (expected.log_probs, expected.normalized_values), strict=True):
                np.testing.assert_allclose(array, tensor.detach(), rtol=1e-4, atol=1e-5)


def test_successor_draws_other_actions(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, policy_workers_per_policy=0)
    spec = next(spec for spec in lab.specs if spec.name == "rollout-0")
    first, second, again = spec.build(), spec.successor(1).build(), spec.build()
    assert isinstance(first, RoleGroup)
    assert isinstance(second, RoleGroup)
    assert isinstance(again, RoleGroup)
    assert first.companions[0].state() == again.companions[0].state() != second.companions[0].state()
    assert isinstance(second.role, RolloutWorker)


@pytest.mark.parametrize(("inference", "splits", "expected"), [(1, None, 2), (0, None, 1), (0, 2, 2), (2, 3, 3)])
def test_s3_double_buffering_is_for_those_who_wait_for_actions(
    inference: int, splits: int | None, expected: int
) -> None:
    info = EnvInfo("Any", 1, {"obs": VECTOR}, discrete(2))
    sizes: dict[str, Any] = {"num_workers": 2, "worker_num_splits": splits, "num_envs_per_worker": 12}
    config = make_config(policy_workers_per_policy=inference, **sizes)
    resolved = resolve(config, info, cores=2)
    assert resolved.rollout.worker_num_splits == expected
    assert Sizes.of(resolved, info).topology.groups_per_worker == expected
    check(resolved, info)


@pytest.mark.parametrize("action", [discrete(3), box(2)], ids=["choice", "numbers"])
def test_random_numbers_have_the_distribution_of_those_of_torch(action: ActionSpec) -> None:
    """Compared at the quantiles of 200,000 numbers; the largest difference is expected to be about 0.004."""
    info = EnvInfo("Any", 1, {"obs": VECTOR}, action)
    found = noise_source(info, np.random.default_rng(0))(200_000)
    config = make_config().model
    expected = action_distribution(action, config).noise(200_000, torch.Generator().manual_seed(0)).numpy()
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert len(set(found[:, 0].tolist())) > 190_000
    for column in range(found.shape[1]):
        levels = np.quantile(expected[:, column], np.linspace(0.02, 0.98, 25))
        shares = np.searchsorted(np.sort(found[:, column]), levels) / 200_000
        assert np.abs(shares - np.linspace(0.02, 0.98, 25)).max() < 0.008
    assert abs(np.corrcoef(found[:-1, 0], found[1:, 0])[0, 1]) < 0.02


REFUSED: dict[str, tuple[dict[str, LeafSpec], ActionSpec, dict[str, Any], str]] = {
    "memory": ({"obs": VECTOR}, discrete(2), {"use_rnn": True}, "use_rnn=True"),
    "image": ({"obs": LeafSpec((84, 84, 3), "uint8")}, discrete(2), {}, "observations that are images"),
    "parts": ({"a": VECTOR, "b": VECTOR}, discrete(2), {}, "observations of 2 parts"),
    "categories": ({"obs": LeafSpec((), "int64", (5,), (0,))}, discrete(2), {}, "observations that are categories"),
    "choices": ({"obs": VECTOR}, CHOICES, {}, "actions that are neither one Discrete nor one Box"),
    "mask": ({"obs": VECTOR, "action_mask": LeafSpec((2,), "int8")}, discrete(2), {}, "an action mask"),
    "two": ({"a": VECTOR, "b": VECTOR}, CHOICES, {}, "observations of 2 parts, actions that are neither"),
    "encoder": ({"obs": VECTOR}, discrete(2), {"encoder": "mine"}, "encoder=mine"),
    "per key": ({"obs": VECTOR}, discrete(2), {"encoder_per_key": True}, "encoder_per_key=True"),
    "bfloat16": ({"obs": VECTOR}, discrete(2), {"device": "gpu", "bf16": True}, "bf16=True"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_takes_torch_is_refused(name: str) -> None:
    observations, action, flags, reason = REFUSED[name]
    info = EnvInfo("Any", 1, observations, action)
    config: Config = make_config(policy_workers_per_policy=0, num_workers=1, batch_size=64, **flags)
    with pytest.raises(ConfigError, match=f"not possible with {reason}.* Use --policy_workers_per_policy=1"):
        check(config, None if flags else info)  # what the flags say is refused before the environment is made


class Wide(gym.Env[Any, Any]):
    """Many large numbers in, many numbers out."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (376,), np.float64)
    action_space = gym.spaces.Box(-0.4, 0.4, (17,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return 3 * self.np_random.standard_normal(376), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        seen = 3 * self.np_random.standard_normal(376)
        return seen, float(np.square(action).sum()), False, self.steps == 20, {}


gym.register("Wide-v0", entry_point="tests.inference.test_acting_workers:Wide")


@pytest.mark.more
def test_a10_cr1_numpy_and_torch_agree_as_exactly_as_strict_demands(tmp_path: Path) -> None:
    """Zero lag: every ratio is 1 up to rounding, also with layers of 512, many numbers and changing statistics."""
    code, _ = train(
        make_config(
            "tests.inference.test_acting_workers:Wide-v0", policy_workers_per_policy=0, encoder_mlp_layers=(512, 512),
            strict=True, initial_stddev=0.3, num_workers=2, train_dir=str(tmp_path), train_for_env_steps=3000,
        )
    )  # fmt: skip
    assert code == 0


def test_final_observations_have_the_value_that_the_network_gives_them(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, "tests.inference.test_acting_workers:Wide-v0", rollout=24, policy_workers_per_policy=0)
    weights, network, together = make_together(lab)
    weights.publish(0, to_host(network.flat))
    while not lab.slots.waiting_for(0).size:
        if lab.slots.has_final_observation.any():
            final = {"obs": torch.from_numpy(lab.slots.final_observations["obs"][0].copy())}
        together.step()
    slot = int(lab.slots.waiting_for(0)[0])
    assert lab.slots.truncated[slot, 19].all()
    np.testing.assert_allclose(lab.slots.final_values[slot, 19], network.values(final), rtol=1e-4, atol=1e-5)


RUNS = {
    "learners": ("--num_learners=2", "--num_envs_per_worker=8", "--worker_num_splits=2"),
    "vectorized": ("--vectorization=native", "--num_envs_per_worker=32"),
    "evaluations": ("--eval_every_steps=4000", "--eval_episodes=2", "--num_envs_per_worker=8"),
    "synchronous": ("--async_rl=False", "--num_envs_per_worker=8"),
}


@pytest.mark.more
@pytest.mark.parametrize("name", RUNS)
def test_runs_that_act_for_themselves_end_well(tmp_path: Path, name: str) -> None:
    flags = "--env=CartPole-v1", "--num_workers=2", "--rollout=16", "--seed=1", "--train_for_env_steps=9000", BY_ITSELF
    finished = run(tmp_path, *flags, *RUNS[name])
    assert finished.code == 0, finished.err
    assert finished.err == ""
    summary = json.loads((tmp_path / "train_dir/default_experiment/summary.json").read_text())
    assert summary["policies"][0]["episodes"] > 50
    assert summary["policies"][0]["samples"] >= 9000
    slots = summary["slots"]
    assert slots["allocated"] == slots["learned"] + sum(slots["discarded"].values()) + slots["free"]


@pytest.mark.more
def test_run_goes_on_with_the_other_way_of_acting(tmp_path: Path) -> None:
    flags = "--env=CartPole-v1", "--num_workers=2", "--num_envs_per_worker=8", "--seed=1"
    for inference, steps in ((1, 4000), (0, 8000), (1, 12_000)):
        finished = run(tmp_path, *flags, f"--policy_workers_per_policy={inference}", f"--train_for_env_steps={steps}")
        assert finished.code == 0, finished.err
        assert int(finished.out.split("Collected {0: ")[1].split("}")[0]) >= steps
    assert "Total num frames: 0." not in finished.out


@pytest.mark.more
def test_s2_processes_of_a_run_and_none_with_torch_among_those_of_environments(tmp_path: Path) -> None:
    flags = "--env=Pendulum-v1", "--num_workers=2", "--num_envs_per_worker=4", "--seed=1", BY_ITSELF
    with running(tmp_path, *flags, in_new_python=True) as command:
        wait_for_training(command)
        rollouts = command.named("sf-rollout")
        assert len(rollouts) == 2
        assert len(command.named("sf-learner")) == 1
        assert not command.named("sf-inference")
        assert not [line for worker in rollouts for line in maps_of(worker) if "libtorch" in line]
        assert all([line for line in maps_of(worker) if "numpy" in line] for worker in rollouts)
        assert [line for line in maps_of(command.named("sf-learner")[0]) if "libtorch" in line]
        command.process.send_signal(signal.SIGTERM)
        finished = command.finish(20)
    assert finished.code == 143, finished.err
    assert "act " in finished.out.split("Time shares:")[1]
    assert "inference" not in finished.out.split("Time shares:")[1]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_those_of_torch(name: str) -> None:
    x = np.linspace(-30, 30, 1001, dtype=np.float32)
    expected = TORCH_ACTIVATIONS[name](torch.from_numpy(x.copy())).numpy()
    np.testing.assert_allclose(ACTIVATIONS[name](x.copy()), expected, rtol=1e-6, atol=1e-6)
