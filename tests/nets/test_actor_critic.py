"""The policy against literal values, NumPy and torch.distributions."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sf.config import Config, ModelConfig, RunConfig
from sf.config.presets import with_preset
from sf.nets import activations
from sf.nets.activations import ACTIVATIONS
from sf.nets.categorical import Categorical
from sf.nets.gaussian import DiagonalGaussian
from sf.nets.networks import HIDDEN_GAIN
from sf.nets.normalizer import Normalizer
from sf.policy import ActorCritic
from sf.spaces import ActionColumn, ActionSpec, EnvInfo, LeafSpec

ORACLES: dict[str, Any] = json.loads((Path(__file__).parents[1] / "oracles.json").read_text())


def discrete(num_actions: int) -> ActionSpec:
    return ActionSpec.discrete(num_actions)


def box(size: int) -> ActionSpec:
    return ActionSpec((ActionColumn(low=-1.0, high=1.0),) * size)


def make_policy(
    action: ActionSpec, observations: dict[str, LeafSpec] | tuple[int, ...] = (4,), **config: Any
) -> ActorCritic:
    if isinstance(observations, tuple):
        observations = {"obs": LeafSpec(observations, "float32")}
    return ActorCritic(EnvInfo("test", 1, observations, action), ModelConfig(**config))


def num_parameters(policy: ActorCritic) -> int:
    return sum(p.numel() for p in policy.parameters())


def cases(row: str) -> list[Any]:
    return [
        pytest.param(case["inputs"], case["expected"], id=f"{row}-{i}") for i, case in enumerate(ORACLES[row]["cases"])
    ]


# ---------------------------------------------------------------------------------------------------- architecture


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


def test_c22_pixels_are_divided_by_255_in_the_network_only() -> None:
    policy = make_policy(discrete(2), {"obs": LeafSpec((4, 84, 84), "uint8")})
    image = policy.inputs({"obs": torch.full((1, 4, 84, 84), 255, dtype=torch.uint8)})["obs"]
    assert image.max() == 1.0
    assert not policy.observation_normalizers


def test_obs_scale_replaces_255() -> None:
    policy = make_policy(discrete(2), {"obs": LeafSpec((4, 84, 84), "uint8")}, obs_scale=128.0, obs_subtract_mean=127.0)
    image = policy.inputs({"obs": torch.full((1, 4, 84, 84), 255, dtype=torch.uint8)})["obs"]
    assert image.max() == 1.0


def test_planes_of_microrts_are_not_scaled() -> None:
    info = EnvInfo("test", 1, {"obs": LeafSpec((16, 16, 27), "uint8")}, discrete(2))
    policy = ActorCritic(info, with_preset("microrts", Config(RunConfig("test"))).model)
    planes = policy.inputs({"obs": torch.ones(1, 16, 16, 27, dtype=torch.uint8)})["obs"]
    assert planes.shape == (1, 27, 16, 16)
    assert planes.unique().tolist() == [1.0]
    image = make_policy(discrete(2), {"obs": LeafSpec((4, 84, 84), "uint8")}, scale_pixels=False)
    assert set(image.observation_normalizers) == {"obs"}, "like other numbers"


# ------------------------------------------------------------------------------------------------------ statistics


def test_c28_observations_are_shifted_and_scaled() -> None:
    policy = make_policy(discrete(2), (3,))
    mean, variance = np.array([1.0, -2.0, 100.0]), np.array([0.5, 4.0, 25.0])
    policy.observation_normalizers["obs"].set_moments(torch.from_numpy(mean), torch.from_numpy(variance))
    raw = np.random.default_rng(0).normal(mean, 1.0, (7, 3)).astype(np.float32)
    read = policy.inputs({"obs": torch.from_numpy(raw)})["obs"]
    np.testing.assert_allclose(read.numpy(), (raw - mean) / np.sqrt(variance + 1e-8), atol=1e-6, rtol=1e-5)


def test_c29_normalized_observations_are_clipped() -> None:
    policy = make_policy(discrete(2))
    observations = {"obs": torch.tensor([[1e9, -1e9, 10.5, -3.0]])}
    assert policy.inputs(observations)["obs"].tolist() == [[10.0, -10.0, 10.0, -3.0]]
    assert observations["obs"][0, 0] == 1e9, "the observation itself stays as it is"


def test_normalizer_round_trip() -> None:
    normalizer = Normalizer(())
    normalizer.set_moments(torch.tensor(5.0, dtype=torch.float64), torch.tensor(9.0, dtype=torch.float64))
    assert normalizer.normalize(torch.tensor([8.0])).item() == pytest.approx(1.0)
    assert normalizer.denormalize(torch.tensor([1.0])).item() == pytest.approx(8.0)


def test_values_are_in_units_of_the_reward() -> None:
    policy = make_policy(discrete(2))
    observations = {"obs": torch.randn(6, 4)}
    normalized = policy.values(observations)
    assert policy.return_normalizer is not None
    policy.return_normalizer.set_moments(torch.tensor(100.0), torch.tensor(400.0))
    expected = 100 + 20 * normalized
    torch.testing.assert_close(policy.values(observations), expected)
    torch.testing.assert_close(policy.act(observations).info.value_prediction, expected)
    evaluation = policy.evaluate(observations, torch.zeros(6, dtype=torch.int64))
    torch.testing.assert_close(evaluation.normalized_values.detach(), normalized)
    torch.testing.assert_close(policy.normalize(expected), normalized)


@pytest.mark.parametrize("separate", [False, True])
def test_values_stay_when_the_statistics_of_returns_change(separate: bool) -> None:
    """PopArt: the head is rescaled with its unit, whatever the statistics were before."""
    policy = make_policy(discrete(2), actor_critic_share_weights=not separate)
    observations = {"obs": torch.randn(6, 4)}
    values = policy.values(observations)
    for mean, variance in ((100.0, 400.0), (-3e4, 1e8), (0.5, 1e-4)):
        policy.set_return_moments(torch.tensor(mean, dtype=torch.float64), torch.tensor(variance, dtype=torch.float64))
        scale = max(1.0, abs(mean), variance**0.5)
        torch.testing.assert_close(policy.values(observations), values, rtol=1e-5, atol=1e-5 * scale)
        torch.testing.assert_close(
            policy.evaluate(observations, torch.zeros(6, dtype=torch.int64)).normalized_values.detach(),
            (values - mean) / variance**0.5,
            rtol=1e-3,
            atol=1e-4 * scale / variance**0.5,
        )


# --------------------------------------------------------------------------------------------------------- actions


@pytest.mark.parametrize(
    ("action", "config"),
    [
        (discrete(6), {}),
        (discrete(6), {"actor_critic_share_weights": False}),
        (box(3), {}),
        (box(3), {"adaptive_stddev": True}),
    ],
)
def test_recorded_log_probability_is_exactly_that_of_training(action: ActionSpec, config: dict[str, Any]) -> None:
    torch.manual_seed(0)
    policy = make_policy(action, **config)
    observations = {"obs": torch.randn(64, 4)}
    step = policy.act(observations)
    evaluation = policy.evaluate(observations, step.action.clone())
    assert torch.equal(evaluation.log_probs.detach(), step.info.log_probability)
    torch.testing.assert_close(policy.values(observations), step.info.value_prediction)


def test_same_seed_same_actions() -> None:
    policy = make_policy(box(64))
    observations = {"obs": torch.randn(8, 4)}

    def draw(seed: int) -> Tensor:
        actions: Tensor = policy.act(observations, generator=torch.Generator().manual_seed(seed)).action
        return actions

    assert torch.equal(draw(3), draw(3))
    assert not torch.equal(draw(3), draw(4))


def test_greedy_action_is_the_mode() -> None:
    categorical, gaussian = make_policy(discrete(5)), make_policy(box(2))
    observations = {"obs": torch.randn(9, 4)}
    step = categorical.act(observations, greedy=True)
    params = categorical.evaluate(observations, step.action.clone()).action_params
    assert torch.equal(step.action, params.argmax(-1))
    step = gaussian.act(observations, greedy=True)
    params = gaussian.evaluate(observations, step.action.clone()).action_params
    torch.testing.assert_close(step.action, params.detach())
    assert step.state.shape == (9, 0)


def sample(
    distribution: Categorical | DiagonalGaussian, params: Tensor, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    return distribution.sample(params, distribution.noise(len(params), generator))


def test_categorical_frequencies() -> None:
    logits = torch.tensor([0.0, 1.0, -2.0, 0.5]).repeat(200_000, 1)
    actions, _ = sample(Categorical((4,), is_scalar=True), logits, torch.Generator().manual_seed(0))
    frequencies = torch.bincount(actions, minlength=4) / len(actions)
    torch.testing.assert_close(frequencies, logits[0].softmax(-1), atol=0.004, rtol=0)


@pytest.mark.parametrize("num_actions", [1, 2, 1000])
def test_categorical_never_leaves_its_range(num_actions: int) -> None:
    logits = 5 * torch.randn(20_000, num_actions)
    actions, log_probs = sample(Categorical((num_actions,), is_scalar=True), logits)
    assert actions.min() >= 0
    assert actions.max() < num_actions
    assert torch.isfinite(log_probs).all()


def test_categorical_against_torch_distributions() -> None:
    logits = torch.randn(50, 7, requires_grad=True)
    actions = torch.randint(0, 7, (50,))
    log_probs, entropy = Categorical((7,), is_scalar=True).evaluate(logits, actions)
    distribution: Any = torch.distributions.Categorical(logits=logits)
    expected = distribution.log_prob(actions), distribution.entropy()
    torch.testing.assert_close((log_probs, entropy), expected)
    weights = torch.randn(2, 50)
    found_gradient, expected_gradient = (
        torch.autograd.grad((weights[0] * a + weights[1] * b).sum(), logits)
        for a, b in ((log_probs, entropy), expected)
    )
    torch.testing.assert_close(found_gradient, expected_gradient)


@pytest.mark.parametrize("adaptive", [False, True])
def test_gaussian_against_torch_distributions(adaptive: bool) -> None:
    distribution = DiagonalGaussian(3, ModelConfig(initial_stddev=0.5, adaptive_stddev=adaptive))
    params = torch.randn(50, distribution.num_params).clamp(-2.0, 2.0)  # within the limits of deviations
    mean = params[:, :3]
    std = 0.5 * params[:, 3:].exp() if adaptive else torch.full((50, 3), 0.5)
    actions = torch.randn(50, 3)
    expected: Any = torch.distributions.Independent(torch.distributions.Normal(mean, std), 1)
    log_probs, entropy = distribution.evaluate(params, actions)
    torch.testing.assert_close(log_probs, expected.log_prob(actions))
    torch.testing.assert_close(entropy, expected.entropy())


def test_gaussian_samples_have_the_right_moments() -> None:
    distribution = DiagonalGaussian(2, ModelConfig(initial_stddev=0.3))
    mean = torch.tensor([1.0, -2.0]).repeat(100_000, 1)
    actions, _ = sample(distribution, mean, torch.Generator().manual_seed(0))
    torch.testing.assert_close(actions.mean(0), mean[0], atol=0.01, rtol=0)
    torch.testing.assert_close(actions.std(0).detach(), torch.full((2,), 0.3), atol=0.01, rtol=0)


@pytest.mark.parametrize(("inputs", "expected"), [*cases("C23"), *cases("C25")])
def test_c23_c25_log_probability_at_the_mean(inputs: Any, expected: Any) -> None:
    distribution = DiagonalGaussian(inputs["dims"], ModelConfig(initial_stddev=inputs["std"]))
    mean = torch.zeros(1, inputs["dims"])
    log_probs, entropy = distribution.evaluate(mean, mean)
    assert log_probs.item() == pytest.approx(expected["log_prob"], abs=1e-5)
    if "entropy" in expected:
        assert entropy.item() == pytest.approx(expected["entropy"], abs=1e-5)


@pytest.mark.parametrize(("inputs", "expected"), cases("C24"))
def test_c24_initial_entropy(inputs: Any, expected: Any) -> None:
    policy = make_policy(box(inputs["dims"]), initial_stddev=math.exp(inputs["log_std"]))
    evaluation = policy.evaluate({"obs": torch.randn(3, 4)}, torch.randn(3, inputs["dims"]))
    assert evaluation.entropy.tolist() == pytest.approx([expected["entropy"]] * 3, abs=1e-5)


@pytest.mark.parametrize(("inputs", "expected"), [c for c in cases("B10") if c.values[0]["info_spec"] == "empty"])
def test_b10_uniform_categorical(inputs: Any, expected: Any) -> None:
    logits = torch.tensor(inputs["probs"]).log().unsqueeze(0)
    _, log_probs = sample(Categorical((5,), is_scalar=True), logits)
    assert log_probs.item() == pytest.approx(expected["log_probability"], abs=1e-6)


@pytest.mark.parametrize(("inputs", "expected"), cases("B12"))
def test_b12_density_above_one(inputs: Any, expected: Any) -> None:
    distribution = DiagonalGaussian(1, ModelConfig(initial_stddev=inputs["scale"]))
    log_probs, _ = distribution.evaluate(torch.tensor([[inputs["loc"]]]), torch.tensor([[inputs["value"]]]))
    assert log_probs.item() == pytest.approx(expected["log_probability"], abs=1e-6)


# ----------------------------------------------------------------------------------------------------------- masks


def masked_policy(num_actions: int) -> ActorCritic:
    return make_policy(
        discrete(num_actions), {"obs": LeafSpec((4,), "float32"), "action_mask": LeafSpec((num_actions,), "int8")}
    )


@pytest.mark.parametrize(("inputs", "expected"), cases("C-X4"))
def test_cx4_masked_categorical(inputs: Any, expected: Any) -> None:
    policy = masked_policy(3)
    with torch.no_grad():
        policy.policy_head.bias.copy_(torch.tensor(inputs["logits"]))
        policy.policy_head.weight.zero_()
    observations = {"obs": torch.randn(1, 4), "action_mask": torch.tensor([inputs["mask"]], dtype=torch.int8)}
    evaluation = policy.evaluate(observations, torch.tensor([2]))
    assert evaluation.action_params.softmax(-1)[0].tolist() == pytest.approx(expected["probs"], abs=1e-6)
    assert evaluation.entropy.item() == pytest.approx(expected["entropy"], abs=1e-6)
    torch.autograd.backward((evaluation.entropy + evaluation.log_probs).sum())
    assert policy.policy_head.bias.grad is not None
    assert policy.policy_head.bias.grad[1] == expected["gradient_wrt_masked_logit"]


def test_b18_masked_actions_are_never_drawn() -> None:
    policy = masked_policy(4)
    rows = 10_000
    observations = {
        "obs": torch.randn(rows, 4),
        "action_mask": torch.tensor([0, 1, 0, 1], dtype=torch.int8).repeat(rows, 1),
    }
    step = policy.act(observations)
    assert set(step.action.tolist()) == {1, 3}
    ratio = (policy.evaluate(observations, step.action.clone()).log_probs - step.info.log_probability).exp()
    assert (ratio == 1).all()


# -------------------------------------------------------------------------------------------------- flat variables


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


# ----------------------------------------------------------------------------------------------------- activations


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
