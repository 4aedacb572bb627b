"""Policies in other programs: pickled, copied, and with another default dtype of torch."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest
import torch
from gymnasium import spaces

from sf.config import ModelConfig
from sf.nets.actor_critic import ActorCritic
from sf.policy import CollectPolicy, GreedyPolicy, NumpyPolicy, Policy, RandomPolicy, TrainedPolicy
from sf.policy.steps import TimeStep
from sf.spaces import ActionColumn, ActionSpec, EnvInfo, LeafSpec
from sf.spaces.from_gymnasium import action_spec

BOX = ActionSpec((ActionColumn(low=-2.0, high=3.0), ActionColumn(low=-1.0, high=1.0)))
MIXED = action_spec(spaces.Tuple((spaces.Discrete(3), spaces.Box(-1.0, 1.0, (1,)))))
OBSERVATION = torch.tensor([[0.5, -1.0, 2.0, 0.25], [0.0, 1.0, -1.0, 3.0]])


def trained(action: ActionSpec = BOX, bounds: Any = "scale", **config: Any) -> TrainedPolicy:
    torch.manual_seed(3)
    info = EnvInfo("test", 1, {"obs": LeafSpec((4,), "float32")}, action)
    return TrainedPolicy(ActorCritic(info, ModelConfig(encoder_mlp_layers=(8,), **config)), bounds)


POLICIES: dict[str, Callable[[], Policy]] = {
    "box": trained,
    "squashed": lambda: trained(bounds="tanh"),
    "choices": lambda: trained(ActionSpec.discrete(3)),
    "mixed": lambda: trained(MIXED),
    "recurrent": lambda: trained(use_rnn=True, rnn_size=8, rnn_type="lstm"),
    "greedy": lambda: GreedyPolicy(trained()),
    "log-probabilities": lambda: TrainedPolicy(trained().network, emit_log_probability=True),
    "collecting": lambda: CollectPolicy(trained().network, emit_log_probability=True),
    "random": lambda: RandomPolicy(trained().time_step_spec, trained().action_spec),
}


def acted(policy: Policy) -> Any:
    """All that it says of two observations."""
    is_dict = isinstance(policy.time_step_spec.observation, dict)
    first = TimeStep.first({"obs": OBSERVATION} if is_dict else OBSERVATION, 2)
    step = policy.action(first, policy.get_initial_state(2), seed=5)
    return torch.utils._pytree.tree_leaves((step.action, step.state, step.info))


def through_torch(policy: Any) -> Any:
    file = io.BytesIO()
    torch.save(policy, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda policy: pickle.loads(pickle.dumps(policy)),
    "copy": copy.deepcopy,
    "torch": through_torch,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", POLICIES)
def test_a_copy_of_a_policy_acts_alike_and_shares_nothing(kind: str, way: str) -> None:
    policy = POLICIES[kind]()
    copied = WAYS[way](policy)
    for before, after in zip(acted(policy), acted(copied), strict=True):
        assert torch.equal(before, after)
        assert before.dtype == after.dtype
    if hasattr(policy, "network"):
        was = acted(policy)
        copied.network.flat.add_(1.0)
        assert all(torch.equal(before, after) for before, after in zip(was, acted(policy), strict=True))


def test_a_copied_numpy_policy_acts_alike() -> None:
    policy = NumpyPolicy(trained())
    copied = pickle.loads(pickle.dumps(policy))
    first = TimeStep.first(OBSERVATION[0].numpy())
    assert (policy.action(first, seed=1).action == copied.action(first, seed=1).action).all()


@pytest.mark.more
def test_a_policy_travels_to_another_process() -> None:
    policy = trained()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        (found,) = pool.submit(acted, policy).result(60)
    assert torch.equal(found, acted(policy)[0])


@pytest.fixture
def _float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("kind", POLICIES)
def test_a_policy_does_not_mind_another_default_dtype(kind: str, request: pytest.FixtureRequest) -> None:
    expected = acted(POLICIES[kind]())
    request.getfixturevalue("_float64")
    policy = POLICIES[kind]()
    for before, after in zip(expected, acted(policy), strict=True):
        assert before.dtype == after.dtype
        assert torch.equal(before, after)
    assert torch.get_default_dtype() is torch.float64
    policy.distribution(TimeStep.first(*_observation(policy)), policy.get_initial_state(2))
    if kind != "collecting":
        action, _ = policy.predict(OBSERVATION.numpy())
        assert torch.utils._pytree.tree_leaves(action)[0].dtype == expected[0].numpy().dtype


def _observation(policy: Policy) -> tuple[Any, int]:
    is_dict = isinstance(policy.time_step_spec.observation, dict)
    return ({"obs": OBSERVATION} if is_dict else OBSERVATION), 2
