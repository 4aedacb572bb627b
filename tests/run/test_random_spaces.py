"""Any combination of spaces, with and without masks and memory, trains with ratio 1 in the first minibatch."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sf.envs import register_env
from sf.learner.worker import Learner
from sf.policy import Sequences
from sf.spaces.from_gymnasium import action_spec
from tests.helpers.lab import make_lab, step_until

Space = spaces.Space[Any]
MaskPlace = Literal["nowhere", "info", "observation"]

BOXES = st.builds(
    lambda shape, dtype: spaces.Box(-2, 2, tuple(shape), dtype),
    st.lists(st.integers(1, 3), max_size=3),
    st.sampled_from([np.float32, np.float64]),
)
PIXELS = st.sampled_from([(2, 2, 3), (36, 36), (3, 36, 40), (40, 36, 1)]).map(
    lambda shape: spaces.Box(0, 255, shape, np.uint8)
)
DISCRETE = st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 4), st.integers(-2, 2))
MULTI = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(lambda nvec: spaces.MultiDiscrete(nvec))
BINARY = st.integers(1, 4).map(spaces.MultiBinary)


def nests(leaves: st.SearchStrategy[Space]) -> st.SearchStrategy[Space]:
    """Leaves, and Dicts and Tuples of them, two levels deep."""
    return st.recursive(
        leaves,
        lambda parts: st.one_of(
            st.lists(parts, min_size=1, max_size=2).map(spaces.Tuple),
            st.dictionaries(st.sampled_from("abc"), parts, min_size=1, max_size=2).map(spaces.Dict),
        ),
        max_leaves=3,
    )


OBSERVATIONS = nests(st.one_of(BOXES, PIXELS, DISCRETE, MULTI, BINARY))
ACTIONS = nests(st.one_of(BOXES, DISCRETE, MULTI, BINARY))
MASKABLE = st.one_of(DISCRETE, MULTI)
MODELS: list[dict[str, Any]] = [{}, {"use_rnn": True}, {"use_rnn": True, "rnn_type": "lstm", "rnn_num_layers": 2}]


class Anything(gymnasium.Env[Any, Any]):
    """Random observations, rewards and ends; complains about every action that is not in its space or not legal."""

    def __init__(self, observation_space: Space, action_space: Space, mask_in: MaskPlace) -> None:
        self.inner_space, self.action_space, self.mask_in = observation_space, action_space, mask_in
        self.observation_space = observation_space
        if mask_in == "observation":
            num_choices = sum(action_spec(action_space).choices)
            self.observation_space = spaces.Dict(
                {"x": observation_space, "action_mask": spaces.MultiBinary(num_choices)}
            )
        self.random = np.random.default_rng()
        self.mask: Any = None

    def _seen(self) -> tuple[Any, dict[str, Any]]:
        seen = self.inner_space.sample()
        if self.mask_in == "nowhere":
            return seen, {}
        discrete = isinstance(self.action_space, spaces.Discrete)
        blocks = [self.random.integers(0, 2, size) for size in action_spec(self.action_space).choices]
        for block in blocks:
            block[self.random.integers(len(block))] = 1
        self.mask = blocks
        if self.mask_in == "observation":
            return {"x": seen, "action_mask": np.concatenate(blocks).astype(np.int8)}, {}
        return seen, {"action_mask": blocks[0] if discrete else tuple(blocks)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.random = np.random.default_rng(seed)
            self.inner_space.seed(seed)
        return self._seen()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        if self.mask is not None:
            starts = np.atleast_1d(self.action_space.start)  # type: ignore[attr-defined]
            assert all(block[c] for block, c in zip(self.mask, np.atleast_1d(action) - starts, strict=True)), "illegal"
        ended = self.random.random(2) < 0.1
        seen, info = self._seen()
        return seen, self.random.normal(), bool(ended[0]), bool(ended[1]), info


class Made:
    """Makes `Anything`."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __call__(self) -> Anything:
        return Anything(*self.arguments)


def trains_with_ratio_one(observations: Space, actions: Space, mask_in: MaskPlace, flags: dict[str, Any]) -> None:
    register_env("Anything", Made(observations, actions, mask_in))
    small: dict[str, Any] = {"encoder_mlp_layers": (8,), "encoder_conv_mlp_layers": (8,), "rnn_size": 4}
    with tempfile.TemporaryDirectory() as directory:
        lab = make_lab(Path(directory), "Anything", num_envs_per_worker=2, rollout=6, **small, **flags)
        roles = lab.build_all()
        learner: Learner = roles[0]
        ratios = []

        for _ in range(2):
            step_until(roles[1:], lambda: len(lab.slots.waiting_for(0)) == lab.slots.topology.num_groups)
            batch = learner.source.next()
            assert batch is not None
            with torch.no_grad():
                evaluation = learner.network.evaluate(
                    {name: leaf[:-1].flatten(0, 1) for name, leaf in batch.observations.items()},
                    batch.actions.flatten(0, 1),
                    Sequences(batch.initial_memory, batch.resets[:-1]),
                )
            ratios.append((evaluation.log_probs - batch.behavior_log_probs.flatten()).exp())
            learner._train(batch)
            assert learner.network.flat.isfinite().all()
        for role in roles:
            role.close()
    for ratio in ratios:
        torch.testing.assert_close(ratio, torch.ones_like(ratio), atol=1e-5, rtol=0)


ROUNDS = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.more
@pytest.mark.parametrize("model", MODELS, ids=["no-memory", "gru", "lstm"])
@ROUNDS
@given(observations=OBSERVATIONS, actions=ACTIONS)
def test_random_spaces_train_with_ratio_one(model: dict[str, Any], observations: Space, actions: Space) -> None:
    trains_with_ratio_one(observations, actions, "nowhere", model)


@pytest.mark.more
@pytest.mark.parametrize("model", MODELS, ids=["no-memory", "gru", "lstm"])
@ROUNDS
@given(observations=OBSERVATIONS, actions=MASKABLE, mask_in=st.sampled_from(["info", "observation"]))
def test_cx4_random_masks_train_with_ratio_one(
    model: dict[str, Any], observations: Space, actions: Space, mask_in: MaskPlace
) -> None:
    trains_with_ratio_one(observations, actions, mask_in, model)


@pytest.mark.more
@ROUNDS
@given(actions=nests(BOXES))
def test_tanh_keeps_actions_in_their_bounds_with_ratio_one(actions: Space) -> None:
    trains_with_ratio_one(spaces.Discrete(3), actions, "nowhere", {"action_bounds": "tanh"})
