"""Running moments against NumPy, and when they reach the policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sf.config import ModelConfig
from sf.learner import moments as moments_module
from sf.learner.statistics import RunningMoments, Statistics
from sf.nets.fast.numpy_network import SmallNetwork
from sf.policy import ActorCritic
from sf.spaces import ActionSpec, EnvInfo, LeafSpec

CPU = torch.device("cpu")


def make_policy(**config: Any) -> ActorCritic:
    leaves = {
        "obs": LeafSpec((3,), "float32"),
        "image": LeafSpec((3, 40, 40), "uint8"),
        "small": LeafSpec((2, 2), "int8"),
    }
    action = ActionSpec.discrete(2)
    return ActorCritic(EnvInfo("test", 1, leaves, action), ModelConfig(encoder_conv_mlp_layers=(8,), **config))


def merged(mean: Any, variance: Any, count: float, batch: Any) -> tuple[Any, Any, float]:
    """The parallel formula of Chan et al. as it stands in the paper."""
    n = len(batch)
    delta = batch.mean(0) - mean
    total = count + n
    squares = variance * count + batch.var(0) * n + delta**2 * count * n / total
    return mean + delta * n / total, squares / total, total


@pytest.mark.parametrize("shape", [(), (5,), (2, 3)])
@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("initial_count", [0.0, 1e-4])
def test_c28_stream_against_numpy(shape: tuple[int, ...], offset: float, initial_count: float) -> None:
    rng = np.random.default_rng(0)
    moments = RunningMoments(shape, CPU, initial_count)
    mean: Any = 0.0
    variance: Any = 1.0
    count = initial_count
    for n in (1, 7, 100, 3):
        batch = rng.normal(offset, 2.0, (n, *shape)).astype(np.float32)
        moments.update(torch.from_numpy(batch))
        mean, variance, count = merged(mean, variance, count, batch.astype(np.float64))
    np.testing.assert_allclose(moments.mean.numpy(), mean, rtol=1e-9)
    np.testing.assert_allclose(moments.variance.numpy(), variance, rtol=1e-6)
    assert moments.count.item() == pytest.approx(111 + initial_count)


def test_first_data_replace_what_the_statistics_begin_with() -> None:
    """A pseudo-sample of weight 1e-4 and mean 0 makes 2,000 numbers around a million look 220 times as wide."""
    samples = torch.from_numpy(np.random.default_rng(0).normal(1e6, 1.0, (2000, 1)))
    first, with_count = RunningMoments((1,), CPU), RunningMoments((1,), CPU, 1e-4)
    nothing = RunningMoments((1,), CPU)
    nothing.update(samples[:0])
    assert (nothing.count.item(), nothing.mean.item()) == (0.0, 0.0)
    for moments in (first, with_count, nothing):
        moments.update(samples)
    assert first.mean.item() == pytest.approx(samples.mean().item(), rel=1e-12)
    assert first.variance.item() == nothing.variance.item() == pytest.approx(samples.var(correction=0).item())
    assert with_count.variance.sqrt().item() == pytest.approx(220, rel=0.05)


@pytest.mark.parametrize("dtype", ["float64", "int64", "int32"])
def test_numbers_that_float32_cannot_tell_apart_are_shifted_first(dtype: str) -> None:
    """Seconds since 1970, one apart: float32 has every 128th of them."""
    policy = ActorCritic(EnvInfo("test", 1, {"obs": LeafSpec((2,), dtype)}, ActionSpec.discrete(2)), ModelConfig())
    seconds = np.stack([1_764_000_000 + np.arange(200), np.arange(200)], 1).astype(dtype)
    moments = RunningMoments((2,), CPU)
    moments.update(torch.from_numpy(seconds))
    policy.observation_normalizers["obs"].set_moments(moments.mean, moments.variance)
    expected = np.arange(200) - 99.5
    for reader in (policy.inputs, _as_written_out(policy)):
        read = reader({"obs": torch.from_numpy(seconds)})["obs"]
        assert read.dtype == torch.float32
        for column in (0, 1):
            np.testing.assert_allclose(read[:, column].numpy(), expected / np.std(expected), atol=1e-4)


def _as_written_out(policy: ActorCritic) -> Any:
    """How `sf.nets.fast.numpy_network` reads observations."""
    (leaf,) = policy.info.observations.values()
    network = SmallNetwork(policy.info, policy.config, policy.flat.numpy())
    assert leaf.shape == (2,)
    return lambda observations: {"obs": torch.from_numpy(network._read(observations["obs"].numpy()))}


@pytest.mark.parametrize(("scale", "expected"), [(1.0, 0.01), (1e-6, 1.0)])
def test_scale_of_observations_is_the_unit_of_the_epsilon(scale: float, expected: float) -> None:
    """Numbers of a millionth are below the epsilon of the deviation, 1e-4, unless they are measured in millionths."""
    info = EnvInfo("test", 1, {"obs": LeafSpec((2,), "float32")}, ActionSpec.discrete(2))
    policy = ActorCritic(info, ModelConfig(obs_scale=scale, obs_subtract_mean=7.0))
    samples = 1e-6 * torch.randn(500, 2)
    Statistics(policy).fold_in({"obs": samples}, torch.randn(500))
    for reader in (policy.inputs, _as_written_out(policy)):
        assert reader({"obs": samples})["obs"].std().item() == pytest.approx(expected, rel=0.1)


def test_c28_stream_does_not_depend_on_its_division(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = torch.randn(64, 5)
    whole, pieces = RunningMoments((5,), CPU), RunningMoments((5,), CPU)
    whole.update(samples)
    monkeypatch.setattr(moments_module, "PIECE_ELEMENTS", 35)
    pieces.update(samples)
    torch.testing.assert_close(whole.mean, pieces.mean)
    torch.testing.assert_close(whole.variance, pieces.variance)


def test_statistics_reach_the_normalizers_of_the_policy() -> None:
    policy = make_policy()
    stats = Statistics(policy)
    obs, small, returns = 3 + torch.randn(500, 3), torch.randint(-9, 9, (500, 2, 2), dtype=torch.int8), torch.randn(500)
    assert policy.observation_normalizers.keys() == {"obs", "small"}
    stats.fold_in({"obs": obs, "small": small, "image": torch.zeros(500, 3, 40, 40, dtype=torch.uint8)}, returns)
    for name, samples in (("obs", obs), ("small", small.float())):
        normalizer = policy.observation_normalizers[name]
        torch.testing.assert_close(normalizer.mean, samples.mean(0), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(normalizer.std, samples.std(0, correction=0), rtol=1e-3, atol=1e-4)
    assert policy.return_normalizer is not None
    assert policy.return_normalizer.std.item() == pytest.approx(returns.std(correction=0).item(), rel=1e-3)


def test_switched_off_statistics_do_not_exist() -> None:
    stats = Statistics(make_policy(normalize_input=False, normalize_returns=False))
    assert stats.state_dict() == {}


def test_c28_moments_do_not_wait_for_the_device() -> None:
    """Tensors without numbers: who looks at one fails."""
    samples = torch.empty(3 * moments_module.PIECE_ELEMENTS, 2, device="meta")
    assert moments_module.moments_of(samples).mean.shape == (2,)
