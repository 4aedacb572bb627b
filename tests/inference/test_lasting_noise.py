"""Noise that lasts: its numbers, and that the actions of a run have it, whatever acts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from sf.config import check
from sf.envs.registry import register_env
from sf.errors import ConfigError
from sf.nets.lasting_noise import LastingNoise
from sf.run.sizes import resolve
from sf.shared.arena import Array
from sf.shared.slots import SlotState
from tests.envs.test_tensors import Counting
from tests.helpers.configs import env_info
from tests.helpers.lab import make_config, make_lab, step_until
from tests.helpers.networks import box

CORRELATION, ENVS = 0.9, 64


class CountingTorques(Counting):
    """Its actions are numbers."""

    action_space = spaces.Box(-1.0, 1.0, (1,))


register_env("test/TensorCountingTorques", make_tensors=CountingTorques)


def innovations(noise: Array) -> Array:
    """What is new in each step of noise [T, ...]; if all is well, standard normal numbers, each for itself."""
    new: Array = (noise[1:] - CORRELATION * noise[:-1]) / (1 - CORRELATION**2) ** 0.5
    return new


def expect_standard_normal(numbers: Array) -> None:
    """Within four standard errors, independent in time."""
    count = numbers.size
    assert abs(numbers.mean()) < 4 / count**0.5
    assert abs(numbers.var() - 1) < 4 * (2 / count) ** 0.5
    assert abs((numbers[1:] * numbers[:-1]).mean()) < 4 / numbers[1:].size ** 0.5


def test_numbers_are_standard_normal_and_have_the_correlation() -> None:
    noise = LastingNoise(CORRELATION, rows=1000, size=2, entropy=[1])
    drawn = np.stack([noise.draw(group=0, is_step=True) for _ in range(50)])
    assert drawn.dtype == np.float32
    expect_standard_normal(innovations(drawn))
    for step in (0, 1, 49):
        assert abs(drawn[step].var() - 1) < 4 * (2 / drawn[step].size) ** 0.5, "from the first step on"


def test_a_request_for_values_takes_no_step_and_groups_have_streams_of_their_own() -> None:
    def drawn(*requests: tuple[int, bool]) -> list[Array]:
        noise = LastingNoise(CORRELATION, rows=3, size=1, entropy=[1])
        return [noise.draw(group, is_step) for group, is_step in requests]

    first, second = drawn((0, True), (0, True))
    begun, valued, other, after = drawn((0, True), (0, False), (1, True), (0, True))
    np.testing.assert_array_equal(begun, first)
    np.testing.assert_array_equal(valued, first)
    np.testing.assert_array_equal(after, second)
    assert not np.array_equal(other, first)


def test_a_copy_goes_on_with_the_same_numbers() -> None:
    noise = LastingNoise(CORRELATION, rows=3, size=2, entropy=[1])
    for group in (0, 4):
        noise.draw(group, is_step=True)
    copy = LastingNoise(CORRELATION, rows=3, size=2, entropy=[2])
    copy.load_state(json.loads(json.dumps(noise.state())))
    for _ in range(3):
        np.testing.assert_array_equal(copy.draw(4, is_step=True), noise.draw(4, is_step=True))


WAYS: dict[str, dict[str, Any]] = {
    "rollout worker": {"policy_workers_per_policy": 0},
    "inference worker": {},
    "inference worker, recurrent": {"use_rnn": True, "rnn_size": 8},
    "torch": {"encoder_mlp_layers": (600, 600)},
    "tensors": {"env": "test/TensorCountingTorques", "vectorization": "tensors"},
}


@pytest.mark.parametrize("way", WAYS)
def test_actions_of_a_run_have_it_and_their_log_probabilities_are_stored_as_computed(tmp_path: Path, way: str) -> None:
    """Over two trajectories of one group, which nothing learns from; noise is found from the policy that acted."""
    flags: dict[str, Any] = {"env": "Pendulum-v1"} | WAYS[way]
    sizes: dict[str, Any] = {
        "rollout": 40,
        "num_envs_per_worker": ENVS,
        "worker_num_splits": 1,
        "batch_size": 40 * ENVS,
        "async_rl": True,
    }
    lab = make_lab(tmp_path, noise_correlation=CORRELATION, **sizes, **flags)
    slots, (learner, *others) = lab.slots, lab.build_all()
    step_until(others, lambda: slots.state(0) is slots.state(1) is SlotState.FULL)
    rooms = {"observations/obs": slots.observations["obs"], "actions": slots.actions, "log_probs": slots.log_probs}
    if way == "tensors":
        rooms = {name: others[0]._fields[name].numpy() for name in rooms}
    observations, actions, log_probs = (torch.from_numpy(room[:2].copy()) for room in rooms.values())
    policy: Any = learner.update.policy
    noise, memory = [], torch.zeros(ENVS, policy.state_size)
    with torch.no_grad():
        for slot, t in np.ndindex(2, 40):
            params, _, memory = policy.forward({"obs": observations[slot, t]}, memory)
            mean, log_std = policy.distribution.moments(params)
            noise.append(((actions[slot, t] - mean) / log_std.exp()).numpy())
            right, _ = policy.distribution.evaluate(params, actions[slot, t])
            torch.testing.assert_close(log_probs[slot, t], right, rtol=1e-4, atol=1e-4)
    expect_standard_normal(new := innovations(np.stack(noise)))
    between = new[39]
    assert abs(between.var() - 1) < 4 * (2 / between.size) ** 0.5, "also from one trajectory to the next"


def test_only_numbers_have_noise() -> None:
    info = replace(env_info(), action=box(2))
    check(resolve(make_config(noise_correlation=0.5), info, cores=2), info)
    config = resolve(make_config(noise_correlation=0.5), env_info(), cores=2)
    with pytest.raises(ConfigError, match=r"noise_correlation=0\.5 needs actions that are numbers, a Box"):
        check(config, env_info())
