"""Action masks at the boundary: where they come from and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from sf_envs.echo import TwoAgentEcho

import sf
from sf.config import ModelConfig
from sf.envs import EnvSource, find_env, probe, register_env
from sf.envs.leaves import check_mask
from sf.envs.masks import flat_mask
from sf.errors import EnvError
from sf.policy import ActorCritic, BoundedTensorSpec
from sf.policy.masks import masked
from sf.spaces import ActionSpec, EnvInfo, LeafSpec
from sf.spaces.from_gymnasium import action_spec
from tests.helpers.lab import make_lab, step_until


class Masked(gymnasium.Env[Any, Any]):
    """Two of four choices are legal in turn; `where` says how the mask is reported."""

    def __init__(self, where: str = "info", mask: Any = None, steps_until_odd: int = 0) -> None:
        self.where, self.odd_mask, self.steps_until_odd = where, mask, steps_until_odd
        box, self.action_space = spaces.Box(-1, 1, (2,)), spaces.Discrete(4, start=3)
        self.observation_space: Any = box
        if where == "observation":
            self.observation_space = spaces.Dict({"position": box, "action_mask": spaces.MultiBinary(4)})
        self.steps = 0

    def _seen(self) -> tuple[Any, dict[str, Any]]:
        self.mask: Any = np.array([1, 0, 1, 0], np.int8) if self.steps % 2 else np.array([0, 1, 0, 1], np.int8)
        if self.odd_mask is not None and self.steps >= self.steps_until_odd:
            self.mask = self.odd_mask
        position = np.zeros(2, np.float32)
        if self.where == "method":
            return position, {}
        if self.where == "observation":
            return {"position": position, "action_mask": self.mask}, {}
        return position, {"action_mask": self.mask}

    def __getattr__(self, name: str) -> Any:
        if name == "action_masks" and self.where == "method":
            return lambda: self.mask.astype(bool)
        raise AttributeError(name)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._seen()

    def step(self, action: Any) -> Any:
        assert self.mask[action - 3], f"illegal action {action}"
        self.steps += 1
        observation, info = self._seen()
        return observation, 1.0, self.steps % 7 == 0, False, info


class OfAPlayer(gymnasium.Env[Any, Any]):
    """A method of the same name with another purpose."""

    observation_space, action_space = spaces.Box(-1, 1, (2,)), spaces.Discrete(4)

    def action_masks(self, player: int) -> Any:
        raise AssertionError(player)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 0.0, False, False, {}


class AllAllowed(OfAPlayer):
    def action_masks(self) -> Any:  # type: ignore[override]
        return None


def test_a_method_that_wants_to_know_more_is_no_mask_and_none_allows_everything() -> None:
    assert not probe(EnvSource("player", {}, OfAPlayer)).mask_from_info
    assert probe(EnvSource("all", {}, AllAllowed)).mask_from_info
    observation, _ = sf.MaskFromInfo(AllAllowed()).reset()
    assert observation["action_mask"].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("where", ["info", "observation", "method"])
def test_cx4_no_illegal_action_is_executed_and_the_mask_is_stored(tmp_path: Path, where: str) -> None:
    register_env("Masked", Masked)
    lab = make_lab(tmp_path, "Masked", env_kwargs=f'{{"where": "{where}"}}', num_envs_per_worker=4, rollout=16)
    roles = lab.build_all()
    step_until(roles, lambda: roles[0].record["iterations"] >= 5)
    masks = lab.slots.observations["action_mask"]
    assert set(masks.sum(-1).flatten().tolist()) == {2}
    assert np.take_along_axis(masks[:, :-1], lab.slots.actions[..., None], -1).all()
    for role in roles:
        role.close()


def test_cx4_never_an_invalid_action_in_100_000() -> None:
    torch.manual_seed(0)
    action = action_spec(spaces.MultiDiscrete([3, 5, 2]))
    leaves = {"obs": LeafSpec((3,), "float32"), "action_mask": LeafSpec((10,), "int8")}
    policy = ActorCritic(EnvInfo("test", 1, leaves, action), ModelConfig())
    masks = torch.randint(0, 2, (100_000, 10), dtype=torch.int8)
    for start in (0, 3, 8):
        masks[:, start] |= masks[:, start : start + 2].sum(1) == 0
    masks[masks[:, 3:8].sum(1) == 0, 3] = 1
    step = policy.act({"obs": torch.randn(100_000, 3) * 3, "action_mask": masks})
    places = step.action + torch.tensor([0, 3, 8])
    assert masks.gather(1, places).all()


def test_c37_log_probability_and_entropy_are_sums(oracles: dict[str, Any]) -> None:
    for case in oracles["C37"]["cases"]:
        nvec, expected = case["inputs"]["nvec"], case["expected"]
        policy = ActorCritic(
            EnvInfo("test", 1, {"obs": LeafSpec((3,), "float32")}, action_spec(spaces.MultiDiscrete(nvec))),
            ModelConfig(),
        )
        params = torch.zeros(1, sum(nvec))
        log_prob, entropy = policy.distribution.evaluate(params, torch.tensor([[4, 1, 0]]))
        assert log_prob.item() == pytest.approx(expected["log_prob"], abs=1e-5)
        assert entropy.item() == pytest.approx(expected["entropy"], abs=1e-5)


def test_c37_mask_of_one_component_leaves_the_others_alone() -> None:
    policy = ActorCritic(
        EnvInfo(
            "test",
            1,
            {"obs": LeafSpec((3,), "float32"), "action_mask": LeafSpec((5,), "int8")},
            action_spec(spaces.MultiDiscrete([2, 3])),
        ),
        ModelConfig(),
    )
    policy.policy_head.weight.data.zero_()
    observations = {"obs": torch.zeros(1, 3), "action_mask": torch.tensor([[1, 0, 1, 1, 1]])}
    evaluation = policy.evaluate(observations, torch.tensor([[0, 2]]))
    assert evaluation.log_probs.item() == pytest.approx(-np.log(3), abs=1e-6)
    assert evaluation.entropy.item() == pytest.approx(np.log(3), abs=1e-6)


@pytest.mark.parametrize(
    ("mask", "action", "legal"),
    [
        ([0, 1], ActionSpec.discrete(2), True),
        ([0, 0], ActionSpec.discrete(2), False),
        ([0, 1, 1, 0, 0], action_spec(spaces.MultiDiscrete([2, 3])), True),
        ([0, 1, 0, 0, 0], action_spec(spaces.MultiDiscrete([2, 3])), False),
    ],
)
def test_mask_without_a_legal_choice_is_refused(mask: list[int], action: ActionSpec, legal: bool) -> None:
    if legal:
        check_mask(np.array(mask), action)
    else:
        with pytest.raises(
            EnvError,
            match=r"returned the action mask \[0.*\], which forbids all of action column [01] \(choices 0 to [12]\)",
        ):
            check_mask(np.array(mask), action)


def test_nan_allows_nothing() -> None:
    with pytest.raises(EnvError, match=r"returned the action mask \[nan, 1\.0\], which holds NaN\. Use 0"):
        check_mask(np.array([np.nan, 1.0]), ActionSpec.discrete(2))


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (
            np.zeros(4, np.int8),
            r"returned the action mask \[0, 0, 0, 0\], which forbids all of action column 0 \(choices 3 to 6\)",
        ),
        (np.ones(3, np.int8), r"'action_mask' of shape \(3,\), but its observation space promises \(4,\)"),
    ],
)
def test_odd_mask_in_the_observation_is_refused_before_training_and_during_it(
    tmp_path: Path, mask: Any, message: str
) -> None:
    register_env("Masked", Masked)
    kwargs = {"where": "observation", "mask": mask}
    with pytest.raises(EnvError, match=message):
        probe(find_env("Masked", kwargs))
    lab = make_lab(tmp_path, "Masked", num_envs_per_worker=4, env_kwargs='{"where": "observation"}')
    source = find_env("Masked", kwargs | {"steps_until_odd": 20})
    roles = [lab.build("learner"), lab.build("inference"), lab.build("rollout", source=source)]
    with pytest.raises(EnvError, match=message):
        step_until(roles, lambda: False)
    for role in roles:
        role.close()


VECTOR = (
    r"expected a vector of 4 numbers, 0 for what is not allowed, or one vector for each column, of the lengths \[4\]"
)


@pytest.mark.parametrize(
    "mask",
    [
        1,
        {"a": 1},
        "1111",
        (np.ones(4), None),
        (None, np.ones(4)),
        [],
        np.ones(3),
        np.ones((1, 4)),
        np.array([np.nan, 1, 0, 0]),
        [[1, 1], [1, 1]],
        [1, [1, 1], 1],
    ],
    ids=repr,
)
def test_odd_mask_in_info_is_refused_with_one_sentence(mask: Any) -> None:
    register_env("Masked", Masked)
    with pytest.raises(EnvError, match=r"^info\['action_mask'\] is .*, " + VECTOR) as caught:
        probe(find_env("Masked", {"mask": mask}))
    assert type(caught.value) is EnvError, "no crash of the environment"


def test_mask_of_several_columns_comes_as_one_vector_or_as_one_for_each() -> None:
    for mask in ([1, 0, 0, 1, 1], (np.array([1, 0]), [0.0, 1.0, True])):
        assert flat_mask(mask, (2, 3)).tolist() == [1, 0, 0, 1, 1]
    with pytest.raises(EnvError, match=r"expected a vector of 5 numbers.* of the lengths \[2, 3\]"):
        flat_mask(([1, 0, 0], [1, 1]), (2, 3))


class MaskedNumbers(Masked):
    """Actions without choices."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space: Any = spaces.Box(-1, 1, (2,))


class Duck:
    """Everything of a gymnasium.Env but the class."""

    def __init__(self) -> None:
        env = Masked()
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.reset, self.step, self.close = env.reset, env.step, env.close


class MaskedLater(Masked):
    """The first mask comes with the first step."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset()[0], {}


class MaskedPair(TwoAgentEcho):
    """Two agents with a mask each."""

    def step(self, actions: Any) -> Any:
        *rest, infos = super().step(actions)
        return *rest, [{"action_mask": [0, 1, 1, 1]} for _ in infos]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (MaskedNumbers, r"info has 'action_mask', but the actions Box.* have no choices; leave it out"),
        (
            Duck,
            r"info has 'action_mask', but Duck is no gymnasium\.Env; derive it from that class, or put the mask into",
        ),
        (MaskedLater, r"returned info\['action_mask'\] from step but not from reset\. Return it from both"),
        (
            MaskedPair,
            r"info\['action_mask'\] from step, which is read where there is one agent; it has 2\. Put the mask",
        ),
    ],
)
def test_mask_in_info_that_nobody_would_read_is_refused(kind: Any, message: str) -> None:
    register_env("Masked", kind)
    with pytest.raises(EnvError, match=message):
        probe(find_env("Masked"))


def test_a_mask_of_integers_forbids_as_one_of_booleans_does() -> None:
    spec = BoundedTensorSpec((), torch.int64, None, 0, 2)
    choices = torch.distributions.Categorical(logits=torch.zeros(3))
    log_probs = masked(choices, torch.tensor([1, 0, 1]), spec, "policy").log_prob(torch.arange(3))
    assert log_probs.exp().tolist() == pytest.approx([0.5, 0.0, 0.5])
