"""The contract of `Policy`, row by row: constructor, order of work, seeds, state, validation, update."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, Normal

from sf.policy import BoundedTensorSpec, Policy, PolicyStep, RandomPolicy, TensorSpec, TimeStep, time_step_spec
from sf.policy.nests import Nest, leaves
from tests.helpers.policies import FLOAT, OBSERVATION, Constant, Drawn, Remembering, cases, steps

# -------------------------------------------------------------------------------------------------- the constructor


@pytest.mark.parametrize("method", ["action", "distribution", "get_initial_state", "update"])
def test_b1_a_class_that_overrides_a_public_method_cannot_be_built(method: str) -> None:
    kind = type("Own", (Constant,), {method: lambda *_: None})
    with pytest.raises(ValueError, match=f"Own overrides {method}, which checks and clips for all policies"):
        kind(torch.zeros(3), FLOAT)


def test_b2_time_step_spec_must_be_a_time_step() -> None:
    with pytest.raises(ValueError, match="time_step_spec is TensorSpec, expected a TimeStep of specs"):
        RandomPolicy(OBSERVATION, FLOAT)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="time_step_spec holds Tensor, expected specs only"):
        RandomPolicy(time_step_spec(OBSERVATION)._replace(reward=torch.zeros(3)), FLOAT)
    with pytest.raises(ValueError, match="time_step_spec holds int, int, int, int, expected specs only"):
        RandomPolicy(TimeStep(0, 0, 0, 0), FLOAT)


def test_b3_defaults() -> None:
    parameters = inspect.signature(Policy.__init__).parameters
    assert {
        name: p.default for name, p in parameters.items() if name not in ("self", "time_step_spec", "action_spec")
    } == {
        "policy_state_spec": (),
        "info_spec": (),
        "clip": True,
        "emit_log_probability": False,
        "automatic_state_reset": True,
        "observation_and_action_constraint_splitter": None,
        "validate_args": True,
        "name": None,
    }
    assert parameters["action_spec"].default is parameters["time_step_spec"].default is inspect.Parameter.empty
    assert Constant((), ()).name == "Constant"
    assert Constant((), (), name="mine").name == "mine"


def test_b4_a_forgotten_constructor_is_named() -> None:
    class Forgetful(Policy):
        def __init__(self) -> None:
            pass

    with pytest.raises(RuntimeError, match=r"The constructor of Forgetful did not call super\(\).__init__"):
        Forgetful().action(steps())


# --------------------------------------------------------------------------------------------- action, distribution


def logged(name: str, method: Callable[..., Any], seen: list[str]) -> Callable[..., Any]:
    def spy(*arguments: Any) -> Any:
        seen.append(name)
        return method(*arguments)

    return spy


def test_b5_order_of_work_inside_action(monkeypatch: pytest.MonkeyPatch) -> None:
    order = [
        "_drop_extra_keys",
        "_check_input",
        "_reset_state",
        "_action",
        "_check_action_structure",
        "_clip",
        "_check_step_structure",
        "_check_action_tensors",
    ]
    seen: list[str] = []
    policy = Remembering()
    policy._has_bounds = True
    for name in order:
        monkeypatch.setattr(policy, name, logged(name, getattr(policy, name), seen))
    policy.action(steps(), torch.ones(3))
    assert seen == order


def test_b6_distribution_draws_nothing_and_clips_nothing() -> None:
    spec = BoundedTensorSpec((), torch.float32, None, 0.0, 1.0)
    policy = Drawn({"a": Normal(torch.full((3,), 5.0), 1.0), "b": Normal(torch.zeros(3), 1.0)}, {"a": spec, "b": spec})
    before = torch.get_rng_state()
    step = policy.distribution(steps())
    assert torch.equal(before, torch.get_rng_state())
    assert all(isinstance(leaf, Distribution) for leaf in leaves(step.action))
    assert step.action["a"].mean.tolist() == [5.0] * 3
    with pytest.raises(ValueError, match=r"observation is a dict with the keys \['x'\], expected one"):
        policy.distribution(TimeStep.first({"x": torch.zeros(3, 2)}, 3))
    with pytest.raises(TypeError, match="Drawn has a distribution that is Tensor"):
        Drawn(torch.zeros(3), FLOAT).distribution(steps())


def test_b7_the_same_seed_draws_the_same_action() -> None:
    policy = Drawn(Independent(Normal(torch.zeros(3, 64), 1.0), 1), TensorSpec((64,), torch.float32))
    first, again, other = (policy.action(steps(), seed=seed).action for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert torch.equal(first, policy.action(steps(), seed=np.int64(3)).action)  # type: ignore[arg-type]
    assert not torch.equal(first, other)
    before = torch.get_rng_state()
    policy.action(steps(), seed=3)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(5)
    from_global = policy.action(steps()).action
    assert not torch.equal(before, torch.get_rng_state())
    torch.manual_seed(5)
    assert torch.equal(from_global, policy.action(steps()).action)
    generators = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    assert torch.equal(*(policy.action(steps(), seed=generator).action for generator in generators))


# ------------------------------------------------------------------------------------------------------------- state


@pytest.mark.parametrize(("inputs", "expected"), cases("B13"))
def test_b13_state_is_reset_where_an_episode_begins(inputs: Any, expected: Any) -> None:
    policy = Remembering(inputs["initial_state"], automatic_state_reset=inputs["automatic_state_reset"])
    time_step, state = steps(3, *inputs["step_types"]), torch.tensor(inputs["state"], dtype=torch.float32)
    assert policy.action(time_step, state).action.tolist() == expected["state_seen"]
    assert policy.distribution(time_step, state).action.mode.tolist() == expected["state_seen"]


def test_b13_initial_state_need_not_be_zero_and_the_first_of_several_steps_decides() -> None:
    policy = Remembering(7.0)
    assert policy.action(steps(3, 0, 1, 2), torch.ones(3)).action.tolist() == [7.0, 1.0, 1.0]
    types = torch.tensor([[0, 1], [1, 0]], dtype=torch.int32)
    time_step = TimeStep(types, torch.zeros(2, 2), torch.ones(2, 2), torch.zeros(2, 2, 2))
    assert policy.action(time_step, torch.ones(2)).action.tolist() == [[7.0, 7.0], [1.0, 1.0]]
    single = TimeStep.first(torch.zeros(2))
    assert policy.action(single, torch.tensor(1.0)).action.item() == 7.0


@pytest.mark.parametrize(("inputs", "expected"), cases("B14"))
def test_b14_initial_state_has_the_structure_of_its_spec(inputs: Any, expected: Any) -> None:
    spec = {
        name: TensorSpec(tuple(leaf["shape"]), getattr(torch, leaf["dtype"]))
        for name, leaf in inputs["policy_state_spec"].items()
    }
    state = Constant((), (), policy_state_spec=spec).get_initial_state(inputs["batch_size"])
    assert state.keys() == spec.keys()
    for name, leaf in state.items():
        assert list(leaf.shape) == expected[name]["shape"]
        assert leaf.dtype == getattr(torch, expected[name]["dtype"])
        assert not leaf.any()


def test_b14_batch_size_must_be_positive() -> None:
    with pytest.raises(ValueError, match="batch_size=0, expected None or an integer above 0"):
        Remembering().get_initial_state(0)


def test_a_policy_with_memory_needs_its_state() -> None:
    with pytest.raises(
        ValueError, match=r"policy_state is missing: Remembering is recurrent\. Begin with get_initial_state"
    ):
        Remembering().action(steps())
    with pytest.raises(ValueError, match=r"policy_state has the batch dimensions \[2\], but the time step has \[3\]"):
        Remembering().action(steps(), torch.zeros(2))


# -------------------------------------------------------------------------------------------------------- validation


def test_b15_extra_keys_are_dropped_and_missing_ones_refused() -> None:
    policy = Constant(torch.zeros(3), FLOAT, {"inp": OBSERVATION})
    observation = {"inp": torch.zeros(3, 2), "extra": torch.zeros(3)}
    policy.action(TimeStep.first(observation, 3))
    with pytest.raises(ValueError, match=r"observation is a dict with the keys \['extra'\], expected .*\['inp'\]"):
        policy.action(TimeStep.first({"extra": torch.zeros(3)}, 3))


def test_b16_wrong_dtype_structure_and_shape_of_the_action() -> None:
    spec = BoundedTensorSpec((), torch.int32, None, 0, 3)
    wrong, right = torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int32)
    with pytest.raises(TypeError, match="The dtype of action is int64, which does not match its spec"):
        Constant(wrong, spec, clip=False).action(steps())
    with pytest.raises(TypeError, match=r"The dtype of action\[1\] is int64, which does not match its spec"):
        Constant([right, wrong], [spec, spec], clip=False).action(steps())
    with pytest.raises(ValueError, match=r"action\[1\] has the batch dimensions \[2, 3\], expected \[3\]"):
        Constant([right, right.repeat(2, 1)], [spec, spec], clip=False).action(steps())
    with pytest.raises(ValueError, match=r"action has shape \[3\], expected \[2\]"):
        Constant(right, BoundedTensorSpec((2,), torch.int32), clip=False).action(steps())
    with pytest.raises(ValueError, match=r"action is a tuple of 1, expected one "):
        Constant((right,), spec).action(steps())


@pytest.mark.parametrize("shape", [(), (2,), (3, 1), (3, 2), (5, 7)])
def test_b16_wrong_batch_dimensions(shape: tuple[int, ...]) -> None:
    """Also where each shape fits a spec, because a scalar fits any."""
    spec = BoundedTensorSpec((), torch.int32, None, 0, 3)
    told = rf"action has the batch dimensions {re.escape(str(list(shape)))}, but the time step has \[3\]"
    with pytest.raises(ValueError, match=told):
        Constant(torch.zeros(shape, dtype=torch.int32), spec).action(steps())
    assert Constant(torch.zeros(shape, dtype=torch.int32), spec, validate_args=False).action(steps())
    if shape[:1] != (3,):
        with pytest.raises(ValueError, match=r"a distribution of shape .*, but the time step has the batch dim"):
            Drawn(Categorical(torch.ones(*shape, 4)), spec).distribution(steps())


def test_b16_wrong_observations_are_named_by_their_path() -> None:
    policy = Constant(torch.zeros(3), FLOAT, {"a": {"b": OBSERVATION}})
    with pytest.raises(TypeError, match=r"The dtype of time_step\['observation'\]\['a'\]\['b'\] is float64"):
        policy.action(TimeStep.first({"a": {"b": torch.zeros(3, 2, dtype=torch.float64)}}, 3))
    with pytest.raises(
        ValueError, match=r"time_step\['observation'\]\['a'\]\['b'\] has shape \[3, 4\], expected \[2\]"
    ):
        policy.action(TimeStep.first({"a": {"b": torch.zeros(3, 4)}}, 3))
    with pytest.raises(TypeError, match=r"is ndarray, expected a torch\.Tensor"):
        policy.action(TimeStep.first({"a": {"b": np.zeros((3, 2), np.float32)}}, 3))
    with pytest.raises(ValueError, match="the batch is empty"):
        policy.action(TimeStep.first({"a": {"b": torch.zeros(0, 2)}}, 0))
    with pytest.raises(ValueError, match="time_step is dict, expected a TimeStep"):
        policy.action({})  # type: ignore[arg-type]


def test_b17_without_validation_nothing_is_checked() -> None:
    class Echo(Policy):
        def _action(self, time_step: TimeStep, policy_state: Nest, seed: Any) -> PolicyStep:
            return PolicyStep(time_step.observation)

    policy = Echo(time_step_spec(OBSERVATION), {"blah": ()}, validate_args=False)
    ones = tuple(torch.ones(1) for _ in range(4))
    assert policy.action(TimeStep((), (), (), ones)).action == ones


# ------------------------------------------------------------------------------------------------------------ update


class Holding(Policy):
    """Has variables and nothing else."""

    def __init__(self, value: float, names: tuple[str, ...] = ("one", "two"), **buffers: Tensor) -> None:
        super().__init__(time_step_spec(OBSERVATION), FLOAT)
        for index, name in enumerate(names):
            layer = nn.Linear(2, index + 1)
            nn.init.constant_(layer.weight, value)
            nn.init.constant_(layer.bias, value)
            self.add_module(name, layer)
        self.norm = nn.BatchNorm1d(2, affine=False)
        assert self.norm.running_mean is not None
        assert self.norm.running_var is not None
        self.norm.running_mean.fill_(value)
        self.norm.running_var.fill_(value)
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)


def values(policy: Holding) -> tuple[set[float], set[float]]:
    """Values of parameters and of floating buffers."""
    parameters = {x.item() for p in policy.parameters() for x in p.flatten()}
    buffers = {x.item() for b in policy.buffers() if b.is_floating_point() for x in b.flatten()}
    return parameters, buffers


@pytest.mark.parametrize(("inputs", "expected"), cases("B19") + cases("B21"))
def test_b19_b21_update_moves_towards_the_source(inputs: Any, expected: Any) -> None:
    policy = Holding(inputs["target"])
    policy.update(Holding(inputs["source"]), inputs["tau"], inputs["tau_non_trainable"])
    assert values(policy) == ({expected["parameters"]}, {expected["buffers"]})


def test_b19_tau_1_copies_bit_by_bit_and_leaves_no_graph() -> None:
    source, policy = Holding(0.1), Holding(3e7)
    policy.update(source)
    assert all(torch.equal(a, b) for a, b in zip(policy.variables().values(), source.variables().values(), strict=True))
    assert all(p.grad_fn is None and p.requires_grad for p in policy.parameters())


@pytest.mark.parametrize("taus", [(-0.1, None), (1.1, None), (0.5, -0.1), (0.5, 1.1), (float("nan"), None)])
def test_b20_tau_outside_of_0_to_1(taus: tuple[float, float | None]) -> None:
    with pytest.raises(ValueError, match=r"tau(_non_trainable)?=.*, expected a number from 0 to 1"):
        Holding(0.0).update(Holding(1.0), *taus)


def test_b20_other_errors_and_integer_buffers() -> None:
    policy = Holding(0.0)
    with pytest.raises(ValueError, match="Holding has 4 trainable variables, but Holding has 2"):
        policy.update(Holding(1.0, ("one",)))
    with pytest.raises(ValueError, match="non-trainable variables"):
        policy.update(Holding(1.0, extra=torch.ones(1)))
    with pytest.raises(ValueError, match=r"has shape \[1, 2\], but its counterpart two.weight has \[2, 2\]"):
        Holding(0.0, ("a",)).update(_without(Holding(1.0), "one"))
    assert values(policy) == ({0.0}, {0.0})
    empty = Constant((), ())
    empty.update(Constant((), ()), 0.5)
    counting = Holding(0.0, count=torch.tensor(1))
    for tau, expected in ((0.0, 1), (0.3, 5)):
        counting.update(Holding(1.0, count=torch.tensor(5)), 1.0, tau)
        assert counting.variables()["count"].item() == expected


def _without(policy: Holding, name: str) -> Holding:
    delattr(policy, name)
    return policy


def test_b22_variables_can_be_paired_by_name() -> None:
    def two(first: str, second: str, value: float) -> Policy:
        policy = Constant((), ())
        for name in (first, second):
            policy.register_parameter(name, nn.Parameter(torch.full((2,), value if name == "a" else -value)))
        return policy

    for by_name, expected in ((True, [1.0, -1.0]), (False, [-1.0, 1.0])):
        policy = two("a", "b", 0.0)
        policy.update(two("b", "a", 1.0), sort_variables_by_name=by_name)
        assert [p[0].item() for p in policy.parameters()] == expected


def test_b32_variables_are_parameters_and_then_buffers_in_the_order_of_registration() -> None:
    policy = Holding(0.0)
    assert list(policy.variables()) == [
        "one.weight",
        "one.bias",
        "two.weight",
        "two.bias",
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
    ]
    assert [v.requires_grad for v in policy.variables().values()] == [True] * 4 + [False] * 3


def test_b25_scalar_action_and_memory_without_a_batch() -> None:
    """Nothing has a dimension, neither the element nor the batch."""
    spec = BoundedTensorSpec((), torch.int32, None, 0, 3)
    step = RandomPolicy(time_step_spec(OBSERVATION), spec).action(TimeStep.first(torch.zeros(2)))
    assert step.action.shape == ()
    assert 0 <= step.action <= 3
    assert spec.zeros().shape == ()
