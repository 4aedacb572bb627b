"""Actions of policies: clipped, with their log-probability, masked, uniform, greedy."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent, Normal

from sf.policy import (
    BoundedTensorSpec,
    GreedyPolicy,
    Policy,
    PolicyInfo,
    PolicyStep,
    RandomPolicy,
    TensorSpec,
    TimeStep,
    time_step_spec,
)
from sf.policy.leaf_distributions import Fixed
from sf.policy.nests import Nest, map_leaves
from tests.helpers.policies import FLOAT, OBSERVATION, Constant, Drawn, Remembering, cases, steps

CHOICE = BoundedTensorSpec((), torch.int64, None, 0, 4)


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


MASKED = {"obs": OBSERVATION, "action_mask": BoundedTensorSpec((4,), torch.int8, None, 0, 1)}


class Seeing(Policy):
    """Has the same logits for all, and remembers what it was shown."""

    def __init__(self, logits: Tensor, action_spec: Nest, observation: Nest = None, **options: Any) -> None:
        super().__init__(time_step_spec(observation or MASKED), action_spec, **options)
        self.logits, self.seen = logits, list[Any]()

    def _distribution(self, time_step: TimeStep, policy_state: Nest) -> PolicyStep:
        self.seen.append(time_step.observation)
        logits = self.logits.expand(*time_step.step_type.shape, *self.logits.shape)
        choices = Categorical(logits=logits)
        return PolicyStep(Independent(choices, 1) if self.logits.dim() == 2 else choices, policy_state)


class Masking(Seeing):
    """Masks by itself, and says so; two choices of its own are left."""

    masks_itself = True

    def _distribution(self, time_step: TimeStep, policy_state: Nest) -> PolicyStep:
        _, mask = self._split(time_step.observation)
        assert mask is not None
        step = super()._distribution(time_step, policy_state)
        return step._replace(action=Categorical(logits=step.action.logits.masked_fill(~mask, -1e8)))


def test_b18_a_subclass_sees_its_part_and_what_it_returns_is_masked() -> None:
    choice = BoundedTensorSpec((), torch.int64, None, 0, 3)
    logits = torch.tensor([5.0, 1.0, 5.0, 2.0], requires_grad=True)
    policy = Seeing(logits, choice, emit_log_probability=True)
    steps = masked_observation([0, 1, 0, 1], 10_000)
    taken = policy.action(steps)
    assert set(taken.action.tolist()) == {1, 3}
    assert set(policy.seen[0]) == {"obs"}, "the network sees the first part only"
    expected = torch.tensor([1.0, 2.0]).log_softmax(-1)[taken.action // 2]
    torch.testing.assert_close(taken.info.log_probability, expected)
    assert set(GreedyPolicy(Seeing(logits, choice)).action(steps).action.tolist()) == {3}
    distribution = policy.distribution(steps).action
    assert distribution.probs[0, [0, 2]].tolist() == [0.0, 0.0]
    distribution.log_prob(taken.action).mean().backward()
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad[[0, 2]], torch.zeros(2), atol=1e-6, rtol=0.0)  # up to rounding
    assert logits.grad[[1, 3]].abs().min() > 1e-4


def test_b18_vectors_of_choices_are_masked_component_by_component() -> None:
    vector = BoundedTensorSpec((2,), torch.int64, None, 0, [2, 0])
    drawn = Seeing(torch.zeros(2, 3), vector).action(masked_observation([1, 0, 1, 1], 10_000)).action
    assert [set(column.tolist()) for column in drawn.unbind(1)] == [{0, 2}, {0}]


def test_b18_a_splitter_of_the_user_reaches_a_subclass() -> None:
    def split(observation: Tensor) -> tuple[Tensor, Tensor | None]:
        return observation[:, :1], observation[:, 1:] > 0

    spec = TensorSpec((4,), torch.float32)
    choice = BoundedTensorSpec((), torch.int64, None, 0, 2)
    policy = Seeing(torch.tensor([9.0, 0.0, 0.0]), choice, spec, observation_and_action_constraint_splitter=split)
    observation = torch.tensor([[7.0, 0.0, 1.0, 0.0], [8.0, 0.0, 0.0, 1.0]])
    assert policy.action(TimeStep.first(observation, 2)).action.tolist() == [1, 2]
    assert policy.seen[0].tolist() == [[7.0], [8.0]]
    unmasked = Seeing(
        torch.tensor([99.0, 0.0, 0.0]), choice, spec, observation_and_action_constraint_splitter=lambda x: (x, None)
    )
    assert unmasked.action(TimeStep.first(observation, 2)).action.tolist() == [0, 0]


def test_b18_a_subclass_that_masks_by_itself_says_so_and_sees_everything() -> None:
    policy = Masking(torch.zeros(4), BoundedTensorSpec((), torch.int64, None, 0, 3))
    assert set(policy.action(masked_observation([0, 1, 0, 1], 10_000)).action.tolist()) == {1, 3}
    assert set(policy.seen[0]) == {"obs", "action_mask"}


def test_b18_a_mask_that_would_have_no_effect_is_refused() -> None:
    choice = BoundedTensorSpec((), torch.int64, None, 0, 3)
    with pytest.raises(NotImplementedError, match=r"Constant implements _action, .* set masks_itself = True"):
        Constant(torch.zeros(3), choice, MASKED)
    steps = masked_observation([0, 1, 0, 1], 3)

    class Odd(Seeing):
        def _distribution(self, time_step: TimeStep, policy_state: Nest) -> PolicyStep:
            return PolicyStep(Fixed(torch.zeros(3, dtype=torch.int64), 1), policy_state)

    with pytest.raises(TypeError, match=r"returned Fixed.*expected a Categorical, or an Independent of one"):
        Odd(torch.zeros(4), choice).action(steps)
    with pytest.raises(ValueError, match="Seeing has a mask of 4 choices, but the action has 6"):
        Seeing(torch.zeros(6), BoundedTensorSpec((), torch.int64, None, 0, 5)).action(steps)
    with pytest.raises(ValueError, match="Seeing has 3 logits of a choice, but the action has 4"):
        Seeing(torch.zeros(3), choice).action(steps)


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


def test_distribution_of_a_greedy_policy_has_no_log_probability_but_0() -> None:
    policy = GreedyPolicy(Drawn(Normal(torch.full((3,), 4.0), 1.0), FLOAT, emit_log_probability=True))
    step = policy.distribution(steps())
    assert step.action.sample().tolist() == [4.0] * 3
    assert step.info.log_probability.tolist() == [0.0] * 3


MASKS = {3: [1, 0, 1], 5: [1, 0, 1, 0, 1]}


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
@pytest.mark.parametrize(("shape", "maximum", "num_choices"), [((), 2, 3), ((2,), [2, 1], 5)])
@pytest.mark.parametrize("start", [0, 5])
@pytest.mark.parametrize("emit", [False, True])
def test_b25_b18_a_random_policy_obeys_a_mask_of_any_integers(
    dtype: torch.dtype, shape: tuple[int, ...], maximum: Any, num_choices: int, start: int, emit: bool
) -> None:
    action = BoundedTensorSpec(shape, dtype, "action", start, np.add(maximum, start))
    observation = {
        "action_mask": BoundedTensorSpec((num_choices,), torch.int8, None, 0, 1),
        "x": TensorSpec((2,), torch.float32),
    }
    policy = RandomPolicy(time_step_spec(observation), action, emit_log_probability=emit)
    mask = torch.tensor([MASKS[num_choices]] * 400, dtype=torch.int8)
    step = policy.action(TimeStep.first({"action_mask": mask, "x": torch.zeros(400, 2)}, 400), seed=1)
    assert step.action.dtype == dtype
    drawn = (step.action - start).reshape(400, -1)
    assert set(drawn[:, 0].tolist()) == {0, 2}
    if shape:
        assert set(drawn[:, 1].tolist()) == {1}
    if emit:
        torch.testing.assert_close(step.info.log_probability, torch.full((400,), np.log(0.5), dtype=torch.float32))


def test_b25_a_random_policy_draws_its_side_information() -> None:
    info = {
        "k": BoundedTensorSpec((), torch.float32, "k", 1.0, 2.0),
        "n": BoundedTensorSpec((3,), torch.int32, "n", 0, 4),
    }
    for emit in (False, True):
        policy = RandomPolicy(steps_spec(), CHOICE, info_spec=info, emit_log_probability=emit)
        step, again = (policy.action(TimeStep.first(torch.zeros(50, 2), 50), seed=3) for _ in range(2))
        assert set(step.info) == {"k", "n"} | ({"log_probability"} if emit else set())
        assert 1.0 <= step.info["k"].min() < step.info["k"].max() <= 2.0
        assert set(step.info["n"].flatten().tolist()) == set(range(5))
        assert torch.equal(step.info["k"], again.info["k"]), "the seed decides"
        assert set(policy.distribution(TimeStep.first(torch.zeros(50, 2), 50)).info) == set(step.info)


def steps_spec() -> TimeStep:
    return time_step_spec(TensorSpec((2,), torch.float32))
