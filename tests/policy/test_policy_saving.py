"""Policies out of a folder: they act as those that were saved, and what does not fit is refused."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

import sf
from sf.errors import CheckpointError
from sf.plugins import ENCODERS, register_model
from sf.policy import (
    CollectPolicy,
    GreedyPolicy,
    Policy,
    PolicySaver,
    RandomPolicy,
    TimeStep,
    TrainedPolicy,
    load_policy,
    load_variables,
    spec_of_action_space,
)
from sf.policy.nests import leaves, map_leaves
from sf.shared.messages import CheckpointSaved
from sf.spaces import EnvInfo
from sf.spaces.from_gymnasium import action_spec, observation_leaves
from sf.storage import sealed
from tests.helpers.policies import batch, network
from tests.helpers.spaces import BOX_ACTION, IMAGE, VECTOR

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


@pytest.mark.more
def test_b32_variables_are_the_same_in_every_process(tmp_path: Path) -> None:
    code = (
        "from tests.policy.test_policy_saving import KINDS\n"
        "print([(name, list(v.shape)) for name, v in KINDS['lstm']().variables().items()])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
            cwd=Path(__file__).parents[2],
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    own = [(name, list(v.shape)) for name, v in KINDS["lstm"]().variables().items()]
    assert outputs == {f"{own}\n"}


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


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_save_that_fails_at_any_rename_leaves_the_earlier_policy(
    tmp_path: Path, can_exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step that could lose it fails in turn, where a file system can exchange two names and where it cannot."""
    policy = TrainedPolicy(network())
    PolicySaver(policy, train_step=1).save(tmp_path / "p")
    rename, exchange, renames = Path.rename, sealed.exchange, 0

    def failing_rename(path: Path, target: Path) -> Path:
        nonlocal renames
        renames += 1
        if renames == fails_at:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return rename(path, target)

    def failing_exchange(one: Path, other: Path) -> None:
        if not can_exchange:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if fails_at == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        exchange(one, other)

    monkeypatch.setattr(Path, "rename", failing_rename)
    monkeypatch.setattr(sealed, "exchange", failing_exchange)
    for step in (1,) if can_exchange else (1, 2):
        renames, fails_at = 0, step
        with pytest.raises(CheckpointError, match=r"The policy was not saved in .*Input/output error"):
            PolicySaver(policy, train_step=2).save(tmp_path / "p")
        assert load_policy(tmp_path / "p").get_train_step() == 1
        assert [path.name for path in tmp_path.iterdir()] == ["p"]
    fails_at = -1
    PolicySaver(policy, train_step=2).save(tmp_path / "p")
    assert load_policy(tmp_path / "p").get_train_step() == 2
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


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
    for policy_id in (0, 10, 2):
        (tmp_path / f"checkpoint_p{policy_id}").mkdir()
    with pytest.raises(CheckpointError, match=r"There is no policy 3 in .*, expected one of policy_id=0, 2, 10\."):
        load_policy(tmp_path, policy_id=3)


class Mean(nn.Module):
    def __init__(self, shapes: Any, config: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        features: Tensor = self.layer(observations["obs"])
        return features


def test_a_registered_model_is_rebuilt_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ENCODERS, "registered", {})
    register_model("mean", Mean)
    policy = TrainedPolicy(network(encoder="mean"))
    PolicySaver(policy).save(tmp_path / "p")
    time_step = batch(policy, VECTOR)
    assert torch.equal(
        load_policy(tmp_path / "p").action(time_step, seed=1).action, policy.action(time_step, seed=1).action
    )
    ENCODERS.registered.clear()
    with pytest.raises(CheckpointError, match=r"encoder=mean is not registered .*Call sf.register_model\('mean'"):
        load_policy(tmp_path / "p")


def test_a_file_does_not_get_to_import_an_encoder(tmp_path: Path) -> None:
    PolicySaver(TrainedPolicy(network(encoder=f"{__name__}:Mean"))).save(tmp_path / "p")
    with pytest.raises(
        CheckpointError, match=r"which imports a module\. If you trust it, give --encoder=.*:Mean or call"
    ):
        load_policy(tmp_path / "p")
    ENCODERS.trust(f"{__name__}:Mean")
    try:
        load_policy(tmp_path / "p")
    finally:
        ENCODERS.registered.clear()


@pytest.mark.more
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


@pytest.mark.more
def test_the_path_of_a_checkpoint_that_a_callback_is_told_is_a_policy(tmp_path: Path) -> None:
    seen: list[Any] = []

    def on_checkpoint(saved: CheckpointSaved) -> None:
        seen.append((saved.path, load_policy(saved.path)))

    flags: dict[str, Any] = {"serial_mode": True, "async_rl": False, "num_workers": 1, "num_envs_per_worker": 4}
    result = sf.train(
        "CartPole-v1", train_dir=str(tmp_path), train_for_env_steps=2000, rollout=16, **flags,
        on_checkpoint=on_checkpoint,
    )  # fmt: skip
    path, policy = seen[-1]
    newest = load_policy(result.path)
    assert isinstance(policy, TrainedPolicy)
    assert isinstance(newest, TrainedPolicy)
    assert torch.equal(policy.network.flat, newest.network.flat)
    assert policy.get_train_step() == newest.get_train_step() > 0
    with pytest.raises(CheckpointError, match="There is no policy"):
        load_policy(Path(path).parent)
