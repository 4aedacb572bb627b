"""What policies learn from: minibatches, targets, statistics and steps that are counted."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from examples.plans.a2c import A2CPolicy
from examples.plans.dqn import DQN, DQNPolicy
from sf.plans import (
    ApplyGradients,
    AsyncGradients,
    AverageGradients,
    LocalIterator,
    LSTMModel,
    MultiAgentBatch,
    ParallelRollouts,
    QModel,
    SampleBatch,
    TrainOneStep,
    UpdateTargetNetwork,
    WorkerSet,
)
from sf.plans.actor_critic import add_advantages
from tests.helpers.planned import LIMITED, TEN_STEPS, CountingPolicy

of = LocalIterator.of


class Recording(CountingPolicy):
    """Keeps what it learns from."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.seen: list[SampleBatch] = []

    def learn_on_batch(self, samples: SampleBatch) -> dict[str, Any]:
        self.seen.append(samples.copy())
        return super().learn_on_batch(samples)


@pytest.mark.parametrize(
    ("fragment", "size", "wanted"), [(20, 10, [10, 10]), (25, 12, [5, 10, 10]), (20, 4, [10, 10]), (40, 25, [20, 20])]
)
def test_minibatches_of_a_recurrent_policy_are_whole_sequences(fragment: int, size: int, wanted: list[int]) -> None:
    with WorkerSet(Recording, {"env": TEN_STEPS, "rollout_fragment_length": fragment, "seed": 1}) as workers:
        batch = workers.local_worker().sample()
        of([batch]).for_each(TrainOneStep(workers, num_sgd_iter=6, sgd_minibatch_size=size)).take(1)
        seen = workers.local_worker().get_policy().seen
    assert sorted(part.count for part in seen) == sorted(6 * wanted)
    for part in seen:
        for sequence in part.split_by_episode():
            whole = batch["t"][batch["eps_id"] == sequence["eps_id"][0]]
            assert sequence["t"].tolist() == whole.tolist()
    passes = [seen[start : start + len(wanted)] for start in range(0, len(seen), len(wanted))]
    orders = {tuple(part["eps_id"][0] for part in one) for one in passes}
    assert len(orders) > 1, "each pass has an order of its own"
    rows = np.sort(np.concatenate([part["obs"][:, 0] for part in seen]))
    assert rows.tolist() == np.sort(np.repeat(batch["obs"][:, 0], 6)).tolist(), "each row once in each pass"


def one_by_one(*arguments: Any) -> SampleBatch:
    return add_advantages(*arguments)


TOLD_TEN: dict[str, Any] = {"env": LIMITED, "gamma": 0.9, "lambda": 0.9, "rollout_fragment_length": 25, "seed": 1}


def always(workers: WorkerSet, value: float) -> None:
    """Has all networks predict a value."""
    weights = {
        name: np.full_like(weight, value if name.endswith("head.bias") else 0)
        for name, weight in workers.local_worker().get_weights()["default_policy"].items()
    }
    workers.local_worker().set_weights({"default_policy": weights})


@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
@pytest.mark.parametrize("second", [{}, {"explore": False}])
@pytest.mark.parametrize("postprocess", [add_advantages, one_by_one])
def test_value_of_a_reward_for_ever_is_not_cut_by_a_time_limit(
    batch_mode: str, second: dict[str, Any], postprocess: Any
) -> None:
    """1 + 0.9 · 10 = 10, so a network that says 10 has nothing to learn. The second one acts with torch."""
    policy = A2CPolicy.with_updates(postprocess_fn=postprocess)
    settings = {**TOLD_TEN, "batch_mode": batch_mode, "num_envs_per_worker": 2, **second}
    with WorkerSet(policy, settings) as workers:
        always(workers, 10.0)
        batch = workers.local_worker().sample()
        np.testing.assert_allclose(batch["value_targets"], 10.0, rtol=1e-5)
        assert (batch["truncateds"] == (batch["t"] == 9)).all()
        assert (batch["truncateds"] == batch["dones"]).all()
        assert not batch["terminateds"].any()
    with WorkerSet(policy, {**settings, "env": TEN_STEPS}) as workers:
        always(workers, 10.0)
        batch = workers.local_worker().sample()
        assert (batch["terminateds"] == (batch["t"] == 9)).all()
        np.testing.assert_allclose(batch["value_targets"][batch["t"] == 9], 1.0)


def test_target_of_q_learning_is_not_cut_by_a_time_limit() -> None:
    for env, target in ((LIMITED, 10.0), (TEN_STEPS, 1.0)):
        with WorkerSet(DQNPolicy, {**TOLD_TEN, "env": env}) as workers:
            always(workers, 10.0)
            policy, batch = workers.local_worker().get_policy(), workers.local_worker().sample()
            errors = policy.learn_on_batch(batch)["td_error"]
            assert errors[batch["t"] == 9] == pytest.approx(10 - target, abs=1e-5)
            assert errors[batch["t"] != 9] == pytest.approx(0.0, abs=1e-5)


def test_value_after_a_time_limit_is_that_of_the_last_observation_with_its_state() -> None:
    """With a recurrent network, at once and one by one."""
    policy = A2CPolicy.with_updates(postprocess_fn=one_by_one)
    settings = {**TOLD_TEN, "model": {"custom_model": LSTMModel}, "lambda": 0.0}
    with WorkerSet(policy, settings) as workers:
        batch = workers.local_worker().sample()
        cut = batch.take(np.flatnonzero(batch["truncateds"]))
        local = workers.local_worker().get_policy()
        states = [torch.as_tensor(cut[f"state_out_{i}"]) for i in range(2)]
        with torch.inference_mode():
            local.model({"obs": torch.as_tensor(cut["new_obs"])}, states)
            values = local.model.value_function().numpy()
        np.testing.assert_allclose(cut["value_targets"], 1 + 0.9 * values, rtol=1e-5)


@pytest.mark.parametrize("explore", [False, True])
def test_seeded_dqn_repeats_itself(explore: bool) -> None:
    """Also where fewer rows train than are sampled, so that turns are drawn."""
    found = []
    for seed in (3, 3, 4):
        settings: dict[str, Any] = {"env": "CartPole-v1", "seed": seed, "explore": explore, "learning_starts": 64}
        settings |= {"training_intensity": 3.3, "timesteps_per_iteration": 600}
        with DQN(settings) as trainer:
            result = trainer.train()
            found.append((trainer.workers.local_worker().get_weights(), result["info"]["num_steps_trained"]))
    np.testing.assert_equal(found[0], found[1])
    with pytest.raises(AssertionError):
        np.testing.assert_equal(found[0][0], found[2][0])


def test_q_policies_know_the_steps_of_the_plan() -> None:
    with DQN({"env": "CartPole-v1", "seed": 1, "learning_starts": 64, "timesteps_per_iteration": 1500}) as trainer:
        steps = trainer.train()["timesteps_total"]
        assert trainer.get_policy().global_timestep == steps == 1536
        assert float(trainer.get_policy().model.epsilon) == pytest.approx(1 - 0.99 * steps / 15_000, abs=1e-6)


def test_q_networks_begin_as_those_of_torch() -> None:
    """Nearly equal values of all actions, with which actor-critics begin, keep uniform replay from learning."""
    model = QModel(gym.spaces.Box(-1, 1, (4,), np.float32), gym.spaces.Discrete(2), 2, {"hiddens": [256, 256]})
    weights = [layer.weight for layer in model.network.modules() if isinstance(layer, torch.nn.Linear)]
    for weight in weights:
        bound = weight.shape[1] ** -0.5
        assert 0.9 * bound < float(weight.abs().max().detach()) <= bound
    assert all((a == b).all() for a, b in zip(model.network.parameters(), model.target.parameters(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_dqn_with_uniform_replay_learns(seed: int) -> None:
    settings = {"env": "CartPole-v1", "seed": seed, "prioritized_replay_alpha": 0.0, "timesteps_per_iteration": 1000}
    with DQN(settings) as trainer:
        while (result := trainer.train())["timesteps_total"] < 30_000:
            pass
    assert result["episode_reward_mean"] > 80


@pytest.mark.more
@pytest.mark.parametrize("num_workers", [0, 1])
def test_gradients_of_several_policies_count_both_kinds_of_steps(num_workers: int) -> None:
    settings = {
        "env": "examples.plans.environments:RockPaperScissors", "num_workers": num_workers, "seed": 1,
        "rollout_fragment_length": 20,
    }  # fmt: skip
    policies = {"p0": (A2CPolicy,), "p1": (A2CPolicy,)}
    with WorkerSet(policies, settings, lambda agent: f"p{agent}") as workers:
        gradients = AsyncGradients(workers)
        ((found, count),) = gradients.take(1)
        metrics = gradients.shared_metrics.get()
        assert (found.keys(), count) == (policies.keys(), 20)
        assert metrics.info["learner"].keys() == policies.keys()
        assert "policy_loss" in metrics.info["learner"]["p0"]
        gradients.close()
        counters = AsyncGradients(workers).batch(3).for_each(AverageGradients()).for_each(ApplyGradients(workers))
        counters.take(1)
        counts = dict(counters.shared_metrics.get().counters)
        counters.close()
    assert counts == {
        "num_steps_sampled": 60, "num_agent_steps_sampled": 120,
        "num_steps_trained": 60, "num_agent_steps_trained": 120,
    }  # fmt: skip


class Followed(CountingPolicy):
    """Notes when its target is updated."""

    updates: list[int]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.updates = []

    def update_target(self) -> None:
        self.updates.append(LocalIterator.get_metrics().counters["num_steps_sampled"])


@pytest.mark.parametrize("policies", [None, [], ["default_policy"]])
def test_target_is_updated_when_more_steps_have_passed(policies: list[str] | None) -> None:
    with WorkerSet(Followed, {"env": TEN_STEPS, "rollout_fragment_length": 50}) as workers:
        rollouts = ParallelRollouts(workers).for_each(UpdateTargetNetwork(workers, 500, policies=policies))
        rollouts.take(25)
        assert workers.local_worker().get_policy().updates == [550, 1100]


def test_no_names_are_all_policies_that_are_trained() -> None:
    policies = {name: (CountingPolicy,) for name in "abc"}
    with WorkerSet(policies, {"env": TEN_STEPS}, lambda agent: "a", ["a", "b"]) as workers:
        for name in "abc":
            workers.local_worker().get_policy(name).learned.clear()
        batch = MultiAgentBatch({name: SampleBatch({"obs": np.zeros((3, 1))}) for name in "abc"}, 3)
        ((_, info),) = of([batch]).for_each(TrainOneStep(workers, policies=[])).take(1)
        assert info.keys() == {"a", "b"}
