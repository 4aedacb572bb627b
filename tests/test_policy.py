"""The contract of `Policy`, row by row."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, Normal

from sf.policy import (
    BoundedTensorSpec,
    GreedyPolicy,
    Policy,
    PolicyInfo,
    PolicyStep,
    RandomPolicy,
    StepType,
    TensorSpec,
    TimeStep,
    Trajectory,
    spec_of_action_space,
    spec_of_space,
    time_step_spec,
    to_arrays,
    to_tensors,
)
from sf.policy.fitting import Fit
from sf.policy.leaf_distributions import Fixed
from sf.policy.nests import Nest, check_structure, leaves, map_leaves
from sf.policy.specs import check_tensors

ORACLES: dict[str, Any] = json.loads((Path(__file__).parent / "oracles.json").read_text())
OBSERVATION = TensorSpec((2,), torch.float32)
FLOAT = BoundedTensorSpec((), torch.float32, None, -10.0, 10.0)
CHOICE = BoundedTensorSpec((), torch.int64, None, 0, 4)


def cases(row: str) -> list[Any]:
    return [
        pytest.param(case["inputs"], case["expected"], id=f"{row}-{i}") for i, case in enumerate(ORACLES[row]["cases"])
    ]


def steps(num: int = 3, *step_types: int) -> TimeStep:
    """A batch of time steps; all in the middle of an episode unless types are given."""
    first = TimeStep.first(torch.zeros(num, 2), num)
    return first._replace(step_type=torch.tensor(step_types or (StepType.MID,) * num, dtype=torch.int32))


class Constant(Policy):
    """Gives back what it was made with."""

    def __init__(self, action: Nest, action_spec: Nest, observation: Nest = OBSERVATION, **options: Any) -> None:
        super().__init__(time_step_spec(observation), action_spec, **options)
        self.constant = action

    def _action(self, time_step: TimeStep, policy_state: Nest, seed: Any) -> PolicyStep:
        return PolicyStep(self.constant, policy_state)


class Drawn(Policy):
    """Draws from fixed distributions, [B] or [B, D]."""

    def __init__(self, distribution: Nest, action_spec: Nest, info: Nest = (), **options: Any) -> None:
        super().__init__(time_step_spec(OBSERVATION), action_spec, **options)
        self.fixed, self.side = distribution, info

    def _distribution(self, time_step: TimeStep, policy_state: Nest) -> PolicyStep:
        return PolicyStep(self.fixed, policy_state, self.side)


class Remembering(Policy):
    """Its action and distribution show the state that they saw."""

    def __init__(self, initial: float = 0.0, **options: Any) -> None:
        state = TensorSpec((), torch.float32)
        super().__init__(time_step_spec(OBSERVATION), TensorSpec((), torch.float32), state, **options)
        self.initial = initial

    def _get_initial_state(self, batch_size: int | None) -> Tensor:
        return torch.full(() if batch_size is None else (batch_size,), self.initial)

    def _distribution(self, time_step: TimeStep, policy_state: Nest) -> PolicyStep:
        return PolicyStep(Fixed(policy_state, 1), policy_state)


# -------------------------------------------------------------------------------------------------- the constructor


@pytest.mark.parametrize("method", ["action", "distribution", "get_initial_state", "update"])
def test_b1_a_class_that_overrides_a_public_method_cannot_be_built(method: str) -> None:
    kind = type("Own", (Constant,), {method: lambda *_: None})
    with pytest.raises(ValueError, match=f"Own overrides {method}, which checks and clips for all policies"):
        kind(torch.zeros(3), FLOAT)


def test_b2_time_step_spec_must_be_a_time_step() -> None:
    with pytest.raises(ValueError, match="time_step_spec is TensorSpec, expected a TimeStep of specs"):
        RandomPolicy(OBSERVATION, FLOAT)  # type: ignore[arg-type]


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


# ----------------------------------------------------------------------------------------------- clip, log-probability


@pytest.mark.parametrize(("inputs", "expected"), cases("B8"))
def test_b8_leaves_with_limits_are_clipped(inputs: Any, expected: Any) -> None:
    specs, action = [], []
    for value, case in zip(inputs["action"], inputs["specs"], strict=True):
        dtype = getattr(torch, case["dtype"])
        limits = (case["minimum"], case["maximum"]) if "minimum" in case else None
        specs.append(BoundedTensorSpec((1,), dtype, None, *limits) if limits else TensorSpec((1,), dtype))
        action.append(torch.full((3, 1), value, dtype=dtype))
    clipped = Constant(action, specs).action(steps()).action
    assert [leaf[0, 0].item() for leaf in clipped] == expected["action"]
    assert [leaf.dtype for leaf in clipped] == [spec.dtype for spec in specs]
    assert [leaf[0, 0].item() for leaf in Constant(action, specs, clip=False).action(steps()).action] == [1, 1, 1, 1]


@pytest.mark.parametrize(("inputs", "expected"), cases("B10"))
def test_b10_log_probability_of_the_sampled_action(inputs: Any, expected: Any) -> None:
    info = map_leaves(torch.tensor, inputs.get("info", ()))
    info_spec = map_leaves(lambda x: TensorSpec((), x.dtype), info)
    distribution = Categorical(torch.tensor(inputs["probs"]).expand(3, 5))
    info = map_leaves(lambda x: x.expand(3), info)
    policy = Drawn(distribution, CHOICE, info, info_spec=info_spec, emit_log_probability=True)
    found = policy.action(steps()).info
    if inputs["info_spec"] == "empty":
        assert isinstance(found, PolicyInfo)
        log_probability = found.log_probability
    else:
        log_probability = found["log_probability"]
        assert found["test"].tolist() == [expected["info"]["test"]] * 3
    torch.testing.assert_close(log_probability, torch.full((3,), expected["log_probability"]), atol=1e-6, rtol=0)


def test_b10_spec_of_the_log_probability_and_named_tuples() -> None:
    class Own(NamedTuple):
        other: Any
        log_probability: Any

    number = TensorSpec((), torch.float32)
    policy = Drawn(
        Normal(torch.zeros(3), 1.0),
        TensorSpec((), torch.float32),
        Own(torch.ones(3), ()),
        info_spec=Own(number, ()),
        emit_log_probability=True,
    )
    spec = policy.info_spec.log_probability
    assert (spec.shape, spec.dtype, spec.maximum.item(), spec.minimum.item()) == ((), torch.float32, 0.0, -np.inf)
    step = policy.action(steps())
    torch.testing.assert_close(step.info.log_probability, Normal(0.0, 1.0).log_prob(step.action))  # type: ignore[no-untyped-call]
    assert step.info.other.tolist() == [1.0] * 3
    with pytest.raises(ValueError, match="has no room for a log-probability"):
        Drawn((), (), info_spec=[number], emit_log_probability=True)


def test_b10_log_probability_belongs_to_the_action_before_clipping() -> None:
    spec = BoundedTensorSpec((), torch.float32, None, -0.001, 0.001)
    policy = Drawn(Normal(torch.zeros(500), 1.0), spec, emit_log_probability=True)
    step = policy.action(steps(500))
    assert step.action.abs().max() <= 0.001
    assert step.info.log_probability.min() < -1.5  # that of the clipped action would be -0.92 everywhere


def test_b11_distribution_fills_in_zeros_and_a_policy_without_density_is_refused() -> None:
    policy = Drawn({"a": Normal(torch.zeros(3), 1.0)}, {"a": TensorSpec((), torch.float32)}, emit_log_probability=True)
    assert policy.distribution(steps()).info.log_probability["a"].tolist() == [0.0] * 3
    fixed = Drawn(Fixed(torch.zeros(3), 1), TensorSpec((), torch.float32), emit_log_probability=True)
    with pytest.raises(TypeError, match="emit_log_probability=True, but Fixed has no density"):
        fixed.action(steps())


@pytest.mark.parametrize(("inputs", "expected"), cases("B12"))
def test_b12_a_density_may_exceed_one(inputs: Any, expected: Any) -> None:
    class AtTheMean(Normal):
        def sample(self, sample_shape: Any = ()) -> Tensor:
            return torch.full((3,), inputs["value"])

    distribution = AtTheMean(torch.full((3,), inputs["loc"]), inputs["scale"])
    step = Drawn(distribution, TensorSpec((), torch.float32), emit_log_probability=True).action(steps())
    torch.testing.assert_close(step.info.log_probability, torch.full((3,), expected["log_probability"]))


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
    assert policy.action(time_step, torch.ones(2)).action.tolist() == [7.0, 1.0]
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
        ValueError, match=r"policy_state is missing: Remembering has a memory\. Begin with get_initial_state"
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


# ------------------------------------------------------------------------------------------------------------- masks


def masked_observation(mask: list[int], num: int) -> TimeStep:
    observation = {"obs": torch.zeros(num, 2), "action_mask": torch.tensor(mask, dtype=torch.int8).expand(num, -1)}
    return TimeStep.first(observation, num)


def test_b18_masked_actions_never_appear() -> None:
    observation = {"obs": OBSERVATION, "action_mask": BoundedTensorSpec((4,), torch.int8, None, 0, 1)}
    policy = RandomPolicy(time_step_spec(observation), BoundedTensorSpec((), torch.int64, None, 0, 3))
    assert set(policy.action(masked_observation([0, 1, 0, 1], 10_000)).action.tolist()) == {1, 3}
    vector = RandomPolicy(time_step_spec(observation), BoundedTensorSpec((2,), torch.int64, None, 0, [2, 0]))
    drawn = vector.action(masked_observation([1, 0, 1, 1], 10_000)).action
    assert [set(column.tolist()) for column in drawn.unbind(1)] == [{0, 2}, {0}]


def test_b18_a_splitter_hides_the_mask_from_the_network() -> None:
    def split(observation: Tensor) -> tuple[Tensor, Tensor]:
        return observation[:, :1], observation[:, 1:] > 0

    seen = []

    class Looking(RandomPolicy):
        def _split(self, observation: Nest) -> tuple[Nest, Tensor | None]:
            seen.append(super()._split(observation))
            return seen[-1]

    spec = time_step_spec(TensorSpec((4,), torch.float32))
    policy = Looking(
        spec, BoundedTensorSpec((), torch.int64, None, 5, 7), observation_and_action_constraint_splitter=split
    )
    observation = torch.tensor([[9.0, 1.0, 0.0, 0.0], [8.0, 0.0, 0.0, 1.0]])
    assert policy.action(TimeStep.first(observation, 2)).action.tolist() == [5, 7]
    assert seen[0][0].tolist() == [[9.0], [8.0]]


@pytest.mark.parametrize("spec", [FLOAT, (CHOICE, CHOICE), TensorSpec((), torch.int64)])
def test_b18_masks_are_for_one_leaf_of_choices(spec: Nest) -> None:
    with pytest.raises(NotImplementedError, match="Masks are for one leaf of bounded integers"):
        RandomPolicy(time_step_spec(OBSERVATION), spec, observation_and_action_constraint_splitter=lambda x: (x, None))


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
    """Of parameters and of floating buffers."""
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


# ------------------------------------------------------------------------------------------------------------- specs


def test_b23_properties() -> None:
    policy = Remembering()
    number = TensorSpec((), torch.float32)
    assert policy.policy_step_spec == PolicyStep(number, number, ())
    step_type, reward, discount, observation = policy.time_step_spec
    assert policy.trajectory_spec == policy.collect_data_spec
    assert policy.trajectory_spec == Trajectory(step_type, observation, number, (), step_type, reward, discount)


SPACES: st.SearchStrategy[Any] = st.deferred(
    lambda: st.one_of(
        st.builds(gymnasium.spaces.Discrete, st.integers(1, 9), start=st.integers(-5, 5)),
        st.lists(st.integers(1, 5), min_size=1, max_size=3).map(gymnasium.spaces.MultiDiscrete),
        st.integers(1, 4).map(gymnasium.spaces.MultiBinary),
        boxes(),
        st.lists(SPACES, min_size=1, max_size=3).map(gymnasium.spaces.Tuple),
        st.dictionaries(st.sampled_from("abc"), SPACES, min_size=1).map(gymnasium.spaces.Dict),
    )
)


def boxes() -> st.SearchStrategy[gymnasium.spaces.Box]:
    def make(low: float, high: float, shape: list[int], dtype: type) -> gymnasium.spaces.Box:
        return gymnasium.spaces.Box(low, high, tuple(shape), dtype)

    return st.builds(
        make,
        st.sampled_from([-np.inf, -2.0, 0.0]),
        st.sampled_from([np.inf, 0.5, 3.0]),
        st.lists(st.integers(1, 3), max_size=2),
        st.sampled_from([np.float32, np.float64]),
    )


@given(space=SPACES, seed=st.integers(0, 1000))
@settings(max_examples=150, deadline=None)
def test_b31_an_element_of_a_space_fits_its_spec_and_comes_back(space: Any, seed: int) -> None:
    space.seed(seed)
    for specs in (spec_of_space(space), spec_of_action_space(space)):
        element = space.sample()
        tensors = to_tensors(element, specs)
        assert check_tensors(tensors, specs, "sample") == ()
        for tensor, spec in zip(leaves(tensors), leaves(specs), strict=True):
            if isinstance(spec, BoundedTensorSpec):
                low, high = spec.limits
                assert ((tensor >= low) & (tensor <= high)).all()
        assert _contains(space, to_arrays(tensors))


@given(space=SPACES, other=SPACES, seed=st.integers(0, 1000), num=st.integers(0, 2))
@settings(max_examples=150, deadline=None)
def test_the_prepared_checks_accept_what_the_checks_with_words_accept(
    space: Any, other: Any, seed: int, num: int
) -> None:
    specs = spec_of_space(space)
    fit = Fit(specs)
    for given_space in (space, other):
        given_space.seed(seed)
        tensors = map_leaves(
            lambda leaf: torch.stack([leaf] * num) if num else leaf[None][:0],
            to_tensors(given_space.sample(), spec_of_space(given_space)),
        )
        try:
            check_structure(tensors, specs, "sample")
            expected = check_tensors(tensors, specs, "sample")
        except (TypeError, ValueError):
            assert fit.outer_shape(tensors) is None
        else:
            assert fit.outer_shape(tensors) == expected
            found = fit.flatten(tensors)
            assert found is not None
            assert all(a is b for a, b in zip(leaves(tensors), leaves(fit.pack(found)), strict=True))


def _contains(space: Any, element: Any) -> bool:
    """`Space.contains`, with arrays of no axes as the integers that Discrete wants, and MultiBinary in its own type."""
    if isinstance(space, gymnasium.spaces.Dict):
        return all(_contains(part, element[key]) for key, part in space.spaces.items())
    if isinstance(space, gymnasium.spaces.Tuple):
        return all(_contains(*pair) for pair in zip(space.spaces, element, strict=True))
    return bool(space.contains(element[()] if isinstance(space, gymnasium.spaces.Discrete) else element))


def test_b31_table_of_spaces() -> None:
    discrete = spec_of_space(gymnasium.spaces.Discrete(3, start=2))
    assert discrete == BoundedTensorSpec((), torch.int64, None, 2, 4)
    assert spec_of_space(gymnasium.spaces.MultiDiscrete([2, 3])) == BoundedTensorSpec(
        (2,), torch.int64, None, 0, [1, 2]
    )
    box = spec_of_space(gymnasium.spaces.Box(-1.0, np.inf, (2,)))
    assert (box.minimum.tolist(), box.maximum.tolist()) == ([-1.0] * 2, [np.inf] * 2)
    assert type(spec_of_space(gymnasium.spaces.Box(-np.inf, np.inf, (2,)))) is TensorSpec
    assert spec_of_space(gymnasium.spaces.Box(0, 255, (2, 2), np.uint8)).maximum.tolist() == [[255, 255], [255, 255]]


def test_time_steps_of_gymnasium() -> None:
    first = TimeStep.first(torch.zeros(2))
    assert (first.step_type.item(), first.reward.item(), first.discount.item()) == (0, 0.0, 1.0)
    for flags, expected in {
        (False, False): (1, 1.0),
        (True, False): (2, 0.0),
        (False, True): (2, 1.0),
        (True, True): (2, 0.0),
    }.items():
        step = TimeStep.after(torch.zeros(2), 1.5, *flags)
        assert (step.step_type.item(), step.discount.item(), step.reward.item()) == (*expected, 1.5)
    batch = TimeStep.after(torch.zeros(2, 2), np.ones(2), np.array([True, False]), np.array([False, False]))
    assert (batch.step_type.tolist(), batch.discount.tolist()) == ([2, 1], [0.0, 1.0])
    assert check_tensors(batch, time_step_spec(OBSERVATION), "time_step") == (2,)


# ------------------------------------------------------------------------------------------------ kinds of policies


def chi_square_p(observed: list[int]) -> float:
    """Probability of a deviation from uniform this large or larger (Wilson and Hilferty 1931)."""
    expected, k = sum(observed) / len(observed), len(observed) - 1
    chi2 = sum((o - expected) ** 2 / expected for o in observed)
    z = ((chi2 / k) ** (1 / 3) - (1 - 2 / (9 * k))) / (2 / (9 * k)) ** 0.5
    return float(0.5 * (1 - torch.erf(torch.tensor(z / 2**0.5))))


def test_b25_random_policy_is_uniform_within_its_limits() -> None:
    specs = {
        "choice": BoundedTensorSpec((), torch.int32, None, -2, 3),
        "vector": BoundedTensorSpec((2,), torch.int64, None, [0, 5], [1, 9]),
        "number": BoundedTensorSpec((1,), torch.float32, None, -1.0, 3.0),
        "half": BoundedTensorSpec((), torch.float64, None, 2.0, None),
        "free": TensorSpec((), torch.float32),
        "any": TensorSpec((), torch.int64),
    }
    policy = RandomPolicy(time_step_spec(OBSERVATION), specs)
    action = policy.action(steps(10_000), seed=0).action
    assert chi_square_p(torch.bincount(action["choice"] + 2, minlength=6).tolist()) > 0.001
    assert chi_square_p(torch.bincount(action["vector"][:, 1] - 5, minlength=5).tolist()) > 0.001
    assert chi_square_p(torch.histc(action["number"], 8, -1.0, 3.0).int().tolist()) > 0.001
    assert action["number"].min() >= -1.0
    assert action["half"].min() >= 2.0
    assert action["half"].mean().item() == pytest.approx(3.0, abs=0.1)
    assert action["free"].std().item() == pytest.approx(1.0, abs=0.05)
    assert (action["any"] > 0).float().mean().item() == pytest.approx(0.5, abs=0.03)
    log_probs = RandomPolicy(time_step_spec(OBSERVATION), specs, emit_log_probability=True).action(steps()).info[0]
    assert log_probs["choice"].tolist() == pytest.approx([-np.log(6)] * 3)
    assert log_probs["number"].tolist() == pytest.approx([-np.log(4)] * 3)


def test_b30_greedy_policy_takes_the_mode() -> None:
    specs = {"a": CHOICE, "b": TensorSpec((2,), torch.float32)}
    logits, mean = torch.randn(3, 5), torch.randn(3, 2)
    policy = GreedyPolicy(Drawn({"a": Categorical(logits=logits), "b": Independent(Normal(mean, 1.0), 1)}, specs))
    for _ in range(3):
        action = policy.action(steps()).action
        assert torch.equal(action["a"], logits.argmax(-1))
        assert torch.equal(action["b"], mean)
    assert torch.equal(policy.distribution(steps()).action["b"].sample(), mean)

    class NoMode(Distribution):
        arg_constraints: ClassVar[dict[str, Any]] = {}

    with pytest.raises(ValueError, match="NoMode has no mode"):
        GreedyPolicy(Drawn(NoMode(), FLOAT)).action(steps())


def test_b30_greedy_policy_keeps_memory_and_clips() -> None:
    spec = BoundedTensorSpec((), torch.float32, None, -1.0, 1.0)
    assert GreedyPolicy(Drawn(Normal(torch.full((3,), 4.0), 1.0), spec)).action(steps()).action.tolist() == [1.0] * 3
    policy = GreedyPolicy(Remembering(7.0))
    assert policy.get_initial_state(2).tolist() == [7.0, 7.0]
    assert policy.action(steps(3, 0, 1, 1), torch.ones(3)).action.tolist() == [7.0, 1.0, 1.0]
