"""Acting with small networks in C: the numbers of NumPy, for each kind of network and several policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sf.config.written_out import size_of
from sf.inference import small_actors
from sf.inference.small_actors import NumpyActor, SmallActor, small_actor
from sf.inference.small_worker import SmallInference
from sf.machine.compiled import NoCompilerError
from sf.nets.fast.native_acting import NativeActing
from sf.nets.fast.numpy_network import SmallNetwork, noise_source
from sf.nets.fast.small_networks import functions
from sf.shared.arena import Arena
from sf.shared.slot_fields import NO_POLICY, slot_memory
from sf.shared.slots import Slots
from sf.shared.topology import Topology
from sf.spaces import ActionSpec, EnvInfo, LeafSpec
from tests.helpers.lab import make_config, make_lab
from tests.helpers.networks import box, discrete

VECTOR = LeafSpec((5,), "float32")
KINDS: dict[str, tuple[LeafSpec, ActionSpec, dict[str, Any]]] = {
    "choices": (VECTOR, discrete(3), {}),
    "numbers": (VECTOR, box(2), {}),
    "numbers with deviations of the state": (VECTOR, box(3), {"adaptive_stddev": True}),
    "float64": (LeafSpec((7,), "float64"), box(2), {}),
    "float64 as it is": (LeafSpec((7,), "float64"), discrete(2), {"normalize_input": False}),
    "as it is": (VECTOR, discrete(2), {"normalize_input": False, "normalize_returns": False}),
    "one network": (VECTOR, discrete(4), {"actor_critic_share_weights": True}),
    "two networks": (VECTOR, box(1), {"actor_critic_share_weights": False}),
    "one wide layer": (VECTOR, discrete(40), {"encoder_mlp_layers": (200,), "nonlinearity": "relu"}),
    "three layers": (LeafSpec((2, 3), "float32"), discrete(2), {"encoder_mlp_layers": (33, 7, 20)}),
    "elu": (VECTOR, box(2), {"nonlinearity": "elu"}),
}
ENVS, STEPS = 11, 3


class Pair:
    """The same networks in C and in NumPy, each with slots of its own."""

    def __init__(self, leaf: LeafSpec, action: ActionSpec, num_policies: int, flags: dict[str, Any]) -> None:
        info = EnvInfo("Any", 1, {"obs": leaf}, action)
        model, random = make_config(**flags).model, np.random.default_rng(3)
        topology = Topology(
            num_workers=1, groups_per_worker=1, envs_per_group=ENVS, agents_per_env=1, rollout=STEPS,
            slots_per_group=2, num_policies=num_policies, inference_per_policy=1,
        )  # fmt: skip
        self.weights = random.random((num_policies, size_of(info, model)), np.float32)
        versions = 10 + np.arange(num_policies)
        self.noise = noise_source(info, random)
        observations = random.standard_normal((2, STEPS + 1, ENVS, *leaf.shape))
        policies = random.integers(NO_POLICY, num_policies, (2, STEPS, ENVS)) if num_policies > 1 else 0
        self.slots = [Slots(topology, Arena(slot_memory(topology, info))) for _ in range(2)]
        for slots in self.slots:
            slots.observations["obs"][:] = observations
            slots.policy_id[:] = policies
        networks = [SmallNetwork(info, model, own) for own in self.weights]
        self.actors: list[SmallActor] = [
            NativeActing(info, model, self.weights, versions, self.slots[0]),
            NumpyActor(networks, versions, self.slots[1]),
        ]

    def act(self, slot: int, step: int) -> list[list[int]]:
        noise = self.noise(ENVS)
        return [actor(slot, step, noise).tolist() for actor in self.actors]


@pytest.fixture(autouse=True)
def with_compiler() -> None:
    try:
        functions()
    except NoCompilerError as error:
        pytest.skip(str(error))
    return


@pytest.mark.parametrize("num_policies", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a10_numbers_are_those_of_numpy(kind: str, num_policies: int) -> None:
    leaf, action, flags = KINDS[kind]
    pair = Pair(leaf, action, num_policies, flags)
    for slot, step in ((0, 0), (1, 2), (1, 1), (0, STEPS)):
        in_c, in_numpy = pair.act(slot, step)
        assert in_c == in_numpy
        assert sum(in_c) == ENVS or num_policies > 1
    for name in ("actions", "log_probs", "values", "policy_version"):
        of_c, of_numpy = (getattr(slots, name) for slots in pair.slots)
        scale = np.nanmax(np.abs(of_numpy))
        np.testing.assert_allclose(of_c, of_numpy, rtol=1e-5, atol=1e-6 + 2e-5 * scale, err_msg=name)


def test_weights_that_change_count_at_once_and_nan_leads_to_a_choice() -> None:
    pair = Pair(VECTOR, discrete(3), 2, {})
    pair.act(0, 0)
    before = pair.slots[0].values[0, 0].copy()
    pair.weights[0] *= 0.5
    pair.act(0, 0)
    own = pair.slots[0].policy_id[0, 0] == 0
    assert (pair.slots[0].values[0, 0][own] != before[own]).all()
    np.testing.assert_array_equal(pair.slots[0].values[0, 0][~own], before[~own])
    pair.weights[:] = np.nan
    pair.act(0, 1)
    acted = pair.slots[0].policy_id[0, 1] != NO_POLICY
    assert set(pair.slots[0].actions[0, 1][acted].tolist()) <= {0, 1, 2}
    assert np.isnan(pair.slots[0].log_probs[0, 1][acted]).all()


def test_actor_that_differs_in_c_acts_in_numpy_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    inference = make_lab(tmp_path / "a", policy_workers_per_policy=0).build("rollout-0").companions[0]
    assert isinstance(inference, SmallInference)
    assert isinstance(inference.act, NativeActing)
    monkeypatch.setattr(small_actors.NumpyActor, "_act", lambda *_: None)
    inference = make_lab(tmp_path, policy_workers_per_policy=0).build("rollout-0").companions[0]
    assert isinstance(inference.act, NumpyActor)
    assert "act in NumPy and not in C, where" in capsys.readouterr().out


@pytest.mark.parametrize(
    "flags",
    [{"native_update": False}, {"exploration": "epsilon_greedy"}, {"encoder_mlp_layers": (300,)}],
    ids=["switched off", "values of actions", "too wide"],
)
def test_what_c_has_not_acts_in_numpy(flags: dict[str, Any]) -> None:
    config = make_config(**flags)
    info = EnvInfo("Any", 1, {"obs": VECTOR}, discrete(2))
    topology = Topology(
        num_workers=1, groups_per_worker=1, envs_per_group=2, agents_per_env=1, rollout=1, slots_per_group=1,
        num_policies=1, inference_per_policy=1,
    )  # fmt: skip
    weights = np.zeros((1, size_of(info, config.model)), np.float32)
    slots = Slots(topology, Arena(slot_memory(topology, info)))
    assert isinstance(small_actor(info, config, weights, np.zeros(1, np.int64), slots), NumpyActor)
