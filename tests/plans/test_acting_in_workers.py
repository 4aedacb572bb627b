"""Policies of plans in workers: their networks, acting in NumPy, and the advantages of a fragment."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from sf.plans import LSTMModel, QModel, SampleBatch, TorchModel, WorkerSet
from sf.plans.actor_critic import add_advantages
from sf.plans.numpy_acting import act_in_numpy
from tests.helpers.planned import CountingPolicy, TorchPull


@pytest.mark.more
def test_torch_policy_acts_in_workers_as_here() -> None:
    settings = {"env": "CartPole-v1", "num_workers": 1, "rollout_fragment_length": 20, "seed": 1}
    with WorkerSet(TorchPull, settings) as workers:
        batch = workers.remote_workers()[0].sample()
        logits = workers.local_worker().get_policy().model(_tensors(batch))[0].detach().numpy()
        np.testing.assert_allclose(logits, batch["action_dist_inputs"], atol=1e-6)
        assert set(batch["actions"]) == {0, 1}


def _tensors(batch: SampleBatch) -> dict[str, Any]:
    return {"obs": torch.as_tensor(batch["obs"])}


@pytest.mark.more
@pytest.mark.parametrize("num_workers", [0, 1])
def test_fragment_at_once_has_the_advantages_of_its_trajectories(num_workers: int) -> None:
    """A remote worker steps all environments as one, and has rows between two episodes that train nothing."""
    from examples.plans.a2c import A2CPolicy

    def one_by_one(*arguments: Any) -> SampleBatch:
        return add_advantages(*arguments)

    found = []
    for policy_class in (A2CPolicy, A2CPolicy.with_updates(postprocess_fn=one_by_one)):
        settings = {
            "env": "CartPole-v1",
            "num_workers": num_workers,
            "num_envs_per_worker": 16,
            "rollout_fragment_length": 40,
            "seed": 3,
            "lambda": 0.9,
        }
        with WorkerSet(policy_class, settings) as workers:
            worker = workers.remote_workers()[0] if num_workers else workers.local_worker()
            found.append([worker.sample() for _ in range(2)])
    assert (found[0][0].count < 16 * 40) == bool(num_workers)
    for at_once, each in zip(*found, strict=True):
        assert at_once["dones"].any()
        assert (at_once["obs"] == each["obs"]).all()
        for name in ("advantages", "value_targets"):
            np.testing.assert_allclose(at_once[name], each[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("env", "activation"), [("CartPole-v1", "tanh"), ("CartPole-v1", "relu"), ("Pendulum-v1", "elu")]
)
def test_acting_in_numpy_is_acting_with_torch(env: str, activation: str) -> None:
    """One choice, and a number of a Box."""
    from examples.plans.a2c import A2CPolicy

    settings = {"env": env, "num_envs_per_worker": 16, "rollout_fragment_length": 100, "seed": 3}
    with WorkerSet(A2CPolicy, {**settings, "model": {"activation": activation}}) as workers:
        policy = workers.local_worker().get_policy()
        act = act_in_numpy(policy, np.random.default_rng(1))
        assert act is not None
        policy.set_weights({name: weight + 0.05 for name, weight in policy.get_weights().items()})
        batch = workers.local_worker().sample()
        with torch.inference_mode():
            logits, _ = policy.model({"obs": torch.as_tensor(batch["obs"])})
            wanted = {
                "action_dist_inputs": logits, "vf_preds": policy.model.value_function(),
                "action_logp": policy.dist_class(logits).logp(torch.as_tensor(batch["actions"])),
            }  # fmt: skip
        for name, values in wanted.items():
            np.testing.assert_allclose(batch[name], values.numpy(), rtol=1e-4, atol=1e-5)
        obs = np.repeat(batch["obs"][:1], 40_000, 0)
        inputs = wanted["action_dist_inputs"][0].numpy()
        mean = inputs[0] if env == "Pendulum-v1" else np.exp(inputs[1]) / np.exp(inputs).sum()
        assert act(obs)[0].mean() == pytest.approx(mean, abs=0.1 if env == "Pendulum-v1" else 0.01)
        other = A2CPolicy.with_updates(
            extra_action_out_fn=lambda *_: {"vf_preds": torch.zeros(1).expand(len(_[1]["obs"]))}
        )
        spaces = policy.observation_space, policy.action_space
        assert act_in_numpy(other(*spaces, {}), np.random.default_rng(1)) is None
        replaced = A2CPolicy(*spaces, {})
        replaced.compute_actions = lambda *_: None  # of this object only
        assert act_in_numpy(replaced, np.random.default_rng(1)) is None
        assert act_in_numpy(CountingPolicy(*spaces, {}), np.random.default_rng(1)) is None


def test_values_of_actions_are_acted_with_in_numpy_but_for_the_share_that_is_drawn() -> None:
    from examples.plans.dqn import DQNPolicy

    policy = DQNPolicy(gym.spaces.Box(-1, 1, (4,), np.float32), gym.spaces.Discrete(3), {})
    act = act_in_numpy(policy, np.random.default_rng(1))
    assert act is not None
    obs = np.random.default_rng(2).random((6000, 4), np.float32)
    best = policy.model({"obs": torch.as_tensor(obs)})[0].argmax(-1).numpy()
    for steps, share in ((0, 1.0), (7500, 0.505), (15_000, 0.01)):
        policy.on_global_var_update({"timestep": steps})
        actions, extra = act(obs)
        assert extra == {}
        assert (actions == best).mean() == pytest.approx(1 - share * 2 / 3, abs=0.03)
        assert (policy.compute_actions(obs)[0] == best).mean() == pytest.approx(1 - share * 2 / 3, abs=0.03)
    policy.config["explore"] = False
    assert act_in_numpy(policy, np.random.default_rng(1)) is None
    assert (policy.compute_actions(obs)[0] == best).all()


@pytest.mark.parametrize("model", [TorchModel, LSTMModel, QModel])
def test_networks_of_plans_are_those_of_training(model: Any) -> None:
    """So pictures go through convolutions, and categories are counted from where they start."""
    for space in (gym.spaces.Box(0, 255, (64, 64, 3), np.uint8), gym.spaces.Discrete(5, start=2)):
        network = model(space, gym.spaces.Discrete(3), 3, {})
        rows = torch.as_tensor(np.stack([space.sample() for _ in range(4)]))
        states = [torch.zeros(4, *state.shape) for state in network.get_initial_state()]
        assert network({"obs": rows}, states)[0].shape == (4, 3)
        assert any(isinstance(part, torch.nn.Conv2d) for part in network.modules()) == (space.shape != ())
