"""Networks of the policy: parameters, first weights, inputs, flat variables, and activations."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from sf.nets import activations
from sf.nets.activations import ACTIVATIONS
from sf.nets.networks import HIDDEN_GAIN
from sf.policy import ActorCritic
from sf.spaces import ActionSpec, LeafSpec
from tests.helpers.networks import box, cases, discrete, make_policy, num_parameters


@pytest.mark.parametrize(("inputs", "expected"), cases("C13"))
def test_c13_parameters_on_cartpole(inputs: Any, expected: Any) -> None:
    policy = make_policy(
        discrete(inputs["num_actions"]), (inputs["obs_size"],), actor_critic_share_weights=inputs["shared_trunk"]
    )
    assert num_parameters(policy) == policy.flat_parameters.numel() == expected["parameters"]


@pytest.mark.parametrize(("inputs", "expected"), cases("C21"))
def test_c21_parameters_of_the_shared_nature_cnn(inputs: Any, expected: Any) -> None:
    policy = make_policy(
        discrete(inputs["num_actions"]),
        {"obs": LeafSpec((inputs["frames"], 84, 84), "uint8")},
        encoder_conv_architecture="convnet_atari",
        nonlinearity="relu",
    )
    assert num_parameters(policy) == expected["parameters"]


@pytest.mark.parametrize(("inputs", "expected"), cases("C26"))
def test_c26_parameters_of_continuous_control(inputs: Any, expected: Any) -> None:
    policy = make_policy(box(inputs["action_size"]), (inputs["obs_size"],), actor_critic_share_weights=False)
    assert num_parameters(policy) == expected["parameters"]


@pytest.mark.parametrize("action", [discrete(5), box(3)])
def test_c2_orthogonal_initialisation(action: ActionSpec) -> None:
    policy = make_policy(action, {"obs": LeafSpec((4,), "float32"), "image": LeafSpec((3, 40, 36), "uint8")})
    gains = {"policy_head.weight": 0.01, "value_head.weight": 1.0}
    for name, variable in policy.named_parameters():
        if name.endswith("bias"):
            assert torch.count_nonzero(variable) == 0, name
        elif name.endswith("weight"):
            w = variable.detach().flatten(1).double()
            gram = w @ w.t() if w.shape[0] <= w.shape[1] else w.t() @ w
            expected = gains.get(name, HIDDEN_GAIN) ** 2 * torch.eye(len(gram), dtype=torch.float64)
            torch.testing.assert_close(gram, expected, atol=1e-5, rtol=1e-4)


def test_c2_first_policy_is_almost_uniform() -> None:
    policy = make_policy(discrete(5))
    params = policy.evaluate({"obs": torch.randn(1000, 4)}, torch.zeros(1000, dtype=torch.int64)).action_params
    assert params.softmax(-1).max() < 1 / 5 + 0.01


def test_all_leaves_reach_the_features() -> None:
    policy = make_policy(
        discrete(2),
        {
            "category": LeafSpec((), "int64", categories=(3,), starts=(5,)),
            "grid": LeafSpec((2, 3), "int32"),
            "scalar": LeafSpec((), "float32"),
            "frames": LeafSpec((4, 36, 40), "uint8"),
            "colours": LeafSpec((36, 40, 3), "uint8"),
            "gray": LeafSpec((40, 36), "float32"),
        },
        encoder_conv_mlp_layers=(8,),
    )
    rows = 5
    observations = {
        "category": torch.tensor([5, 6, 7, 5, 6]),
        "grid": torch.randint(-9, 9, (rows, 2, 3), dtype=torch.int32),
        "scalar": torch.randn(rows),
        "frames": torch.randint(0, 256, (rows, 4, 36, 40), dtype=torch.uint8),
        "colours": torch.randint(0, 256, (rows, 36, 40, 3), dtype=torch.uint8),
        "gray": torch.randn(rows, 40, 36),
    }
    read = policy.inputs(observations)
    shapes = {
        "category": (3,),
        "grid": (6,),
        "scalar": (1,),
        "frames": (4, 36, 40),
        "colours": (3, 36, 40),
        "gray": (1, 40, 36),
    }
    assert policy.inputs.shapes == shapes
    assert {name: tuple(leaf.shape[1:]) for name, leaf in read.items()} == shapes
    assert read["category"].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 1, 0]]
    torch.testing.assert_close(read["colours"][2, 1, 3, 4].item(), observations["colours"][2, 3, 4, 1].item() / 255)
    values = policy.values(observations)
    for name, leaf in observations.items():
        changed = {**observations, name: (leaf + 1 - 3 * (leaf == 7)) if name == "category" else leaf + 1}
        assert not torch.equal(values, policy.values(changed)), name


def test_b32_flat_holds_parameters_then_buffers_as_views() -> None:
    policy = make_policy(discrete(2))
    variables = policy.variables()
    assert list(variables) == [n for n, _ in policy.named_parameters()] + [n for n, _ in policy.named_buffers()]
    assert torch.equal(policy.flat, torch.cat([variable.reshape(-1) for variable in variables.values()]))
    policy.flat.zero_()
    assert all(torch.count_nonzero(variable) == 0 for variable in variables.values())
    assert torch.count_nonzero(policy.flat_parameters) == 0


def test_backward_writes_into_the_flat_gradient() -> None:
    policy = make_policy(discrete(2))
    observations = {"obs": torch.randn(16, 4)}
    for _ in range(2):
        evaluation = policy.evaluate(observations, torch.zeros(16, dtype=torch.int64))
        torch.autograd.backward(evaluation.log_probs.sum() + evaluation.normalized_values.sum())
    gradients = [p.grad for p in policy.parameters() if p.grad is not None]
    assert len(gradients) == len(list(policy.parameters()))
    assert torch.equal(policy.flat_gradient, torch.cat([g.reshape(-1) for g in gradients]))
    assert torch.count_nonzero(policy.flat_gradient) > 4000


def test_published_vector_makes_another_policy_equal() -> None:
    torch.manual_seed(1)
    source, target = make_policy(discrete(2)), make_policy(discrete(2))
    source.observation_normalizers["obs"].set_moments(torch.arange(4.0), 1 + torch.arange(4.0))
    observations = {"obs": torch.randn(16, 4)}
    assert not torch.equal(source.values(observations), target.values(observations))
    target.flat.copy_(source.flat)
    assert torch.equal(source.values(observations), target.values(observations))


def test_a_copy_is_independent_and_flat() -> None:
    policy = make_policy(discrete(2))
    twin = copy.deepcopy(policy)
    observations = {"obs": torch.randn(4, 4)}
    before = policy.values(observations)
    twin.flat.fill_(0.5)
    assert torch.equal(before, policy.values(observations))
    assert not torch.equal(before, twin.values(observations))


def test_encoders_in_bfloat16_are_less_exact_and_everything_else_is_float32() -> None:
    exact = make_policy(box(2), actor_critic_share_weights=False, normalize_input=False)
    rough = ActorCritic(exact.info, exact.config, bf16=True)
    rough.flat.copy_(exact.flat)
    observations, actions = {"obs": torch.randn(256, 4)}, torch.randn(256, 2)
    evaluations = [policy.evaluate(observations, actions) for policy in (exact, rough)]
    for of_exact, of_rough in zip(*(evaluation[:4] for evaluation in evaluations), strict=True):
        assert of_rough.dtype == torch.float32
        torch.testing.assert_close(of_rough, of_exact, atol=0.03, rtol=0.03)
    assert not torch.equal(evaluations[0].normalized_values, evaluations[1].normalized_values)
    for evaluation in evaluations:
        torch.autograd.backward([evaluation.log_probs.sum(), evaluation.normalized_values.sum()])
    gradients = exact.flat_gradient, rough.flat_gradient
    assert torch.nn.functional.cosine_similarity(*gradients, dim=0) > 0.999
    assert rough.flat.dtype == rough.flat_gradient.dtype == torch.float32
    features = copy.deepcopy(rough).values(observations)
    assert torch.equal(features, rough.values(observations))


def test_moving_a_policy_is_refused() -> None:
    with pytest.raises(TypeError, match="Give the device to the constructor"):
        make_policy(discrete(2)).to("cpu")


@pytest.mark.parametrize(("name", "has_fast_tanh"), [("tanh", True), ("tanh", False), ("relu", True), ("elu", True)])
def test_activations_against_torch(name: str, has_fast_tanh: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activations, "HAS_FAST_TANH", has_fast_tanh)
    x = torch.linspace(-20, 20, 4001, requires_grad=True)
    reference = {"tanh": torch.tanh, "relu": torch.relu, "elu": torch.nn.functional.elu}[name]
    ours, theirs = ACTIVATIONS[name](x), reference(x)
    torch.testing.assert_close(ours, theirs, atol=3e-7, rtol=0)
    weights = torch.randn_like(x)
    (gradient,) = torch.autograd.grad((ours * weights).sum(), x)
    (expected,) = torch.autograd.grad((theirs * weights).sum(), x)
    torch.testing.assert_close(gradient, expected, atol=1e-6, rtol=1e-5)
    with torch.no_grad():
        assert torch.equal(ACTIVATIONS[name](x), ours.detach())
