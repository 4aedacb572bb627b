"""The fast forward passes against the one of the network."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from sf.config.written_out import layout
from sf.errors import InternalError
from sf.nets.fast.acting import (
    MOST_NOISE,
    NOISE_ROWS,
    FastAct,
    compare_with_numpy,
    most_rows,
    small_program,
)
from sf.nets.fast.numpy_network import ACTIVATIONS
from sf.plugins import register_model
from sf.policy import ActorCritic
from sf.run.resume_point import as_text
from sf.spaces import ActionColumn, ActionSpec, LeafSpec
from tests.helpers.networks import box, discrete, make_policy
from tests.nets.test_models import OneLayer

CHOICES = ActionSpec((ActionColumn(3), ActionColumn(2)))
MIXED = ActionSpec((ActionColumn(low=-1.0, high=1.0), ActionColumn(3), ActionColumn(low=0.0, high=2.0)))
SMALL: dict[str, Any] = {"encoder_mlp_layers": (8,), "encoder_conv_mlp_layers": (8,), "rnn_size": 6}
CASES: dict[str, tuple[ActionSpec, dict[str, Any]]] = {
    "choice": (discrete(3), {}),
    "tanh": (discrete(3), {"nonlinearity": "tanh", "normalize_input": False, "normalize_returns": False}),
    "choices": (CHOICES, {}),
    "box": (box(2), {}),
    "adaptive": (box(2), {"adaptive_stddev": True}),
    "mixed": (MIXED, {}),
    "separate": (discrete(2), {"actor_critic_share_weights": False}),
    "gru": (discrete(2), {"use_rnn": True, "rnn_num_layers": 2}),
    "lstm": (box(2), {"use_rnn": True, "rnn_type": "lstm", "actor_critic_share_weights": False}),
    "per key": (discrete(2), {"encoder_per_key": True}),
}
LEAVES = {
    "action_mask": LeafSpec((3,), "int8"),
    "camera": LeafSpec((40, 40, 3), "uint8"),
    "kind": LeafSpec((2,), "int64", (3, 4), (1, 0)),
    "place": LeafSpec((2, 2), "float32"),
}


def change_weights(network: ActorCritic) -> None:
    """In place; deviations stay positive and everything so small that rounding errors do."""
    network.flat[:] = 0.3 * torch.rand(len(network.flat), generator=torch.Generator().manual_seed(3)) + 0.1


def assert_same_steps(network: ActorCritic, act: Any, observations: dict[str, Tensor]) -> None:
    """Under the same random numbers, for these observations."""
    rows = len(next(iter(observations.values())))
    state = torch.rand(rows, network.state_size)
    noise = network.distribution.noise(NOISE_ROWS // max(1, rows) * rows, torch.Generator().manual_seed(7))
    with torch.inference_mode():
        expected = network.act_with(observations, state, noise[len(noise) - rows :])
    found = act(observations, state, torch.Generator().manual_seed(7))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("rows", [0, 1, 2, 37])
def test_acting_does_what_the_network_does_also_when_weights_change_in_place(name: str, rows: int) -> None:
    action, config = CASES[name]
    network = make_policy(action, **{**SMALL, **config})
    act = FastAct(network)
    change_weights(network)
    assert_same_steps(network, act, {"obs": torch.randn(rows, 4)})
    act.most_small_rows = 0  # only torch
    assert_same_steps(network, act, {"obs": torch.randn(rows, 4)})


WRITTEN_OUT: dict[str, tuple[ActionSpec, dict[str, Any], LeafSpec]] = {
    "scaled": (discrete(3), {"obs_subtract_mean": 0.5, "obs_scale": 3.0, "obs_clip": 0.4}, LeafSpec((4,), "float32")),
    "relu": (box(2), {"nonlinearity": "relu"}, LeafSpec((4,), "float64")),
    "bytes": (discrete(2), {"nonlinearity": "tanh", "normalize_input": False}, LeafSpec((7,), "uint8")),
    "matrix": (discrete(40), {}, LeafSpec((2, 3), "float32")),
    "separate": (box(3), {"adaptive_stddev": True, "actor_critic_share_weights": False}, LeafSpec((4,), "float32")),
    "number": (discrete(2), {}, LeafSpec((), "int8")),
    "no layers": (box(1), {"encoder_mlp_layers": ()}, LeafSpec((4,), "float32")),
}


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_layout_of_a_small_network_is_that_of_the_flat_vector(name: str) -> None:
    action, config, leaf = WRITTEN_OUT[name]
    network = make_policy(action, {"obs": leaf}, **{**SMALL, **config})
    expected = {key: tuple(variable.shape) for key, variable in network.variables().items()}
    assert list(layout(network.info, network.config).items()) == list(expected.items())


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_what_is_written_out_in_numpy_does_what_the_network_does(name: str) -> None:
    action, config, leaf = WRITTEN_OUT[name]
    network = make_policy(action, {"obs": leaf}, **{**SMALL, **config}).requires_grad_(False)
    program = small_program(network)
    assert program is not None
    change_weights(network)
    for rows in (0, 1, 9):
        observations = {"obs": (5 * torch.rand(rows, *leaf.shape)).to(getattr(torch, leaf.dtype))}
        noise = network.noise(observations, None)
        expected = network.act_with(observations, None, noise)
        untouched = observations["obs"].clone()
        found = program(noise, observations["obs"])
        torch.testing.assert_close(found, (expected.action, *expected.info[:3]))
        assert torch.equal(observations["obs"], untouched)


@pytest.mark.filterwarnings("error")
def test_weights_that_are_no_numbers_give_none_and_say_nothing_as_in_torch() -> None:
    network = make_policy(discrete(3))
    act = FastAct(network)
    assert act.most_small_rows > 0
    network.flat.zero_()  # with deviations of zero
    assert act({"obs": torch.zeros(2, 4)}, torch.zeros(2, 0)).info.log_probability.isnan().all()


@pytest.mark.parametrize("name", ["choices", "mixed", "gru", "per key"])
def test_what_is_not_written_out_is_left_to_torch(name: str) -> None:
    action, config = CASES[name]
    network = make_policy(action, **{**SMALL, **config})
    assert small_program(network) is None
    assert FastAct(network).most_small_rows == 0


def test_large_batches_are_left_to_torch() -> None:
    network = make_policy(discrete(3), encoder_mlp_layers=(256, 256))
    act, rows = FastAct(network), most_rows(network)
    del act._network
    act({"obs": torch.zeros(rows, 4)}, torch.zeros(rows, 0))
    with pytest.raises(AttributeError, match="_network"):
        act({"obs": torch.zeros(rows + 1, 4)}, torch.zeros(rows + 1, 0))


def test_a_formula_that_differs_is_given_up(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    network = make_policy(discrete(2))
    monkeypatch.setitem(ACTIVATIONS, network.config.nonlinearity, lambda x: x)
    act = FastAct(network)
    assert act.most_small_rows == 0
    assert "does not act in NumPy" in caplog.text


def test_learner_refuses_to_train_what_acts_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    network = make_policy(discrete(2))
    before, drawn = network.flat.clone(), torch.get_rng_state()
    compare_with_numpy(network)
    assert torch.equal(network.flat, before)
    assert torch.equal(torch.get_rng_state(), drawn)
    monkeypatch.setitem(ACTIVATIONS, network.config.nonlinearity, lambda x: x)
    with pytest.raises(InternalError, match="acts differently in NumPy"):
        compare_with_numpy(network)


def test_rounding_is_no_difference() -> None:
    for seed in range(12):
        torch.manual_seed(seed)
        network = make_policy(discrete(18), encoder_mlp_layers=(64, 64), nonlinearity="relu")
        act = FastAct(network)
        assert act.most_small_rows > 0


def test_acting_on_images_categories_and_masks() -> None:
    network = make_policy(discrete(3), LEAVES, **SMALL)
    act = FastAct(network)
    for rows in (0, 1, 6):
        mask = torch.tensor([1, 0, 1], dtype=torch.int8).repeat(rows, 1)
        camera = torch.randint(0, 256, (rows, 40, 40, 3), dtype=torch.uint8)
        kind = torch.tensor([[1, 3]]).repeat(rows, 1)
        leaves = {"action_mask": mask, "camera": camera, "kind": kind, "place": torch.randn(rows, 2, 2)}
        assert_same_steps(network, act, leaves)


def test_looking_for_the_fastest_way_leaves_weights_and_random_numbers_as_they_were() -> None:
    network = make_policy(discrete(2))
    before, state = network.flat.clone(), torch.get_rng_state()
    FastAct(network)
    assert torch.equal(network.flat, before)
    assert torch.equal(torch.get_rng_state(), state)


def test_every_batch_has_random_numbers_of_its_own() -> None:
    network = make_policy(box(1))
    act, generator = FastAct(network), torch.Generator().manual_seed(0)
    observations = {"obs": torch.zeros(400, 4)}
    drawn = [act(observations, torch.zeros(400, 0), generator).action for _ in range(5)]
    assert len(set(torch.cat(drawn).flatten().tolist())) == 2000


@pytest.mark.parametrize(
    "action", [discrete(20_000), ActionSpec((ActionColumn(9_000), ActionColumn(2), ActionColumn(low=0.0, high=1.0)))]
)
def test_fault_b17_for_many_choices_few_random_numbers_are_drawn_ahead(action: ActionSpec) -> None:
    act = FastAct(make_policy(action).requires_grad_(False))
    act({"obs": torch.zeros(2, 4)}, torch.zeros(2, 0), torch.Generator())
    (waiting,) = act._noise.values()
    assert sum(noise.numel() for noise in waiting) < MOST_NOISE


def test_random_numbers_drawn_ahead_belong_to_the_state() -> None:
    network, observations = make_policy(box(1)), {"obs": torch.zeros(3, 4)}
    first, second = FastAct(network.requires_grad_(False)), FastAct(network)
    generators = torch.Generator().manual_seed(0), torch.Generator()

    def draw(act: FastAct, generator: torch.Generator) -> list[Any]:
        return [act(observations, torch.zeros(3, 0), generator).action.tolist() for _ in range(NOISE_ROWS)]

    act_once = first(observations, torch.zeros(3, 0), generators[0])
    second.load_state(json.loads(json.dumps(first.state())), generators[1])
    generators[1].set_state(generators[0].get_state())
    assert act_once.action.shape == (3, 1)
    assert draw(first, generators[0]) == draw(second, generators[1])


def test_fault_d9_stop_between_two_drawings_leaves_no_trace() -> None:
    """What is used up is not in the state, and comes back behind the others."""
    network, generator = make_policy(box(1)).requires_grad_(False), torch.Generator().manual_seed(0)

    def draw(act: FastAct, num_rows: int) -> None:
        act({"obs": torch.zeros(num_rows, 4)}, torch.zeros(num_rows, 0), generator)

    first, second = FastAct(network), FastAct(network)
    for _ in range(NOISE_ROWS // 8):
        draw(first, 8)
    draw(first, 16)
    second.load_state(first.state(), generator)
    before = generator.get_state()
    draw(first, 8)
    generator.set_state(before)
    draw(second, 8)
    assert list(first.state()) != list(second.state())
    assert torch.equal(as_text([first.state()]), as_text([second.state()]))


def test_encoders_of_users_draw_what_the_network_draws() -> None:
    """Nothing is drawn ahead, so nothing of it belongs to the state."""
    register_model("plain", OneLayer)
    network = make_policy(discrete(2), encoder="plain")
    act, generator, other = FastAct(network), torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    for rows in (5, 0, 3):
        observations = {"obs": torch.randn(rows, 4)}
        found = act(observations, torch.zeros(rows, 0), generator)
        torch.testing.assert_close(found, network.act(observations, torch.zeros(rows, 0), other))
    assert act.state() == {}
