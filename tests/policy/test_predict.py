"""`Policy.predict`, which evaluation code for Stable-Baselines3 calls."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import sf
from sf.config import ModelConfig
from sf.envs import find_env, probe, register_env
from sf.policy import ActorCritic, GreedyPolicy, NumpyPolicy, RandomPolicy, StepType, TimeStep, TrainedPolicy
from sf.policy.specs import spec_of_action_space, spec_of_space, time_step_spec
from tests.envs.test_masks import Masked
from tests.helpers.policies import network
from tests.helpers.spaces import BOX_ACTION

OBSERVATIONS = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)


@pytest.mark.parametrize("action", [spaces.Discrete(5), BOX_ACTION, spaces.MultiDiscrete([2, 6])])
def test_the_most_likely_action_is_that_of_the_greedy_policy(action: Any) -> None:
    policy = TrainedPolicy(network(action=action))
    wanted = GreedyPolicy(policy).action(TimeStep.first(torch.from_numpy(OBSERVATIONS), 6)).action.numpy()
    actions, state = policy.predict(OBSERVATIONS, deterministic=True)
    assert state is None
    np.testing.assert_array_equal(actions, wanted)
    singles = [policy.predict(one, deterministic=True)[0] for one in OBSERVATIONS]
    np.testing.assert_allclose(np.stack(singles), wanted, rtol=1e-4, atol=1e-6)
    assert all(action.contains(one) for one in singles)


def test_other_actions_are_drawn() -> None:
    policy = TrainedPolicy(network(action=spaces.Discrete(5)))
    drawn = {int(policy.predict(OBSERVATIONS[0])[0]) for _ in range(100)}
    assert len(drawn) > 1
    assert {int(policy.predict(OBSERVATIONS[0], deterministic=True)[0]) for _ in range(20)} < drawn


@pytest.mark.parametrize("rnn_type", ["gru", "lstm"])
def test_a_recurrent_state_goes_on_and_begins_anew_where_an_episode_starts(rnn_type: str) -> None:
    policy = TrainedPolicy(network(action=BOX_ACTION, use_rnn=True, rnn_type=rnn_type))
    loop, greedy = NumpyPolicy(GreedyPolicy(policy)), []
    memory = loop.get_initial_state()
    for step, observation in enumerate(OBSERVATIONS):
        kind = StepType.FIRST if step in (0, 4) else StepType.MID
        taken = loop.action(TimeStep.first(observation)._replace(step_type=np.int32(kind)), memory)
        memory = taken.state
        greedy.append(taken.action)
    state, single, both, many = None, [], None, []
    for step, observation in enumerate(OBSERVATIONS):
        one, state = policy.predict(observation, state, np.array([step == 4]), deterministic=True)
        start = np.array([step == 4, step == 2])
        two, both = policy.predict(np.stack([observation] * 2), both, start, deterministic=True)
        single.append(one)
        many.append(two)
    np.testing.assert_allclose(single, greedy, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(np.stack(many)[:, 0], greedy, rtol=1e-4, atol=1e-6)
    assert not np.allclose(np.stack(many)[3:, 1], greedy[3:])


def test_starts_may_be_numbers_and_must_fit() -> None:
    policy = TrainedPolicy(network(use_rnn=True))
    _, state = policy.predict(OBSERVATIONS)
    begun = policy.predict(OBSERVATIONS, state, np.ones(6, int), deterministic=True)[0]
    np.testing.assert_array_equal(begun, policy.predict(OBSERVATIONS, deterministic=True)[0])
    with pytest.raises(ValueError, match="episode_start has 2 entries for 6 observations"):
        policy.predict(OBSERVATIONS, state, np.array([True, False]))


def test_parts_of_observations_may_come_in_any_order_and_with_others() -> None:
    space = spaces.Dict({"x": spaces.Box(-1, 1, (2,)), "y": spaces.Discrete(4)})
    specs = time_step_spec(spec_of_space(space)), spec_of_action_space(spaces.Discrete(3))
    policy = RandomPolicy(*specs)
    seen = {"z": 1, "y": np.array([1, 2, 3]), "x": np.zeros((3, 2), np.float32)}
    assert policy.predict(seen)[0].shape == (3,)
    assert policy.predict({"x": np.zeros(2), "y": 1})[0].shape == ()
    with pytest.raises(ValueError, match="different batch sizes"):
        policy.predict(seen | {"y": np.array([1, 2])})
    with pytest.raises(ValueError, match=r"The shape of x is \[3, 3\], expected \[2\], or one dimension more"):
        policy.predict(seen | {"x": np.zeros((3, 3))})


def test_what_no_policy_was_trained_on_is_refused() -> None:
    space = spaces.Dict({"x": spaces.Box(-1, 1, (2,)), "y": spaces.Discrete(4, start=2)})
    policy = RandomPolicy(time_step_spec(spec_of_space(space)), spec_of_action_space(spaces.Discrete(3)))
    with pytest.raises(ValueError, match="1 of 2 numbers of x are not finite"):
        policy.predict({"x": np.array([0, np.nan]), "y": 2})
    for outside in (1, 6):
        with pytest.raises(ValueError, match=f"y has the number {outside}, expected an integer from 2 to 5"):
            policy.predict({"x": np.zeros((2, 2)), "y": np.array([2, outside])})
    several = time_step_spec(spec_of_space(spaces.MultiDiscrete([2, 5])))
    with pytest.raises(ValueError, match=r"has the number 2 at \[0\], expected an integer from 0 to 1"):
        RandomPolicy(several, spec_of_action_space(spaces.Discrete(3))).predict(np.array([[0, 4], [2, 3]]))


def test_evaluation_of_stable_baselines3_takes_a_policy() -> None:
    evaluation = pytest.importorskip("stable_baselines3.common.evaluation")
    env = gymnasium.make("CartPole-v1")
    observations = spec_of_space(env.observation_space)
    policy = RandomPolicy(time_step_spec(observations), spec_of_action_space(env.action_space))
    mean, _ = evaluation.evaluate_policy(policy, env, n_eval_episodes=5, deterministic=False, warn=False)
    assert 8 < mean < 100


def test_masks_are_taken_as_sb3_contrib_gives_them() -> None:
    register_env("MaskedByMethod", lambda: Masked("method"))
    env = sf.MaskFromInfo(Masked("method"))
    info = probe(find_env("MaskedByMethod"))
    policy = TrainedPolicy(ActorCritic(info, ModelConfig()))
    observation, _ = env.reset()
    plain = Masked("method")
    raw, _ = plain.reset()
    for _ in range(20):
        masks = plain.action_masks()
        action, _ = policy.predict(raw, action_masks=masks)
        assert masks[action - 3]
        assert policy.predict(observation)[0] in (4, 6)
        raw, *_ = plain.step(action)
    assert policy.predict(np.stack([raw, raw]), action_masks=np.array([[1, 0, 0, 0], [0, 0, 0, 1]]))[0].tolist() == [
        3,
        6,
    ]
    with pytest.raises(ValueError, match="was trained without masks"):
        TrainedPolicy(network()).predict(OBSERVATIONS[0], action_masks=[True])
