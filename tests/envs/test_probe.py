"""Environments are looked at before a run: what they promise, and every fault of theirs in a sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from sf_envs.echo import TwoAgentEcho

from sf.envs import EnvSource, find_env, probe, probe_and_time, register_env
from sf.errors import EnvCrashed, EnvError
from sf.spaces import ActionSpec, LeafSpec
from tests.environments.toys import Fickle, Raising, Toy, TwoToys
from tests.envs.test_envs import refusal

pytestmark = pytest.mark.usefixtures("clean_registries")


class NoAgents(TwoAgentEcho):
    """An environment without agents."""

    num_agents = 0


class TestProbe:
    def test_facts_of_a_known_environment(self) -> None:
        info = probe(find_env("CartPole-v1"))
        assert (info.env_id, info.num_agents) == ("CartPole-v1", 1)
        assert info.observations == {"obs": LeafSpec((4,), "float32")}
        assert info.action == ActionSpec.discrete(2)

    def test_facts_of_two_agents(self) -> None:
        register_env("Two", TwoToys)
        assert probe(find_env("Two")).num_agents == 2

    def test_episodes_that_end_in_every_step_are_fine(self) -> None:
        register_env("Short", Toy)
        probe(find_env("Short", {"terminated": True, "truncated": np.True_}))

    @pytest.mark.parametrize("name", ["reward", "observation", "terminated"])
    def test_a_tensor_that_requires_grad_is_refused_in_one_sentence(self, name: str) -> None:
        import torch

        register_env("Differentiable", Toy)
        value = torch.ones(2 if name == "observation" else (), requires_grad=True)
        with pytest.raises(
            EnvError, match=r"returned a Tensor that NumPy cannot read \(Can't call numpy\(\) on"
        ) as caught:
            probe(find_env("Differentiable", {name: value * 0.5}))
        assert not isinstance(caught.value, EnvCrashed)

    @pytest.mark.parametrize(
        "returned",
        [
            {"observation": np.zeros(2, np.float64)},
            {"observation": [0.0, 0.5]},
            {"reward": 1, "terminated": 0},
            {"reward": np.float32(1), "terminated": np.False_},
            {"reward": np.array([1.0])},
            {"observation": 2, "observation_space": spaces.Discrete(3)},
        ],
    )
    def test_fault_b14_what_converts_without_loss_is_accepted(self, returned: dict[str, Any]) -> None:
        register_env("Loose", Toy)
        probe(find_env("Loose", returned))

    @pytest.mark.parametrize(
        ("returned", "message"),
        [
            (
                {"observation": np.zeros(1, np.float32)},
                "Bad returned an observation 'obs' of shape (1,), but its observation space promises (2,). Correct the "
                "space or what reset and step return.",
            ),
            (
                {"observation": np.array([0.0, np.nan])},
                "Bad returned an observation 'obs' that holds NaN: [ 0. nan]. Observations must be finite.",
            ),
            ({"observation": np.ones(2, bool)}, "of dtype bool, which does not fit into float32 as its observation"),
            ({"observation": np.array([np.inf, 0.0])}, "an observation 'obs' that holds infinity: [inf  0.]."),
            (
                {"observation": np.zeros(2, np.float64), "observation_space": spaces.Box(0, 9, (2,), np.uint8)},
                "of dtype float64, which does not fit into uint8 as its observation space promises.",
            ),
            (
                {"observation": 3, "observation_space": spaces.Discrete(3)},
                "an observation 'obs' with the value 3, but its observation space promises categories 0 to 2.",
            ),
            (
                {"observation": {"a": 0}, "observation_space": spaces.Dict({"b": spaces.Discrete(2)})},
                "returned an observation with the keys ['a'], but its observation space has ['b']. Return",
            ),
            (
                {"observation": np.array([1e18, 0.0])},
                "holds infinity: [1.e+18 0.e+00] (anything from 1e+18 counts as infinite). Observations must be",
            ),
            (
                {
                    "observation": np.array([np.inf, 0.0], np.float16),
                    "observation_space": spaces.Box(-1, 1, (2,), np.float16),
                },
                "an observation 'obs' that holds infinity: [inf  0.].",
            ),
            ({"reward": np.nan}, "Bad returned the reward nan from step, expected a finite number."),
            ({"reward": -1e20}, "the reward -1e+20 (anything from 1e+18 counts as infinite) from step, expected"),
            ({"reward": None}, "Bad returned the reward None from step, expected a finite number."),
            (
                {"reward": np.ones(3)},
                "Bad returned the reward array([1., 1., 1.]) from step, expected a finite number.",
            ),
            ({"terminated": "no"}, "Bad returned terminated='no' from step, expected True or False."),
            ({"truncated": np.zeros(2, bool)}, "Bad returned truncated=array([False, False]) from step, expected True"),
            (
                {"step": (np.zeros(2, np.float32), 1.0, False, {})},
                "Bad returned a tuple of 4 values from step, expected the tuple observation, reward, terminated, "
                "truncated, info. Environments for gym before 0.26 need a wrapper",
            ),
            (
                {"reset": np.zeros(2, np.float32)},
                "Bad returned one ndarray from reset, expected the tuple observation, info. Environments for",
            ),
            (
                {"observation_space": spaces.Text(2)},
                "but observations are Box, Discrete, MultiDiscrete, MultiBinary, or Dict and Tuple of these.",
            ),
            ({"action_space": spaces.Text(2)}, "Bad: The action space is or contains Text"),
            ({"action_space": None}, "Bad: The action space is or contains None, but actions are Discrete, "),
        ],
    )
    def test_fault_b10_broken_promise_is_told_with_both_sides(self, returned: dict[str, Any], message: str) -> None:
        register_env("Bad", Toy)
        assert message in refusal("Bad", **returned)

    @pytest.mark.parametrize(
        ("space", "seen", "told"),
        [
            (spaces.Box(-1, 1, (2,)), [0.0, 1e6], ["'obs' with 1e+06 where its space promises -1 to 1"]),
            (spaces.Box(-1, 1, (2,)), [-3.0, 2.0], ["'obs' with -3 where its space promises -1 to 1"]),
            (spaces.Box(0, 0.7, (2,)), [0.7, 0.1], []),
            (spaces.Box(-np.inf, np.inf, (2,)), [1e6, 0.0], []),
            (spaces.Box(0, 9, (2,), np.uint8), [3, 10], ["'obs' with 10 where its space promises 0 to 9"]),
            (spaces.Box(0, 255, (2,), np.uint8), [3, 255], []),
            (spaces.MultiBinary(2), [0, 2], ["'obs' with 2 where its space promises 0 to 1"]),
            (
                spaces.Dict({"a": spaces.Tuple([spaces.Box(0, 1), spaces.Discrete(3)]), "b": spaces.Box(0, 1)}),
                {"a": (np.array([2.0]), 1), "b": np.array([-5.0])},
                ["'a/0' with 2 where its space promises 0 to 1", "'b' with -5 where its space promises 0 to 1"],
            ),
        ],
        ids=str,
    )
    def test_fault_b11_number_outside_its_bounds_is_told(self, space: Any, seen: Any, told: list[str]) -> None:
        register_env("Far", Toy)
        notes = probe_and_time(find_env("Far", {"observation_space": space, "observation": seen}), 0.0).notes
        assert notes == [
            f"Warning: Far returned an observation {one}. It is taken as it is; correct the bounds, or clip it in the "
            "environment."
            for one in told
        ]

    @pytest.mark.parametrize(
        ("step", "message"),
        [
            (
                ([np.zeros(2)] * 2, [1.0], [False] * 2, [False] * 2, [{}, {}]),
                "Bad returned a list of 1 values from step as its rewards, expected a list of 2 entries, one for each",
            ),
            (
                ([np.zeros(2)] * 2, [1.0] * 2, [True, None], [False] * 2, [{}, {}]),
                "Bad, agent 1 returned terminated=None from step, expected True or False.",
            ),
        ],
    )
    def test_agents_that_do_not_keep_the_protocol(self, step: Any, message: str) -> None:
        register_env("Bad", TwoToys)
        assert message in refusal("Bad", step=step)

    @pytest.mark.parametrize(
        ("call", "named"),
        [("constructor", "the constructor"), ("reset", "reset"), ("step", "step"), ("close", "close")],
    )
    def test_fault_b5_exception_is_blamed_with_the_environments_traceback(self, call: str, named: str) -> None:
        register_env("Bad", Raising)
        message = refusal("Bad", where=call)
        assert message.startswith(
            f"Bad raised Unprintable in {named}. Its traceback:\nTraceback (most recent call last)"
        )
        assert "toys.py" in message
        assert "sf/envs" not in message
        assert message.endswith("Unprintable: <exception str() failed>")

    def test_environment_without_agents_is_refused(self) -> None:
        register_env("NoAgents", NoAgents)
        assert refusal("NoAgents") == "NoAgents has num_agents=0, expected at least 1."

    def test_wrong_argument_is_blamed_on_the_constructor(self) -> None:
        assert "CartPole-v1 raised TypeError in the constructor." in refusal("CartPole-v1", gravitas=9.8)

    def test_fault_b21_instances_that_differ_are_refused_with_both(self) -> None:
        Fickle.instances = 0
        register_env("Fickle", Fickle)
        source = find_env("Fickle")
        info = probe(source)
        with pytest.raises(EnvError) as caught:
            source.make_checked(info)
        assert str(caught.value) == (
            "Fickle is not what it should be. "
            "Expected: 1 agent, observations {obs: float32[2]}, actions choices 0 to 2. "
            "Found: 1 agent, observations {obs: float32[3]}, actions choices 0 to 2. "
            "All environments of a run need the same agents and spaces, and a policy needs those that it was trained "
            "with."
        )
        register_env("Steady", Toy)
        steady = find_env("Steady")
        assert isinstance(steady.make_checked(probe(steady)), Toy)


class WithoutInfo(Toy):
    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], None


def test_a_step_without_info_is_refused_before_the_run() -> None:
    source = EnvSource("WithoutInfo", {}, WithoutInfo)
    with pytest.raises(
        EnvError, match=r"returned info None \(NoneType\) from step, expected a dict, which may be empty"
    ):
        probe(source)
