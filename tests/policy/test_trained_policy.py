"""The policies around a network: in training and afterwards."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import AffineTransform, Normal, TanhTransform, TransformedDistribution

import sf
from sf.config import ModelConfig
from sf.envs.actions import action_converter
from sf.envs.contract import describe
from sf.policy import (
    ActorCritic,
    CollectInfo,
    CollectPolicy,
    GreedyPolicy,
    NumpyPolicy,
    PolicySaver,
    RandomPolicy,
    TimeStep,
    TrainedPolicy,
    load_policy,
)
from sf.policy.leaf_distributions import SquashedNormal
from sf.policy.nests import leaves, leaves_with_paths, map_leaves
from sf.policy.specs import check_tensors
from sf.policy.steps import Trajectory
from tests.helpers.lab import make_lab
from tests.helpers.policies import batch, network
from tests.helpers.spaces import BOX_ACTION, SPACES, VECTOR

MIXED_ACTION = spaces.Tuple((spaces.Discrete(2), BOX_ACTION))


# ------------------------------------------------------------------------------------------------------------ training


@pytest.mark.parametrize("action", [spaces.Discrete(5), spaces.MultiDiscrete([2, 6]), BOX_ACTION, MIXED_ACTION])
def test_an_action_is_the_same_with_and_without_its_log_probability(action: Any) -> None:
    made, observations = network(action=action), {"obs": torch.randn(50, 3)}
    state = made.get_initial_state(50)
    generators = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    for greedy in (False, True):
        chosen, _ = made.choose(observations, state, generators[0], greedy)
        assert torch.equal(chosen, made.act(observations, state, generators[1], greedy).action)


def test_b24_collect_and_deployment_info() -> None:
    made = network()
    collect = CollectPolicy(made, emit_log_probability=True)
    step = collect.action(TimeStep.first({"obs": torch.randn(5, 3)}, 5))
    assert step.info.value_prediction.shape == step.info.log_probability.shape == (5,)
    assert step.info.action_params.shape == (5, 4)
    assert [collect.info_spec.value_prediction.name, collect.info_spec.action_params.name] == [
        "value_prediction",
        "action_params",
    ]
    assert CollectPolicy(made).action(TimeStep.first({"obs": torch.randn(5, 3)}, 5)).info.log_probability == ()
    deployed = TrainedPolicy(made)
    assert deployed.info_spec == ()
    assert deployed.action(batch(deployed, VECTOR)).info == ()
    assert (collect.clip, deployed.clip) == (False, True)


def test_b24_a_learner_offers_both(tmp_path: Path) -> None:
    lab = make_lab(tmp_path)
    roles = lab.build_all()
    learner = roles[0]
    while learner.update.version == 0:
        for role in roles:
            role.step()
    assert learner.collect_policy.network is learner.network
    time_step = TimeStep.first(torch.randn(6, 4), 6)
    step = learner.collect_policy.action(time_step._replace(observation={"obs": time_step.observation}))
    assert step.info.log_probability.shape == step.info.value_prediction.shape == (6,)
    assert step.info.action_params.shape == (6, 2)
    assert torch.equal(learner.policy.action(time_step).action, step.info.action_params.argmax(-1))
    PolicySaver(learner.policy, train_step=learner.update.version).save(tmp_path / "now")
    assert torch.equal(load_policy(tmp_path / "now").action(time_step).action, learner.policy.action(time_step).action)
    for role in roles:
        role.close()


def test_b9_the_log_probability_belongs_to_the_unclipped_action() -> None:
    made = network(action=BOX_ACTION)
    collect = CollectPolicy(made, emit_log_probability=True)
    observations = {"obs": torch.randn(200, 3)}
    step = collect.action(TimeStep.first(observations, 200))
    assert (step.action.abs() > 0.1).any()
    evaluation = made.evaluate(observations, step.action)
    torch.testing.assert_close(evaluation.log_probs.detach(), step.info.log_probability)
    executed = np.stack(list(action_converter(BOX_ACTION, "clip")(step.action.numpy())))
    assert all(BOX_ACTION.contains(row) for row in executed)


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "sf/Couriers-v0"])
def test_b23_a_rollout_fits_the_trajectory_spec(env: str, tmp_path: Path) -> None:
    """What the roles leave in a slot, leaf by leaf."""
    lab = make_lab(tmp_path, env, use_rnn=True)
    learner, inference, worker = lab.build_all()
    slots = lab.slots
    while not (full := list(slots.waiting_for(0, 0))):
        worker.step()
        inference.step()
        if learner.update.version == 0 and inference.version < 0:
            learner.step()
    slot, spec = int(full[0]), CollectPolicy(learner.network, emit_log_probability=True).trajectory_spec
    steps = slots.topology.rollout
    ended = torch.from_numpy(slots.terminated[slot] | slots.truncated[slot])
    first = torch.from_numpy(np.vstack([np.zeros_like(ended[:1]), ended[:-1]]))
    step_type = torch.where(first, 0, 1).to(torch.int32)
    observation = {name: torch.from_numpy(array[slot, :steps]) for name, array in slots.observations.items()}
    with torch.no_grad():
        flat = {name: leaf.flatten(0, 1) for name, leaf in observation.items()}
        memory = torch.zeros(len(step_type.flatten()), learner.network.state_size)
        params = learner.network.forward(flat, memory)[0].unflatten(0, step_type.shape)
    stored = {
        name: torch.from_numpy(getattr(slots, name)[slot, :steps]) for name in ("actions", "log_probs", "rewards")
    }
    values = torch.from_numpy(slots.values[slot, :steps])
    trajectory = Trajectory(
        step_type,
        observation,
        stored["actions"],
        CollectInfo(stored["log_probs"], values, params),
        torch.where(ended, 2, 1).to(torch.int32),
        stored["rewards"],
        1.0 - torch.from_numpy(slots.terminated[slot, :steps]).to(torch.float32),
    )
    assert check_tensors(trajectory, spec, "trajectory") == tuple(step_type.shape)
    for role in (learner, inference, worker):
        role.close()


def test_b6_distributions_of_the_collect_policy_are_those_of_training() -> None:
    made = network(action=spaces.MultiDiscrete([2, 3]))
    policy = CollectPolicy(made)
    time_step = TimeStep.first({"obs": torch.randn(5, 3)}, 5)
    distribution = policy.distribution(time_step).action
    actions = distribution.sample()
    evaluation = made.evaluate(time_step.observation, actions)
    assert torch.equal(distribution.log_prob(actions), evaluation.log_probs)
    assert torch.equal(distribution.entropy(), evaluation.entropy)
    assert torch.equal(distribution.mode, made.act(time_step.observation, greedy=True).action)


def test_b18_masks_reach_the_network_and_its_gradient_is_zero() -> None:
    observation = spaces.Dict({"obs": VECTOR, "action_mask": spaces.MultiBinary(4)})
    made = network(observation)
    for policy in (TrainedPolicy(made), CollectPolicy(made)):
        assert policy.observation_and_action_constraint_splitter is not None
        mask = torch.tensor([0, 1, 0, 1], dtype=torch.int8).expand(10_000, 4)
        time_step = TimeStep.first({"obs": torch.randn(10_000, 3), "action_mask": mask}, 10_000)
        assert set(policy.action(time_step).action.tolist()) == {1, 3}
    distribution = CollectPolicy(made).distribution(time_step).action
    distribution.log_prob(torch.ones(10_000, dtype=torch.int64)).sum().backward()
    gradient = made.policy_head.weight.grad
    assert gradient is not None
    assert not gradient[[0, 2]].any()
    assert gradient[[1, 3]].any()


# ---------------------------------------------------------------------------------------------------------- deployment


@given(
    observation=SPACES,
    action=SPACES,
    seed=st.integers(0, 99),
    rnn=st.sampled_from(["", "gru", "lstm"]),
    bounds=st.sampled_from(["scale", "clip"]),
)
@settings(max_examples=60, deadline=None)
def test_any_space_and_memory_gives_actions_of_the_environment(
    observation: Any, action: Any, seed: int, rnn: str, bounds: Any
) -> None:
    model: dict[str, Any] = {"use_rnn": True, "rnn_type": rnn, "rnn_num_layers": 2} if rnn else {}
    made = network(observation, action, **model)
    policy = TrainedPolicy(made, bounds)
    observation.seed(seed)
    time_step, state = batch(policy, observation), policy.get_initial_state(5)
    stored = made.choose(
        {name: _at(time_step.observation, leaf.path) for name, leaf in made.info.observations.items()},
        made.get_initial_state(5),
        torch.Generator().manual_seed(seed),
    )[0]
    step = policy.action(time_step, state, seed)
    check_tensors(step, policy.policy_step_spec, "step")
    for row, expected in enumerate(action_converter(action, bounds)(stored.numpy())):
        for path, leaf in leaves_with_paths(expected):
            np.testing.assert_allclose(np.asarray(leaf), _at(step.action, path)[row].numpy(), rtol=1e-5, atol=1e-6)
    single = map_leaves(lambda leaf: leaf[0], TimeStep(*time_step))
    unbatched = policy.action(single, policy.get_initial_state(), seed)
    assert check_tensors(unbatched, policy.policy_step_spec, "step") == ()
    drawn = policy.distribution(time_step, state)
    sampled = map_leaves(lambda leaf: leaf.sample(), drawn.action)
    assert check_tensors(sampled, policy.action_spec, "sample") == (5,)
    alone = policy.distribution(single, policy.get_initial_state())
    assert check_tensors(map_leaves(lambda leaf: leaf.sample(), alone.action), policy.action_spec, "sample") == ()
    emitting = TrainedPolicy(made, emit_log_probability=True).action(time_step, state)
    assert all(leaf.shape == (5,) for leaf in leaves(emitting.info.log_probability))


def _at(nest: Any, path: Any) -> Any:
    for key in path:
        nest = nest[key]
    return nest


@pytest.mark.parametrize("action", [spaces.Discrete(4, start=3), spaces.MultiDiscrete([2, 3]), BOX_ACTION])
def test_distributions_of_the_deployment_policy_are_those_of_training(action: Any) -> None:
    made = network(action=action)
    policy = TrainedPolicy(made, "clip", clip=False)
    time_step = batch(policy, VECTOR)
    step = policy.action(time_step, seed=1)
    start = getattr(action, "start", 0)
    stored = step.action - (torch.as_tensor(start) if np.any(start) else 0)
    expected = made.evaluate({"obs": time_step.observation}, stored)
    distribution = policy.distribution(time_step).action
    torch.testing.assert_close(distribution.log_prob(step.action), expected.log_probs)
    greedy = GreedyPolicy(policy)
    torch.testing.assert_close(greedy.action(time_step).action, distribution.mode)


def test_scaled_actions_have_the_density_of_the_environment() -> None:
    """Numbers that are twice as far apart have half the density; greedy is the scaled mean."""
    space = spaces.Box(np.array([0, -np.inf], np.float32), np.array([4, np.inf], np.float32))
    made = network(action=space)
    policy, stored = TrainedPolicy(made, clip=False), TrainedPolicy(made, "clip", clip=False)
    time_step = batch(policy, VECTOR)
    action, raw = (one.action(time_step, seed=1).action for one in (policy, stored))
    torch.testing.assert_close(action, torch.stack([2 + 2 * raw[:, 0], raw[:, 1]], 1))
    densities = [one.distribution(time_step).action.log_prob(own) for one, own in ((policy, action), (stored, raw))]
    torch.testing.assert_close(densities[0], densities[1] - np.log(2.0))
    torch.testing.assert_close(
        GreedyPolicy(policy).action(time_step).action, policy.distribution(time_step).action.mode
    )


def test_squashed_actions_lie_in_their_bounds_and_have_a_density() -> None:
    policy = TrainedPolicy(network(action=BOX_ACTION), "tanh", emit_log_probability=True)
    low, high = torch.tensor(BOX_ACTION.low), torch.tensor(BOX_ACTION.high)
    fast = TrainedPolicy(policy.network, "tanh")
    time_step = batch(policy, VECTOR, 50)
    for step in (policy.action(time_step), fast.action(time_step)):
        assert all(BOX_ACTION.contains(row) for row in step.action.numpy())
    assert policy.action(time_step).info.log_probability.isfinite().all()
    reference = TransformedDistribution(
        Normal(torch.tensor([0.3, -0.7]), torch.tensor([0.5, 2.0])),
        [TanhTransform(), AffineTransform(torch.tensor([0.0, -0.5]), torch.tensor([0.1, 1.5]))],
    )
    ours = SquashedNormal(reference.base_dist.mean, reference.base_dist.stddev, low, high, 1)
    inside = torch.tensor([[0.05, 0.2], [-0.09, -1.9]])
    expected = reference.log_prob(inside).sum(-1)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(ours.log_prob(inside), expected, atol=1e-4, rtol=1e-4)
    for mean, std in ((12.0, 1.0), (-30.0, 0.1), (0.0, 20.0)):
        extreme = SquashedNormal(torch.full((100, 2), mean), torch.full((100, 2), std), low, high, 1)
        drawn = extreme.sample()
        assert extreme.log_prob(drawn).isfinite().all()
        assert extreme.log_prob(drawn.clone()).isfinite().all()
    mode = GreedyPolicy(fast).action(time_step).action
    torch.testing.assert_close(mode, fast.distribution(time_step).action.mode)
    mean = fast.network.act({"obs": time_step.observation}, greedy=True).action
    torch.testing.assert_close(mode, (low + high) / 2 + (high - low) / 2 * mean.tanh())


@pytest.mark.parametrize(("rnn_type", "names"), [("gru", {"hidden"}), ("lstm", {"hidden", "cell"})])
@pytest.mark.parametrize("shared", [True, False])
def test_b31_memory_is_that_of_the_network(rnn_type: str, names: set[str], shared: bool) -> None:
    made = network(use_rnn=True, rnn_type=rnn_type, rnn_num_layers=2, actor_critic_share_weights=shared)
    policy, collect = TrainedPolicy(made), CollectPolicy(made)
    assert {name: spec.shape for name, spec in policy.policy_state_spec.items()} == dict.fromkeys(names, (2, 6))
    state, memory = policy.get_initial_state(5), collect.get_initial_state(5)
    for _ in range(3):
        time_step = batch(policy, VECTOR)._replace(step_type=torch.ones(5, dtype=torch.int32))
        stored = time_step._replace(observation={"obs": time_step.observation})
        own, theirs = policy.action(time_step, state, 3), collect.action(stored, memory, 3)
        assert torch.equal(own.action, theirs.action)
        state, memory = own.state, theirs.state
    last_hidden = memory[:, 6:12] if rnn_type == "gru" else memory[:, 12:18]
    assert torch.equal(state["hidden"][:, 1], last_hidden)


def test_b31_the_distribution_of_one_observation_has_the_memory_of_one() -> None:
    policy = TrainedPolicy(network(use_rnn=True))
    step = policy.distribution(TimeStep.first(torch.zeros(3)), policy.get_initial_state())
    assert step.state["hidden"].shape == policy.policy_state_spec["hidden"].shape
    both = policy.distribution(TimeStep.first(torch.zeros(1, 3), 1), policy.get_initial_state(1))
    torch.testing.assert_close(step.state["hidden"], both.state["hidden"][0])


@pytest.mark.parametrize("bounds", ["scale", "clip"])
def test_a_policy_of_a_run_keeps_its_actions_in_bounds_as_the_run_did(tmp_path: Path, bounds: Any) -> None:
    lab = make_lab(tmp_path, "Pendulum-v1", action_bounds=bounds)
    lab.build("learner-0").close()
    policy = sf.load_policy(lab.config.run.experiment_dir)
    assert isinstance(policy, TrainedPolicy)
    assert policy.action_bounds == bounds


@pytest.mark.parametrize("model", [{}, {"use_rnn": True, "rnn_type": "lstm"}])
def test_b26_the_plain_loop(model: dict[str, Any]) -> None:
    env = gymnasium.make("CartPole-v1")
    policy = NumpyPolicy(TrainedPolicy(ActorCritic(describe(env, "CartPole-v1"), ModelConfig(**model))))
    state = policy.get_initial_state()
    time_step = TimeStep.first(env.reset(seed=0)[0])
    num_steps = 0
    while time_step.step_type != 2:
        step = policy.action(time_step, state)
        observation, reward, terminated, truncated, _ = env.step(step.action)
        time_step, state = TimeStep.after(observation, reward, terminated, truncated), step.state
        num_steps += 1
    assert num_steps > 5
    assert time_step.discount == 0.0
    env.close()


@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "Taxi-v4"])
def test_b26_the_plain_loop_on_tables(env_id: str) -> None:
    """They look up the action in a dict; the mask of Taxi comes in info."""
    env = gymnasium.make(env_id)
    if env_id == "Taxi-v4":
        env = sf.MaskFromInfo(env)
    policy = NumpyPolicy(TrainedPolicy(ActorCritic(describe(env, env_id), ModelConfig())))
    time_step = TimeStep.first(env.reset(seed=0)[0])
    for _ in range(300):
        if time_step.step_type == 2:
            break
        action = policy.action(time_step).action
        assert {int(action): "found"}[action] == "found"
        time_step = TimeStep.after(*env.step(action)[:4])
    assert time_step.step_type == 2
    env.close()


@pytest.mark.parametrize("space", [BOX_ACTION, spaces.Discrete(3), spaces.Dict(a=spaces.Discrete(2), b=BOX_ACTION)])
def test_b29_numpy_policy_takes_and_gives_single_arrays(space: Any) -> None:
    inner = TrainedPolicy(network(action=space, use_rnn=True))
    policy = NumpyPolicy(inner)
    policy.action(TimeStep.first(np.zeros(3, np.float32)[::-1]), policy.get_initial_state(), seed=np.int64(5))  # type: ignore[arg-type]
    step = policy.action(TimeStep.first(np.zeros(3)), policy.get_initial_state(), seed=5)
    for array, spec in zip(leaves(step.action), leaves(inner.action_spec), strict=True):
        is_choice = spec.shape == () and not spec.dtype.is_floating_point
        assert isinstance(array, np.int64 if is_choice else np.ndarray)
        assert array.shape == spec.shape
    assert step.state["hidden"].shape == (1, 6)
    with pytest.raises(ValueError, match=r"observation.* has shape \[1, 4\], expected \[3\]"):
        policy.action(TimeStep.first(np.zeros(4)), policy.get_initial_state())
    with pytest.raises(ValueError, match=r"policy_state is \(\), which means nothing, expected a dict"):
        policy.action(TimeStep.first(np.zeros(3)))


def test_a_copy_has_variables_of_its_own() -> None:
    policy = TrainedPolicy(network())
    target = copy.deepcopy(policy)
    assert torch.equal(target.network.flat, policy.network.flat)
    with torch.no_grad():
        policy.network.flat.add_(1.0)
    before = target.network.flat.clone()
    target.update(policy, tau=0.5)
    torch.testing.assert_close(target.network.flat, before + 0.5)


def test_what_masks_are_not_for() -> None:
    observation = spaces.Dict({"obs": VECTOR, "action_mask": spaces.MultiBinary(6)})
    action = spaces.Tuple((spaces.Discrete(4), spaces.Discrete(2)))
    trained = TrainedPolicy(network(observation, action))  # the network reads the mask, for any action
    GreedyPolicy(trained)
    with pytest.raises(NotImplementedError, match="Masks are for one leaf of bounded integers"):
        RandomPolicy(trained.time_step_spec, trained.action_spec)
    with pytest.raises(NotImplementedError, match="a splitter of your own would have no effect"):
        TrainedPolicy(network(), observation_and_action_constraint_splitter=lambda x: (x, None))
