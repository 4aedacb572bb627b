"""The policies around a network: in training, afterwards, and out of a folder."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributions import AffineTransform, Normal, TanhTransform, TransformedDistribution

from sf import models
from sf.config import ModelConfig
from sf.envs.actions import action_converter
from sf.envs.contract import describe
from sf.errors import CheckpointError
from sf.learner import sealed
from sf.models import register_model
from sf.policy import (
    ActorCritic,
    CollectInfo,
    CollectPolicy,
    GreedyPolicy,
    NumpyPolicy,
    Policy,
    PolicySaver,
    PolicyStep,
    RandomPolicy,
    TimeStep,
    TrainedPolicy,
    load_policy,
    load_variables,
    spec_of_action_space,
    to_tensors,
)
from sf.policy.leaf_distributions import SquashedNormal
from sf.policy.nests import leaves, leaves_with_paths, map_leaves
from sf.policy.specs import check_tensors
from sf.policy.steps import Trajectory
from sf.spaces import EnvInfo, action_spec, observation_leaves
from tests.lab import make_lab
from tests.test_policy import SPACES

IMAGE = spaces.Box(0, 255, (36, 36, 3), np.uint8)
VECTOR = spaces.Box(-1.0, 1.0, (3,))
BOX_ACTION = spaces.Box(np.array([-0.1, -2.0], np.float32), np.array([0.1, 1.0], np.float32))

MIXED_ACTION = spaces.Tuple((spaces.Discrete(2), BOX_ACTION))


def network(observation: Any = VECTOR, action: Any = None, **config: Any) -> ActorCritic:
    action = spaces.Discrete(4) if action is None else action
    info = EnvInfo("test", 1, observation_leaves(observation), action_spec(action))
    made = ActorCritic(info, ModelConfig(encoder_mlp_layers=(8,), encoder_conv_mlp_layers=(8,), rnn_size=6, **config))
    with torch.no_grad():  # heads begin near 0, which would make all actions alike
        made.policy_head.weight.mul_(100)
    return made


def batch(policy: Policy, space: Any, num: int = 5) -> TimeStep:
    space.seed(3)
    rows = [to_tensors(space.sample(), policy.time_step_spec.observation) for _ in range(num)]
    return TimeStep.first(map_leaves(lambda *parts: torch.stack(parts), *rows), num)


# ------------------------------------------------------------------------------------------------------------ training


@pytest.mark.parametrize("action", [spaces.Discrete(5), spaces.MultiDiscrete([2, 6]), BOX_ACTION, MIXED_ACTION])
def test_an_action_is_the_same_with_and_without_its_log_probability(action: Any) -> None:
    made, observations = network(action=action), {"obs": torch.randn(50, 3)}
    state = made.get_initial_state(50)
    generators = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    for greedy in (False, True):
        chosen, _ = made.choose(observations, state, generators[0], greedy)
        assert torch.equal(chosen, made.act(observations, state, generators[1], greedy).action)


def test_b24_collect_and_deployment_info() -> None:
    made = network()
    collect = CollectPolicy(made, emit_log_probability=True)
    step = collect.action(TimeStep.first({"obs": torch.randn(5, 3)}, 5))
    assert step.info.value_prediction.shape == step.info.log_probability.shape == (5,)
    assert step.info.action_params.shape == (5, 4)
    assert CollectPolicy(made).action(TimeStep.first({"obs": torch.randn(5, 3)}, 5)).info.log_probability == ()
    deployed = TrainedPolicy(made)
    assert deployed.info_spec == ()
    assert deployed.action(batch(deployed, VECTOR)).info == ()
    assert (collect.clip, deployed.clip) == (False, True)


def test_b24_a_learner_offers_both(tmp_path: Path) -> None:
    lab = make_lab(tmp_path)
    roles = lab.build_all()
    learner = roles[0]
    while learner.update.version == 0:
        for role in roles:
            role.step()
    assert learner.collect_policy.network is learner.network
    time_step = TimeStep.first(torch.randn(6, 4), 6)
    step = learner.collect_policy.action(time_step._replace(observation={"obs": time_step.observation}))
    assert step.info.log_probability.shape == step.info.value_prediction.shape == (6,)
    assert step.info.action_params.shape == (6, 2)
    assert torch.equal(learner.policy.action(time_step).action, step.info.action_params.argmax(-1))
    PolicySaver(learner.policy, train_step=learner.update.version).save(tmp_path / "now")
    assert torch.equal(load_policy(tmp_path / "now").action(time_step).action, learner.policy.action(time_step).action)
    for role in roles:
        role.close()


def test_b9_the_log_probability_belongs_to_the_unclipped_action() -> None:
    made = network(action=BOX_ACTION)
    collect = CollectPolicy(made, emit_log_probability=True)
    observations = {"obs": torch.randn(200, 3)}
    step = collect.action(TimeStep.first(observations, 200))
    assert (step.action.abs() > 0.1).any()
    evaluation = made.evaluate(observations, step.action)
    torch.testing.assert_close(evaluation.log_probs.detach(), step.info.log_probability)
    executed = np.stack(list(action_converter(BOX_ACTION, "clip")(step.action.numpy())))
    assert all(BOX_ACTION.contains(row) for row in executed)


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "sf/Couriers-v0"])
def test_b23_a_rollout_fits_the_trajectory_spec(env: str, tmp_path: Path) -> None:
    """What the roles leave in a slot, leaf by leaf."""
    lab = make_lab(tmp_path, env, use_rnn=True)
    learner, inference, worker = lab.build_all()
    slots = lab.slots
    while not (full := list(slots.waiting_for(0, 0))):
        worker.step()
        inference.step()
        if learner.update.version == 0 and inference.version < 0:
            learner.step()
    slot, spec = int(full[0]), CollectPolicy(learner.network, emit_log_probability=True).trajectory_spec
    steps = slots.topology.rollout
    ended = torch.from_numpy(slots.terminated[slot] | slots.truncated[slot])
    first = torch.from_numpy(np.vstack([np.zeros_like(ended[:1]), ended[:-1]]))
    step_type = torch.where(first, 0, 1).to(torch.int32)
    observation = {name: torch.from_numpy(array[slot, :steps]) for name, array in slots.observations.items()}
    with torch.no_grad():
        flat = {name: leaf.flatten(0, 1) for name, leaf in observation.items()}
        memory = torch.zeros(len(step_type.flatten()), learner.network.state_size)
        params = learner.network.forward(flat, memory)[0].unflatten(0, step_type.shape)
    stored = {
        name: torch.from_numpy(getattr(slots, name)[slot, :steps]) for name in ("actions", "log_probs", "rewards")
    }
    values = torch.from_numpy(slots.values[slot, :steps])
    trajectory = Trajectory(
        step_type,
        observation,
        stored["actions"],
        CollectInfo(stored["log_probs"], values, params),
        torch.where(ended, 2, 1).to(torch.int32),
        stored["rewards"],
        1.0 - torch.from_numpy(slots.terminated[slot, :steps]).to(torch.float32),
    )
    assert check_tensors(trajectory, spec, "trajectory") == tuple(step_type.shape)
    for role in (learner, inference, worker):
        role.close()


def test_b32_variables_are_the_same_in_every_process(tmp_path: Path) -> None:
    code = (
        "from tests.test_trained_policy import KINDS\n"
        "print([(name, list(v.shape)) for name, v in KINDS['lstm']().variables().items()])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
            cwd=Path(__file__).parent.parent,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    own = [(name, list(v.shape)) for name, v in KINDS["lstm"]().variables().items()]
    assert outputs == {f"{own}\n"}


def test_b6_distributions_of_the_collect_policy_are_those_of_training() -> None:
    made = network(action=spaces.MultiDiscrete([2, 3]))
    policy = CollectPolicy(made)
    time_step = TimeStep.first({"obs": torch.randn(5, 3)}, 5)
    distribution = policy.distribution(time_step).action
    actions = distribution.sample()
    evaluation = made.evaluate(time_step.observation, actions)
    assert torch.equal(distribution.log_prob(actions), evaluation.log_probs)
    assert torch.equal(distribution.entropy(), evaluation.entropy)
    assert torch.equal(distribution.mode, made.act(time_step.observation, greedy=True).action)


def test_b18_masks_reach_the_network_and_its_gradient_is_zero() -> None:
    observation = spaces.Dict({"obs": VECTOR, "action_mask": spaces.MultiBinary(4)})
    made = network(observation)
    for policy in (TrainedPolicy(made), CollectPolicy(made)):
        assert policy.observation_and_action_constraint_splitter is not None
        mask = torch.tensor([0, 1, 0, 1], dtype=torch.int8).expand(10_000, 4)
        time_step = TimeStep.first({"obs": torch.randn(10_000, 3), "action_mask": mask}, 10_000)
        assert set(policy.action(time_step).action.tolist()) == {1, 3}
    distribution = CollectPolicy(made).distribution(time_step).action
    distribution.log_prob(torch.ones(10_000, dtype=torch.int64)).sum().backward()
    gradient = made.policy_head.weight.grad
    assert gradient is not None
    assert not gradient[[0, 2]].any()
    assert gradient[[1, 3]].any()


# ---------------------------------------------------------------------------------------------------------- deployment


@given(observation=SPACES, action=SPACES, seed=st.integers(0, 99), rnn=st.sampled_from(["", "gru", "lstm"]))
@settings(max_examples=60, deadline=None)
def test_any_space_and_memory_gives_actions_of_the_environment(
    observation: Any, action: Any, seed: int, rnn: str
) -> None:
    model: dict[str, Any] = {"use_rnn": True, "rnn_type": rnn, "rnn_num_layers": 2} if rnn else {}
    made = network(observation, action, **model)
    policy = TrainedPolicy(made)
    observation.seed(seed)
    time_step, state = batch(policy, observation), policy.get_initial_state(5)
    stored = made.choose(
        {name: _at(time_step.observation, leaf.path) for name, leaf in made.info.observations.items()},
        made.get_initial_state(5),
        torch.Generator().manual_seed(seed),
    )[0]
    step = policy.action(time_step, state, seed)
    check_tensors(step, policy.policy_step_spec, "step")
    for row, expected in enumerate(action_converter(action, "clip")(stored.numpy())):
        for path, leaf in leaves_with_paths(expected):
            np.testing.assert_allclose(np.asarray(leaf), _at(step.action, path)[row].numpy(), rtol=1e-6)
    single = map_leaves(lambda leaf: leaf[0], TimeStep(*time_step))
    unbatched = policy.action(single, policy.get_initial_state(), seed)
    assert check_tensors(unbatched, policy.policy_step_spec, "step") == ()
    drawn = policy.distribution(time_step, state)
    sampled = map_leaves(lambda leaf: leaf.sample(), drawn.action)
    assert check_tensors(sampled, policy.action_spec, "sample") == (5,)
    alone = policy.distribution(single, policy.get_initial_state())
    assert check_tensors(map_leaves(lambda leaf: leaf.sample(), alone.action), policy.action_spec, "sample") == ()
    emitting = TrainedPolicy(made, emit_log_probability=True).action(time_step, state)
    assert all(leaf.shape == (5,) for leaf in leaves(emitting.info.log_probability))


def _at(nest: Any, path: Any) -> Any:
    for key in path:
        nest = nest[key]
    return nest


@pytest.mark.parametrize("action", [spaces.Discrete(4, start=3), spaces.MultiDiscrete([2, 3]), BOX_ACTION])
def test_distributions_of_the_deployment_policy_are_those_of_training(action: Any) -> None:
    made = network(action=action)
    policy = TrainedPolicy(made, clip=False)
    time_step = batch(policy, VECTOR)
    step = policy.action(time_step, seed=1)
    start = getattr(action, "start", 0)
    stored = step.action - (torch.as_tensor(start) if np.any(start) else 0)
    expected = made.evaluate({"obs": time_step.observation}, stored)
    distribution = policy.distribution(time_step).action
    torch.testing.assert_close(distribution.log_prob(step.action), expected.log_probs)
    greedy = GreedyPolicy(policy)
    torch.testing.assert_close(greedy.action(time_step).action, distribution.mode)


def test_squashed_actions_lie_in_their_bounds_and_have_a_density() -> None:
    policy = TrainedPolicy(network(action=BOX_ACTION), "tanh", emit_log_probability=True)
    low, high = torch.tensor(BOX_ACTION.low), torch.tensor(BOX_ACTION.high)
    fast = TrainedPolicy(policy.network, "tanh")
    time_step = batch(policy, VECTOR, 50)
    for step in (policy.action(time_step), fast.action(time_step)):
        assert all(BOX_ACTION.contains(row) for row in step.action.numpy())
    assert policy.action(time_step).info.log_probability.isfinite().all()
    reference = TransformedDistribution(
        Normal(torch.tensor([0.3, -0.7]), torch.tensor([0.5, 2.0])),
        [TanhTransform(), AffineTransform(torch.tensor([0.0, -0.5]), torch.tensor([0.1, 1.5]))],
    )
    ours = SquashedNormal(reference.base_dist.mean, reference.base_dist.stddev, low, high, 1)
    inside = torch.tensor([[0.05, 0.2], [-0.09, -1.9]])
    expected = reference.log_prob(inside).sum(-1)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(ours.log_prob(inside), expected, atol=1e-4, rtol=1e-4)
    for mean, std in ((12.0, 1.0), (-30.0, 0.1), (0.0, 20.0)):
        extreme = SquashedNormal(torch.full((100, 2), mean), torch.full((100, 2), std), low, high, 1)
        drawn = extreme.sample()
        assert extreme.log_prob(drawn).isfinite().all()
        assert extreme.log_prob(drawn.clone()).isfinite().all()
    mode = GreedyPolicy(fast).action(time_step).action
    torch.testing.assert_close(mode, fast.distribution(time_step).action.mode)
    mean = fast.network.act({"obs": time_step.observation}, greedy=True).action
    torch.testing.assert_close(mode, (low + high) / 2 + (high - low) / 2 * mean.tanh())


@pytest.mark.parametrize(("rnn_type", "names"), [("gru", {"hidden"}), ("lstm", {"hidden", "cell"})])
@pytest.mark.parametrize("shared", [True, False])
def test_b31_memory_is_that_of_the_network(rnn_type: str, names: set[str], shared: bool) -> None:
    made = network(use_rnn=True, rnn_type=rnn_type, rnn_num_layers=2, actor_critic_share_weights=shared)
    policy, collect = TrainedPolicy(made), CollectPolicy(made)
    assert {name: spec.shape for name, spec in policy.policy_state_spec.items()} == dict.fromkeys(names, (2, 6))
    state, memory = policy.get_initial_state(5), collect.get_initial_state(5)
    for _ in range(3):
        time_step = batch(policy, VECTOR)._replace(step_type=torch.ones(5, dtype=torch.int32))
        stored = time_step._replace(observation={"obs": time_step.observation})
        own, theirs = policy.action(time_step, state, 3), collect.action(stored, memory, 3)
        assert torch.equal(own.action, theirs.action)
        state, memory = own.state, theirs.state
    last_hidden = memory[:, 6:12] if rnn_type == "gru" else memory[:, 12:18]
    assert torch.equal(state["hidden"][:, 1], last_hidden)


@pytest.mark.parametrize("model", [{}, {"use_rnn": True, "rnn_type": "lstm"}])
def test_b26_the_plain_loop(model: dict[str, Any]) -> None:
    env = gymnasium.make("CartPole-v1")
    policy = NumpyPolicy(TrainedPolicy(ActorCritic(describe(env, "CartPole-v1"), ModelConfig(**model))))
    state = policy.get_initial_state()
    time_step = TimeStep.first(env.reset(seed=0)[0])
    num_steps = 0
    while time_step.step_type != 2:
        step = policy.action(time_step, state)
        observation, reward, terminated, truncated, _ = env.step(step.action)
        time_step, state = TimeStep.after(observation, reward, terminated, truncated), step.state
        num_steps += 1
    assert num_steps > 5
    assert time_step.discount == 0.0
    env.close()


@pytest.mark.parametrize("space", [BOX_ACTION, spaces.Discrete(3), spaces.Dict(a=spaces.Discrete(2), b=BOX_ACTION)])
def test_b29_numpy_policy_takes_and_gives_single_arrays(space: Any) -> None:
    inner = TrainedPolicy(network(action=space, use_rnn=True))
    policy = NumpyPolicy(inner)
    policy.action(TimeStep.first(np.zeros(3, np.float32)[::-1]), policy.get_initial_state(), seed=np.int64(5))  # type: ignore[arg-type]
    step = policy.action(TimeStep.first(np.zeros(3)), policy.get_initial_state(), seed=5)
    for array, spec in zip(leaves(step.action), leaves(inner.action_spec), strict=True):
        assert isinstance(array, np.ndarray)
        assert array.shape == spec.shape
    assert step.state["hidden"].shape == (1, 6)
    with pytest.raises(ValueError, match=r"observation.* has shape \[1, 4\], expected \[3\]"):
        policy.action(TimeStep.first(np.zeros(4)), policy.get_initial_state())
    with pytest.raises(ValueError, match=r"policy_state is \(\), which means nothing, expected a dict"):
        policy.action(TimeStep.first(np.zeros(3)))


# -------------------------------------------------------------------------------------------------------------- saving


UNSORTED = spaces.Dict(z=spaces.Discrete(4), a=BOX_ACTION)
"""Gymnasium sorts the keys of a dict, but not those of keyword arguments."""

KINDS: dict[str, Any] = {
    "discrete": lambda: TrainedPolicy(network()),
    "lstm": lambda: TrainedPolicy(network(use_rnn=True, rnn_type="lstm", normalize_input=True)),
    "separate": lambda: TrainedPolicy(network(actor_critic_share_weights=False, use_rnn=True)),
    "tanh": lambda: TrainedPolicy(network(action=BOX_ACTION), "tanh"),
    "image": lambda: TrainedPolicy(network(IMAGE)),
    "unsorted": lambda: TrainedPolicy(network(spaces.Dict(z=VECTOR, a=spaces.Box(-9.0, 9.0, (2,))), UNSORTED)),
    "greedy": lambda: GreedyPolicy(TrainedPolicy(network()), name="best"),
    "collect": lambda: CollectPolicy(network(), emit_log_probability=True),
    "random": lambda: RandomPolicy(TrainedPolicy(network()).time_step_spec, spec_of_action_space(UNSORTED)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_b27_a_loaded_policy_acts_bit_by_bit_like_the_saved_one(kind: str, tmp_path: Path) -> None:
    policy: Policy = KINDS[kind]()
    with torch.no_grad():
        for variable in policy.variables().values():
            variable.add_(torch.rand_like(variable) * 0.1)
    PolicySaver(policy, train_step=7, metadata={"env": "mine", "scores": [1, 2.5]}).save(tmp_path / "policy")
    loaded = load_policy(tmp_path / "policy")
    assert (loaded.get_train_step(), loaded.metadata) == (7, {"env": "mine", "scores": [1, 2.5]})
    assert (loaded.name, loaded.policy_step_spec) == (policy.name, policy.policy_step_spec)
    assert loaded.time_step_spec == policy.time_step_spec
    numbers = iter(range(1, 9))  # every leaf another one, so that none can stand for another
    observation = map_leaves(
        lambda spec: torch.full((6, *spec.shape), next(numbers), dtype=spec.dtype), policy.time_step_spec.observation
    )
    time_step, state = TimeStep.first(observation, 6), policy.get_initial_state(6)
    for seed in range(3):
        one, other = policy.action(time_step, state, seed), loaded.action(time_step, state, seed)
        assert all(torch.equal(*pair) for pair in zip(leaves(one), leaves(other), strict=True))
        state = one.state
    assert set(path.suffix for path in (tmp_path / "policy").iterdir()) == {".json", ".safetensors"}


def test_b27_train_step_batch_size_and_state(tmp_path: Path) -> None:
    policy = TrainedPolicy(network())
    for size in (0, -3, 2.5, True, "3"):
        with pytest.raises(ValueError, match=f"batch_size={size!r}, expected None or an integer above 0"):
            PolicySaver(policy, batch_size=size)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="train_step='x', expected None or an integer"):
        PolicySaver(policy, train_step="x")  # type: ignore[arg-type]
    PolicySaver(policy, batch_size=4).save(tmp_path / "p")
    loaded = load_policy(tmp_path / "p")
    assert loaded.get_train_step() == -1
    assert policy.get_train_step() == -1
    loaded.action(batch(policy, VECTOR, 4), ())
    loaded.action(batch(policy, VECTOR, 4))
    with pytest.raises(ValueError, match=r"was saved for batches of 4, found \[5\]"):
        loaded.action(batch(policy, VECTOR, 5))
    for metadata in ({"x": object()}, {1: 2, "a": 3}):
        with pytest.raises(ValueError, match="metadata cannot be written as JSON"):
            PolicySaver(policy, metadata=metadata)  # type: ignore[arg-type]
    again = PolicySaver(GreedyPolicy(loaded)).policy
    assert again.batch_size == 4


def test_loading_draws_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = TrainedPolicy(network(IMAGE, use_rnn=True))
    PolicySaver(policy).save(tmp_path / "p")
    drawn: list[Tensor] = []
    monkeypatch.setattr(nn.init, "orthogonal_", lambda weight, gain=1.0: drawn.append(weight))
    assert load_policy(tmp_path / "p").variables().keys() == policy.variables().keys()
    assert not drawn
    network()
    assert drawn, "a new one draws them"


def test_b28_a_checkpoint_updates_a_policy_that_is_there(tmp_path: Path) -> None:
    policy = TrainedPolicy(network())
    saver = PolicySaver(policy)
    saver.save(tmp_path / "policy")
    loaded = load_policy(tmp_path / "policy")
    assert isinstance(loaded, TrainedPolicy)
    with torch.no_grad():
        policy.network.flat.mul_(1.5)
    saver.save_checkpoint(tmp_path / "later")
    assert not torch.equal(loaded.network.flat, policy.network.flat)
    load_variables(loaded, tmp_path / "later")
    assert torch.equal(loaded.network.flat, policy.network.flat)
    both = load_policy(tmp_path / "policy", checkpoint=tmp_path / "later")
    time_step = batch(policy, VECTOR)
    assert torch.equal(both.action(time_step, seed=1).action, policy.action(time_step, seed=1).action)
    other = PolicySaver(TrainedPolicy(network(action=spaces.Discrete(2)))).save_checkpoint(tmp_path / "other")
    with pytest.raises(CheckpointError, match=r"do not fit TrainedPolicy:\n.*policy_head"):
        load_variables(loaded, other)
    assert torch.equal(loaded.network.flat, policy.network.flat)


def test_saving_again_replaces_and_nothing_else_is_overwritten(tmp_path: Path) -> None:
    policy = TrainedPolicy(network())
    for step in (1, 2):
        PolicySaver(policy, train_step=step).save(tmp_path / "p")
    assert load_policy(tmp_path / "p").get_train_step() == 2
    assert [path.name for path in tmp_path.iterdir()] == ["p"]
    foreign = tmp_path / "own"
    foreign.mkdir()
    (foreign / "notes.txt").write_text("mine")
    PolicySaver(policy).save(tmp_path / "with_notes")
    (tmp_path / "with_notes/notes.txt").write_text("mine")
    sealed_by_others = tmp_path / "app"
    sealed_by_others.mkdir()
    (sealed_by_others / "manifest.json").write_text("{}")
    checkpoint = PolicySaver(policy).save_checkpoint(tmp_path / "variables")
    (tmp_path / "file").write_text("")
    for directory in (foreign, tmp_path / "with_notes", sealed_by_others, checkpoint, tmp_path / "file"):
        with pytest.raises(CheckpointError, match=f"{directory} exists and was not written by PolicySaver"):
            PolicySaver(policy).save(directory)
    with pytest.raises(CheckpointError, match="was not written by PolicySaver"):
        PolicySaver(policy).save_checkpoint(tmp_path / "p")
    assert load_policy(tmp_path / "p").get_train_step() == 2


def test_a_policy_of_ones_own_class_is_refused_before_anything_is_written() -> None:
    class Own(TrainedPolicy):
        pass

    class Other(Policy):
        pass

    spec = TrainedPolicy(network())
    for policy in (Own(network()), Other(spec.time_step_spec, spec.action_spec), GreedyPolicy(Own(network()))):
        with pytest.raises(TypeError, match=r"but (Own|Other) is a class of its own"):
            PolicySaver(policy)


def _break(folder: Path, name: str, change: Any) -> None:
    """Changes a file and seals the folder again, as another program would."""
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != sealed.MANIFEST}
    files[name] = change(files[name])
    for path in list(folder.iterdir()):
        path.unlink()
    sealed.write(folder, files)


def _edit(**entries: Any) -> Any:
    return lambda text: json.dumps(json.loads(text) | entries).encode()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda p: (p / "variables.safetensors").write_bytes(b"x"),
            "cannot be loaded: variables.safetensors has 1 bytes",
        ),
        (lambda p: (p / "variables.safetensors").unlink(), "variables.safetensors is missing"),
        (lambda p: (p / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda p: _break(p, "policy.json", _edit(format=2)), "format 2, but this version of sf reads up to 1"),
        (lambda p: _break(p, "policy.json", _edit(policy={"kind": "x", "options": {}})), "unknown kind of policy 'x'"),
        (lambda p: _break(p, "policy.json", lambda _: b"[]"), "is not one that this version of sf has written"),
        (lambda p: _break(p, "policy.json", lambda _: b"{"), "is not one that this version of sf has written"),
        (lambda p: _break(p, "variables.safetensors", lambda _: b"PK"), "The variables in .* cannot be used"),
    ],
)
def test_damaged_and_foreign_folders(damage: Any, message: str, tmp_path: Path) -> None:
    folder = PolicySaver(TrainedPolicy(network())).save(tmp_path / "p")
    damage(folder)
    with pytest.raises(CheckpointError, match=message):
        load_policy(folder)


def test_a_folder_without_policy_and_an_unknown_option(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"There is no policy in .*: expected policy.json as PolicySaver writes it"
    ):
        load_policy(tmp_path)
    with pytest.raises(TypeError, match=r"load_policy\(\) has no option greedy\. There are clip"):
        load_policy(tmp_path, greedy=True)


class Mean(nn.Module):
    def __init__(self, shapes: Any, config: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        features: Tensor = self.layer(observations["obs"])
        return features


def test_a_registered_model_is_rebuilt_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_registered", {})
    register_model("mean", Mean)
    policy = TrainedPolicy(network(encoder="mean"))
    PolicySaver(policy).save(tmp_path / "p")
    time_step = batch(policy, VECTOR)
    assert torch.equal(
        load_policy(tmp_path / "p").action(time_step, seed=1).action, policy.action(time_step, seed=1).action
    )
    models._registered.clear()
    with pytest.raises(CheckpointError, match=r"encoder=mean is not registered .*Call sf.register_model\('mean'"):
        load_policy(tmp_path / "p")


def test_a_file_does_not_get_to_import_an_encoder(tmp_path: Path) -> None:
    PolicySaver(TrainedPolicy(network(encoder=f"{__name__}:Mean"))).save(tmp_path / "p")
    with pytest.raises(
        CheckpointError, match=r"which imports a module\. If you trust it, give --encoder=.*:Mean or call"
    ):
        load_policy(tmp_path / "p")
    models.trust_encoder(f"{__name__}:Mean")
    try:
        load_policy(tmp_path / "p")
    finally:
        models._registered.clear()


def test_a_copy_has_variables_of_its_own() -> None:
    policy = TrainedPolicy(network())
    target = copy.deepcopy(policy)
    assert torch.equal(target.network.flat, policy.network.flat)
    with torch.no_grad():
        policy.network.flat.add_(1.0)
    before = target.network.flat.clone()
    target.update(policy, tau=0.5)
    torch.testing.assert_close(target.network.flat, before + 0.5)


def test_what_masks_are_not_for() -> None:
    observation = spaces.Dict({"obs": VECTOR, "action_mask": spaces.MultiBinary(6)})
    action = spaces.Tuple((spaces.Discrete(4), spaces.Discrete(2)))
    trained = TrainedPolicy(network(observation, action))  # the network reads the mask, for any action
    GreedyPolicy(trained)
    with pytest.raises(NotImplementedError, match="Masks are for one leaf of bounded integers"):
        RandomPolicy(trained.time_step_spec, trained.action_spec)
    with pytest.raises(NotImplementedError, match="a splitter of your own would have no effect"):
        TrainedPolicy(network(), observation_and_action_constraint_splitter=lambda x: (x, None))


def test_a_saved_policy_needs_neither_the_environment_nor_the_training_configuration(tmp_path: Path) -> None:
    policy = TrainedPolicy(network(IMAGE, use_rnn=True))
    PolicySaver(policy).save(tmp_path / "p")
    code = (
        "import sys; sys.modules['gymnasium'] = None\n"
        "import torch; from sf import load_policy; from sf.policy import TimeStep\n"
        f"policy = load_policy({str(tmp_path / 'p')!r})\n"
        "time_step = TimeStep.first(torch.zeros(2, 36, 36, 3, dtype=torch.uint8), 2)\n"
        "step = policy.action(time_step, policy.get_initial_state(2))\n"
        "print(list(step.action.shape))"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert finished.stdout == "[2]\n", finished.stderr


def test_options_of_loading(tmp_path: Path) -> None:
    PolicySaver(TrainedPolicy(network(action=BOX_ACTION))).save(tmp_path / "p")
    policy = load_policy(tmp_path / "p", emit_log_probability=True, clip=False, validate_args=False)
    assert (policy.clip, policy.emit_log_probability, policy.validate_args) == (False, True, False)
    assert policy.action(batch(policy, VECTOR)).info.log_probability.shape == (5,)


def test_info_round_trip_of_nested_actions() -> None:
    action = spaces.Dict(a=spaces.Tuple((spaces.Discrete(2), BOX_ACTION)), b=spaces.MultiBinary(3))
    info = EnvInfo("test", 1, observation_leaves(VECTOR), action_spec(action))
    assert EnvInfo.from_json(json.loads(json.dumps(info.to_json()))) == info
    assert replace(info, env_id="other") != info


def test_policy_step_type_is_a_named_tuple() -> None:
    assert PolicyStep(1) == (1, (), ())
