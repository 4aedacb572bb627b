"""Encoders: those that come along, and those that users register."""

from __future__ import annotations

import copy
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sf.config import ModelConfig
from sf.config.written_out import missing_layers
from sf.learner.update import Update
from sf.nets.networks import Encoder, make_mlp
from sf.plugins import ENCODERS, plugins_to_send, register_model
from sf.policy import ActorCritic
from sf.spaces import ActionSpec, EnvInfo, LeafSpec
from tests.helpers.commands import ROOT, TIMEOUT_S
from tests.helpers.lab import make_lab, step_until
from tests.helpers.updates import act, learner_config, make_policy, train

INFO = EnvInfo(
    "test", 1, {"obs": LeafSpec((3, 40, 36), "uint8"), "speed": LeafSpec((2,), "float32")}, ActionSpec.discrete(2)
)


class Mean(nn.Module):
    """The mean of the picture beside the vector."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], config: ModelConfig) -> None:
        super().__init__()
        self.layer = nn.Linear(1 + shapes["speed"][0], config.encoder_mlp_layers[0])

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        features: Tensor = self.layer(
            torch.cat([observations["obs"].mean((1, 2, 3))[:, None], observations["speed"]], -1)
        )
        return features.tanh()


class OneLayer(nn.Module):
    """For vectors."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], config: ModelConfig) -> None:
        super().__init__()
        self.layer = nn.Linear(shapes["obs"][0], 8)

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        features: Tensor = self.layer(observations["obs"])
        return features.relu()


def random_observations(rows: int) -> dict[str, Tensor]:
    return {"obs": torch.randint(0, 256, (rows, 3, 40, 36), dtype=torch.uint8), "speed": torch.randn(rows, 2)}


@pytest.mark.parametrize("shared", [True, False])
def test_registered_encoder_is_part_of_the_policy(shared: bool) -> None:
    register_model("mean", Mean)
    policy = ActorCritic(INFO, ModelConfig(encoder="mean", actor_critic_share_weights=shared))
    assert isinstance(policy.encoder, Mean)
    assert policy.policy_head.in_features == 64
    observations = random_observations(5)
    step = policy.act(observations)
    evaluation = policy.evaluate(observations, step.action.clone())
    assert torch.equal(evaluation.log_probs.detach(), step.info.log_probability)
    torch.autograd.backward(evaluation.log_probs.sum())
    assert torch.count_nonzero(policy.flat_gradient[: policy.encoder.layer.weight.numel()])


class Dropping(OneLayer):
    """Drops features at random."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], config: ModelConfig) -> None:
        super().__init__(shapes, config)
        self.dropout = nn.Dropout(0.3)

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        features: Tensor = self.dropout(super().forward(observations))
        return features


class AlwaysDropping(Dropping):
    """Also while it acts, as its `train` says."""

    def train(self, mode: bool = True) -> AlwaysDropping:
        return super().train(True)


@pytest.mark.parametrize("copied", [False, True])
def test_a_network_that_drops_at_random_acts_as_it_trains(copied: bool) -> None:
    """All ratios of an unchanged policy are 1, and `strict` refuses anything else (row C-R1)."""
    register_model("dropping", Dropping)
    policy = make_policy(encoder="dropping")
    update = Update(copy.deepcopy(policy) if copied else policy, learner_config(strict=True, num_epochs=2))
    assert len(train(update, act(policy))) == 2
    assert not any(module.training for module in update.policy.modules())


def test_an_encoder_decides_for_itself_whether_it_drops() -> None:
    register_model("always-dropping", AlwaysDropping)
    policy = make_policy(encoder="always-dropping")
    observations = {"obs": torch.ones(200, 4)}
    assert policy.act(observations, greedy=True).info.action_params.unique(dim=0).shape[0] > 1


@pytest.mark.parametrize("name", ["one-layer", "tests.nets.test_models:OneLayer"])
def test_registered_encoder_trains(tmp_path: Path, name: str) -> None:
    register_model("one-layer", OneLayer)
    lab = make_lab(tmp_path, "CartPole-v1", encoder=name)
    roles = lab.build_all()
    step_until(roles, lambda: roles[0].record["iterations"] >= 2)
    assert type(roles[0].network.encoder).__name__ == "OneLayer"
    for role in roles:
        role.close()


@pytest.mark.more
def test_documented_encoder_is_found_in_the_working_directory(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n# my_model.py\n(.*?)```", (Path(ROOT) / "docs/models.md").read_text(), re.S)
    (tmp_path / "my_model.py").write_text(code)
    (tmp_path / "bin").mkdir()
    for command in ("train", "evaluate"):
        script = f"import sys\nfrom sf.cli.{command} import main\nif __name__ == '__main__':\n    sys.exit(main())\n"
        (tmp_path / "bin" / command).write_text(script)
    flags = ["--encoder=my_model:Attention"]

    def call(command: str, *arguments: str) -> None:
        """As a console script, whose own directory is the first of sys.path."""
        subprocess.run(
            [sys.executable, f"bin/{command}", *arguments, *flags], check=True, cwd=tmp_path, timeout=TIMEOUT_S,
            env=os.environ | {"PYTHONPATH": ROOT},
        )  # fmt: skip

    call("train", "--env=CartPole-v1", "--train_for_env_steps=2000", "--num_workers=1", "--serial_mode=False")
    call("evaluate", "CartPole-v1", "--num_episodes=2", "--num_workers=2")


def test_plugins_without_a_module_of_their_own_are_sent_with_their_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ENCODERS, "registered", {"lambda": lambda shapes, config: (shapes, 7), "plain": OneLayer})
    sent = pickle.loads(pickle.dumps(plugins_to_send()))
    found, plain = (sent[0][name] for name in ("lambda", "plain"))
    assert found("shapes", None) == ("shapes", 7)
    assert plain is OneLayer


def test_registering_needs_no_torch() -> None:
    code = "import sys, sf; sf.register_model('x', dict); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("architecture", "shape", "size"),
    [
        ("convnet_simple", (3, 84, 84), 128 * 4 * 4),
        ("convnet_atari", (4, 84, 84), 64 * 7 * 7),
        ("resnet_impala", (4, 84, 84), 32 * 11 * 11),
        ("resnet_impala", (3, 16, 20), 32 * 2 * 3),
        ("convnet_microrts", (27, 16, 16), 32 * 6 * 6),
    ],
)
def test_image_encoders(architecture: Any, shape: tuple[int, ...], size: int) -> None:
    info = EnvInfo("test", 1, {"obs": LeafSpec(shape, "uint8")}, ActionSpec.discrete(2))
    config = ModelConfig(encoder_conv_architecture=architecture, nonlinearity="relu", encoder_conv_mlp_layers=(16,))
    policy = ActorCritic(info, config)
    (encoder,) = policy.encoder.image_encoders  # type: ignore[misc]
    assert encoder.mlp.layers[0].in_features == size
    assert policy.values({"obs": torch.randint(0, 256, (3, *shape), dtype=torch.uint8)}).shape == (3,)


def test_impala_resnet_has_fifteen_convolutions() -> None:
    """Three sections of one entry and two residual blocks of two (figure 3 of the IMPALA paper, right)."""
    info = EnvInfo("test", 1, {"obs": LeafSpec((3, 64, 64), "uint8")}, ActionSpec.discrete(2))
    policy = ActorCritic(info, ModelConfig(encoder_conv_architecture="resnet_impala"))
    assert sum(isinstance(module, nn.Conv2d) for module in policy.modules()) == 15


def test_each_vector_can_have_layers_of_its_own() -> None:
    shapes = {"a": (3,), "b": (5,), "image": (3, 40, 40)}
    config = ModelConfig(encoder_mlp_layers=(8, 6), encoder_per_key=True)
    encoder = Encoder(shapes, config)
    assert encoder.num_features == 6 + 6 + 512
    observations = {name: torch.randn(2, *shape, requires_grad=True) for name, shape in shapes.items()}
    features = encoder(observations)
    assert features.shape == (2, encoder.num_features)
    features[:, 512:518].sum().backward()
    assert observations["a"].grad is not None
    assert observations["b"].grad is None or not observations["b"].grad.any()
    together = Encoder(shapes, ModelConfig(encoder_mlp_layers=(8, 6)))
    assert together.num_features == 6 + 512


def test_layers_are_normalized_before_the_nonlinearity() -> None:
    mlp = make_mlp(3, (8, 5), ModelConfig(layer_norm=True, nonlinearity="relu"))
    x = torch.randn(4, 3)
    expected = x
    for layer in mlp.layers:
        out = layer(expected)
        centred = out - out.mean(1, keepdim=True)
        expected = (centred / (out.var(1, correction=0, keepdim=True) + 1e-5).sqrt()).relu()
    torch.testing.assert_close(mlp(x), expected)
    assert missing_layers(ModelConfig(layer_norm=True)) == ["layer_norm=True"]  # NumPy does not act with it
