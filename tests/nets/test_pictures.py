"""Pictures: prepared so that convolutions are fast, with the numbers that they have as they are written."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional

from sf.config import ModelConfig
from sf.config.convolutions import notes_on_pictures, num_features
from sf.config.long_vectors import notes_on_vectors
from sf.nets.actor_critic import ActorCritic
from sf.nets.networks import ImageEncoder
from sf.spaces import EnvInfo
from sf.spaces.from_gymnasium import action_spec, observation_leaves

SHAPES = {"CHW": (4, 84, 84), "HWC": (84, 84, 4), "HW": (84, 84)}


def network(layout: str, architecture: Any = "convnet_atari", bf16: bool = False, **config: Any) -> ActorCritic:
    torch.manual_seed(0)
    info = EnvInfo(
        "test", 1, observation_leaves(spaces.Box(0, 255, SHAPES[layout], np.uint8)), action_spec(spaces.Discrete(6))
    )
    model = ModelConfig(
        encoder_conv_architecture=architecture, encoder_conv_mlp_layers=(32,), nonlinearity="relu", **config
    )
    return ActorCritic(info, model, bf16=bf16)


def pictures(layout: str, number: int = 8) -> Tensor:
    return torch.randint(
        0, 256, (number, *SHAPES[layout]), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )


def as_written(policy: ActorCritic, raw: Tensor, layout: str) -> Tensor:
    """Features by plain convolutions of contiguous float32, with the names that checkpoints have."""
    x = raw.to(torch.float32) / 255
    if layout == "HWC":
        x = x.permute(0, 3, 1, 2).contiguous()
    if layout == "HW":
        x = x[:, None]
    variables = policy.variables()
    for number, stride in enumerate((4, 2, 1)):
        name = f"encoder.image_encoders.0.convnet.convolutions.{number}"
        x = functional.relu(functional.conv2d(x, variables[f"{name}.weight"], variables[f"{name}.bias"], stride=stride))
    name = "encoder.image_encoders.0.mlp.layers.0"
    return functional.relu(functional.linear(x.flatten(1), variables[f"{name}.weight"], variables[f"{name}.bias"]))


@pytest.mark.parametrize("layout", SHAPES)
def test_features_are_those_of_convolutions_as_they_are_written(layout: str) -> None:
    policy, raw = network(layout), pictures(layout)
    with torch.no_grad():
        found = policy._encode(policy._read_inputs({"obs": raw}))
    torch.testing.assert_close(found, as_written(policy, raw, layout), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_the_channels_of_a_pixel_lie_side_by_side(layout: str) -> None:
    raw = pictures(layout)
    before = raw.clone()
    prepared = network(layout)._read_inputs({"obs": raw})["obs"]
    assert prepared.shape == (8, 4, 84, 84)
    assert prepared.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(raw, before), "the trajectories are not written over"


@pytest.mark.parametrize("architecture", ["convnet_atari", "resnet_impala"])
def test_acting_and_training_have_the_same_probabilities(architecture: str) -> None:
    policy, raw = network("CHW", architecture), pictures("CHW", 32)
    step = policy.act({"obs": raw})
    evaluation = policy.evaluate({"obs": raw}, step.action.clone())
    torch.testing.assert_close(evaluation.log_probs, step.info.log_probability, rtol=0, atol=1e-5)
    singles = torch.cat([policy.act({"obs": one[None]}, greedy=True).info.value_prediction for one in raw])
    torch.testing.assert_close(singles, policy.values({"obs": raw}), rtol=1e-4, atol=1e-5)


def test_gradients_are_those_of_convolutions_as_they_are_written() -> None:
    """`torch.autograd.grad` looks at the same parameters and takes no part in the flat gradient."""
    policy, raw = network("CHW"), pictures("CHW")
    variables = dict(policy.named_parameters())
    weights = {name: variables[name] for name in variables if "convolutions" in name}
    policy.flat_gradient.zero_()
    policy._encode(policy._read_inputs({"obs": raw})).square().mean().backward()  # type: ignore[no-untyped-call]
    found = {name: weight.grad.clone() for name, weight in weights.items() if weight.grad is not None}
    assert found.keys() == weights.keys()
    policy.flat_gradient.zero_()
    policy.variables = lambda: variables  # type: ignore[method-assign, assignment, return-value]
    as_written(policy, raw, "CHW").square().mean().backward()  # type: ignore[no-untyped-call]
    for name, weight in weights.items():
        assert weight.grad is not None
        torch.testing.assert_close(found[name], weight.grad, rtol=1e-3, atol=1e-7)


def test_bytes_are_exact_in_bfloat16() -> None:
    """As if they were divided in float32 and rounded."""
    policy = network("CHW", bf16=True)
    raw = torch.arange(256, dtype=torch.uint8).repeat(4 * 84 * 84 // 256 + 1)[: 4 * 84 * 84].view(1, 4, 84, 84)
    prepared = policy._read_inputs({"obs": raw})["obs"]
    assert prepared.dtype == torch.bfloat16
    assert torch.equal(prepared, (raw.to(torch.float32) / 255).to(torch.bfloat16))
    rough, exact = policy.values({"obs": pictures("CHW")}), network("CHW").values({"obs": pictures("CHW")})
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough, exact, rtol=0.05, atol=0.02)
    assert not torch.equal(rough, exact)


@pytest.mark.parametrize("architecture", ["convnet_simple", "convnet_atari", "resnet_impala", "convnet_microrts"])
@pytest.mark.parametrize("size", [(84, 84), (97, 131), (210, 160)])
def test_the_size_after_the_convolutions_is_known_without_them(architecture: Any, size: tuple[int, int]) -> None:
    encoder = ImageEncoder(
        (1, *size), ModelConfig(encoder_conv_architecture=architecture, encoder_conv_mlp_layers=(1,))
    )
    assert num_features(*size, architecture) == encoder.mlp.layers[0].in_features


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        ((84, 84, 4), ""),
        ((240, 320), ""),
        (
            (3, 400, 600),
            "400 x 600 make a network with 54 million weights, .* 651 million bytes .* one with 1.0 million",
        ),
        ((400, 600, 3), "400 x 600 make a network"),
        ((6000,), ""),
    ],
)
def test_pictures_that_make_a_large_network_are_told_of_before_the_run(shape: tuple[int, ...], told: str) -> None:
    info = EnvInfo("test", 1, observation_leaves(spaces.Box(0, 255, shape, np.uint8)), action_spec(spaces.Discrete(6)))
    assert re.search(told, " ".join(notes_on_pictures(info, ModelConfig())))
    assert bool(told) == bool(list(notes_on_pictures(info, ModelConfig())))
    assert list(notes_on_pictures(info, ModelConfig(encoder="module:Own"))) == []


@pytest.mark.parametrize(
    ("space", "told"),
    [
        (spaces.Discrete(300_000), ""),
        (spaces.Discrete(1_000_000), "'obs' has 1,000,000 categories.* 64 million weights, .* 768 million bytes"),
        (spaces.MultiDiscrete([300_000, 300_000]), "'obs' has 600,000 categories"),
        (spaces.Box(-1, 1, (700, 700, 1)), ""),
        (spaces.Box(-1, 1, (400_000,)), "'obs' has 400,000 numbers. The first layer has 26 million weights"),
        (
            spaces.Dict(a=spaces.Box(-1, 1, (150_000,)), b=spaces.Box(-1, 1, (200_000,))),
            "'b' has 200,000 numbers. The first layer has 22 million weights",
        ),
    ],
)
def test_vectors_that_make_a_large_network_are_told_of_before_the_run(space: Any, told: str) -> None:
    info = EnvInfo("test", 1, observation_leaves(space), action_spec(spaces.Discrete(6)))
    notes = list(notes_on_vectors(info, ModelConfig()))
    assert re.search(told, " ".join(notes))
    assert bool(told) == bool(notes)
    assert list(notes_on_vectors(info, ModelConfig(encoder="module:Own"))) == []
