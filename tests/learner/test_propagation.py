"""The way back through a network, written out, against the one that torch records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gymnasium import spaces

from sf.config import LearnerConfig, ModelConfig
from sf.learner.algorithm import Algorithm, Losses, LossGradients
from sf.learner.dataset import Transitions
from sf.learner.ppo import PPO
from sf.learner.propagation import Native, Recorded, WrittenOut, propagation_through
from sf.nets.fast import small_networks
from sf.nets.fast.native import NativeNetwork, native_network
from sf.nets.gaussian import DiagonalGaussian
from sf.policy import ActorCritic, Evaluation
from sf.spaces import EnvInfo
from sf.spaces.from_gymnasium import action_spec, observation_leaves

PPO_IN_TORCH, PPO_OF_DEFAULTS = PPO(LearnerConfig(native_update=False)), PPO(LearnerConfig())


class Given(Algorithm):
    """A loss with these derivatives."""

    def __init__(self, derivatives: LossGradients) -> None:
        super().__init__(LearnerConfig())
        self.derivatives = derivatives

    def loss(self, evaluation: Evaluation, minibatch: Transitions) -> Losses:
        total = sum((one * other).sum() for one, other in zip(self.derivatives, evaluation[:3], strict=True))
        return Losses(torch.as_tensor(total), {})


class GivenByHand(Given):
    """The same without autograd."""

    def gradients(self, evaluation: Evaluation, minibatch: Transitions) -> LossGradients:
        return self.derivatives


CHOICE, NUMBERS = spaces.Discrete(5, start=2), spaces.Box(-1.0, 1.0, (3,))


def make(action_space: Any = CHOICE, size: int = 6, **settings: Any) -> ActorCritic:
    torch.manual_seed(1)
    info = EnvInfo("Toy", 1, observation_leaves(spaces.Box(-1.0, 1.0, (size,))), action_spec(action_space))
    policy = ActorCritic(info, ModelConfig(**{"encoder_mlp_layers": (16, 8), **settings}))
    with torch.no_grad():
        policy.flat_parameters.add_(0.3 * torch.randn_like(policy.flat_parameters))
        for normalizer in policy.observation_normalizers.values():
            normalizer.mean.uniform_(-1.0, 1.0)
            normalizer.std.uniform_(0.5, 2.0)
    return policy


def outcome(
    make_network: Callable[[Algorithm], Any], policy: ActorCritic, num_rows: int, kind: type[Given] = GivenByHand
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """What a network says of random rows, and the gradient that it adds to one that is there."""
    random = torch.Generator().manual_seed(2)
    observations = {"obs": torch.randn(num_rows, *policy.info.observations["obs"].shape, generator=random)}
    actions = torch.randn(num_rows, 3, generator=random)
    if policy.info.action.is_scalar:
        actions = torch.randint(5, (num_rows,), generator=random)
    derivatives = LossGradients(*torch.randn(3, num_rows, generator=random).unbind())
    network = make_network(kind(derivatives))
    policy.flat_gradient.fill_(0.125)
    evaluation = network.evaluate(observations, actions)
    none = torch.empty(0)
    network.backward(evaluation, Transitions({}, none, none, none, none, none, none))
    assert evaluation.heads == {}
    return [part.detach() for part in evaluation[:4]], policy.flat_gradient.clone()


NETWORKS: list[tuple[Any, dict[str, Any]]] = [
    (CHOICE, {}),
    (CHOICE, {"actor_critic_share_weights": False}),
    (CHOICE, {"nonlinearity": "relu"}),
    (CHOICE, {"nonlinearity": "elu", "encoder_mlp_layers": (16, 16, 16)}),
    (CHOICE, {"nonlinearity": "tanh", "encoder_mlp_layers": (4,), "size": 1}),
    (CHOICE, {"normalize_input": False, "obs_scale": 3.0, "normalize_returns": False}),
    (NUMBERS, {}),
    (NUMBERS, {"actor_critic_share_weights": False, "adaptive_stddev": False}),
    (NUMBERS, {"adaptive_stddev": False, "nonlinearity": "tanh"}),
    (NUMBERS, {"adaptive_stddev": True, "initial_stddev": 0.2}),
]


@pytest.mark.parametrize("num_rows", [1, 7, 300])
@pytest.mark.parametrize(("action_space", "settings"), NETWORKS)
def test_what_is_written_out_is_what_torch_records(action_space: Any, settings: dict[str, Any], num_rows: int) -> None:
    """The numbers to the last bit, as ratios of 1 need; gradients up to the order of sums."""
    policy = make(action_space, **settings)
    assert isinstance(propagation_through(policy, PPO_IN_TORCH), WrittenOut)
    right, right_gradient = outcome(lambda given: Recorded(policy.evaluate, given), policy, num_rows, Given)
    assert float((right_gradient - 0.125).abs().max()) > 0.1
    shortcuts: list[Callable[[Algorithm], Any]] = [
        lambda given: Recorded(policy.evaluate, given),
        lambda given: WrittenOut(policy, given),
    ]
    for shortcut in shortcuts:
        found, found_gradient = outcome(shortcut, policy, num_rows)
        for name, one, other in zip(Evaluation._fields, found, right, strict=False):
            assert torch.equal(one, other), name
        torch.testing.assert_close(found_gradient, right_gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_rows", [1, 7, 300])
@pytest.mark.parametrize(("action_space", "settings"), [*NETWORKS, (CHOICE, {"encoder_mlp_layers": (64, 33, 5)})])
def test_networks_in_c_are_those_of_torch(action_space: Any, settings: dict[str, Any], num_rows: int) -> None:
    """Numbers and gradients up to the order of sums, with rows and columns that fill no block."""
    policy = make(action_space, **settings)
    network = in_c(policy)
    right, right_gradient = outcome(lambda given: Recorded(policy.evaluate, given), policy, num_rows)
    found, found_gradient = outcome(lambda given: Native(network, given), policy, num_rows)
    for name, one, other in zip(Evaluation._fields, found, right, strict=False):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=3e-6, msg=name)
    most = float(right_gradient.abs().max())
    torch.testing.assert_close(found_gradient, right_gradient, rtol=1e-4, atol=1e-5 * most)


@pytest.mark.parametrize(("action_space", "settings"), NETWORKS)
def test_outputs_in_c_have_the_gradients_of_torch(action_space: Any, settings: dict[str, Any]) -> None:
    """Two passes before the way back, as a loss with two terms has, and one without gradients in between."""
    policy = make(action_space, **settings)
    network, found = in_c(policy), []
    first, second = torch.randn(2, 21, 6, generator=torch.Generator().manual_seed(5)).unbind()
    for outputs in (network.outputs, lambda observations: policy.forward(observations, None)[:2]):
        policy.flat_gradient.zero_()
        size = policy.info.observations["obs"].shape[0]
        params, values = outputs({"obs": first[:, :size]})
        others, other_values = outputs({"obs": second[:, :size]})
        with torch.no_grad():
            weights, _ = outputs({"obs": second[:, :size]})
        ((params * weights).sum() + (others.square().mean(0) * other_values.sum()).sum() + values.mean()).backward()  # type: ignore[no-untyped-call]
        found.append((params.detach(), values.detach(), policy.flat_gradient.clone()))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * float(other.abs().max()))


def test_deviations_at_their_limits_have_no_gradient_in_c() -> None:
    policy = make(NUMBERS, adaptive_stddev=True)
    with torch.no_grad():  # the head asks for deviations far beyond the limits, for every observation
        policy.policy_head.bias[3:5] = torch.tensor([100.0, -100.0])
    _, gradient = outcome(lambda given: Native(in_c(policy), given), policy, 7)
    del gradient
    assert policy.policy_head.bias.grad is not None
    assert policy.policy_head.bias.grad[3:5].tolist() == [0.125, 0.125]
    assert policy.policy_head.bias.grad[5] != 0.125


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu", "elu"])
def test_what_is_not_a_number_stays_that_in_c(nonlinearity: str) -> None:
    """A step with such a gradient is skipped, see `Update`; the other rows are as they were."""
    policy = make(nonlinearity=nonlinearity)
    network, observations = in_c(policy), torch.zeros(9, 6)
    observations[4, 2] = torch.nan
    log_probs, *_ = network.forward(observations, torch.zeros(9, dtype=torch.int64))
    assert log_probs.isnan().tolist() == [row == 4 for row in range(9)]
    policy.flat_gradient.zero_()
    network.backward(*torch.ones(3, 9).unbind())
    assert policy.flat_gradient.isnan().any()


def test_without_a_compiler_torch_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    small_networks.functions.cache_clear()
    try:
        assert isinstance(propagation_through(make(), PPO_OF_DEFAULTS), WrittenOut)
    finally:
        small_networks.functions.cache_clear()


def in_c(policy: ActorCritic) -> NativeNetwork:
    if (network := native_network(policy)) is None:
        pytest.skip("no C compiler")
    return network


def test_deviations_at_their_limits_have_no_gradient() -> None:
    """Where the network asks for more, nothing it does changes them, and at the limit itself it does."""
    policy = make(NUMBERS, adaptive_stddev=True)
    low, high = policy.config.log_stddev_limits
    log_stds = torch.tensor([[low - 1.0, low, high], [high + 1.0, 0.0, low]])
    assert isinstance(policy.distribution, DiagonalGaussian)
    params = torch.cat([torch.zeros(2, 3), log_stds - policy.distribution.initial_log_std], -1)
    actions, derivatives = torch.full((2, 3), 1e-4), (torch.ones(2), torch.full((2,), 0.5))
    recorded = params.clone().requires_grad_()
    torch.autograd.backward(policy.distribution.evaluate(recorded, actions), derivatives)
    *_, gradient = policy.distribution.evaluate_by_hand(params, actions)
    found = gradient(*derivatives)
    assert recorded.grad is not None
    torch.testing.assert_close(found, recorded.grad)
    assert found[0, 3] == found[1, 3] == 0.0
    assert found[0, 4] != 0.0


@pytest.mark.parametrize(
    ("action_space", "settings"),
    [
        (CHOICE, {"use_rnn": True}),
        (CHOICE, {"encoder_per_key": True}),
        (spaces.MultiDiscrete([2, 3]), {}),
        (spaces.Tuple([CHOICE, NUMBERS]), {}),
    ],
)
def test_other_networks_are_recorded(action_space: Any, settings: dict[str, Any]) -> None:
    assert isinstance(propagation_through(make(action_space, **settings), PPO_OF_DEFAULTS), Recorded)


def test_bfloat16_is_recorded() -> None:
    policy = make()
    rough = ActorCritic(policy.info, policy.config, bf16=True)
    assert isinstance(propagation_through(rough, PPO_OF_DEFAULTS), Recorded)
