"""Scaling in the policy: pixels, statistics of observations, and values in units of the reward."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sf.config import Config, RunConfig
from sf.config.presets import with_preset
from sf.nets.normalizer import Normalizer
from sf.policy import ActorCritic
from sf.spaces import EnvInfo, LeafSpec
from tests.helpers.networks import discrete, make_policy


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
