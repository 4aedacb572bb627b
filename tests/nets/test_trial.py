"""The trial of an encoder before a run: which are taken, and how the others are refused."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sf.config import ModelConfig
from sf.errors import ConfigError
from sf.nets.networks import make_encoder
from sf.plugins import ENCODERS, plugins_to_send
from sf.policy import ActorCritic
from tests.helpers.commands import run
from tests.nets.test_models import INFO


class Flat(nn.Module):
    """Forgets the axis of the features."""

    def __init__(self, shapes: Any, config: Any) -> None:
        super().__init__()

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        return observations["speed"].sum(-1)


def flat(shapes: Any, config: Any) -> Any:
    """Makes no module."""
    return {}


class Raising(Flat):
    """Takes a leaf that is not there."""

    def __init__(self, shapes: Any, config: Any) -> None:
        super().__init__(shapes, config)
        self.layer = nn.Linear(shapes["nothing"][0], 8)


class RaisingLater(Flat):
    """Gives torch what it does not take."""

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        return torch.sum(observations)  # type: ignore[call-overload,no-any-return]


class Normalizing(Flat):
    """Counts batches in int64."""

    def __init__(self, shapes: Any, config: Any) -> None:
        super().__init__(shapes, config)
        self.norm = nn.BatchNorm1d(2)


def double(shapes: Any, config: Any) -> Any:
    """Weights of float64."""
    return nn.Linear(2, 2).double()


class Pair(Flat):
    """Features and something else."""

    def forward(self, observations: dict[str, Tensor]) -> Any:
        return observations["speed"], None


class Remembering(Flat):
    """Its features depend on those of the call before."""

    last: Any = 0.0

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        self.last = observations["speed"] + 0.5 * self.last if torch.is_tensor(self.last) else observations["speed"]
        self.last = self.last[: len(observations["speed"])].mean(0, keepdim=True)
        found: Tensor = observations["speed"] + self.last
        return found


class Mixing(Flat):
    """The features of a row depend on the rows beside it."""

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        return observations["speed"] - observations["speed"].mean(0, keepdim=True)


class Noisy(Flat):
    """Draws numbers, as noisy networks do."""

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        return observations["speed"] + torch.randn_like(observations["speed"])


@pytest.mark.more
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:Nothing", "names the module no_such_module, which cannot be found"),
        ("tests.nets.test_trial:Raising", "Raising raised KeyError in its construction"),
        (":Nothing", "encoder=:Nothing is no module:Name"),
        ("my-models:Nothing", "names the module my-models, which cannot be found"),
    ],
)
def test_encoder_that_does_not_work_is_refused_before_anything_is_made(tmp_path: Path, name: str, message: str) -> None:
    refused = run(tmp_path, "--env=CartPole-v1", f"--encoder={name}")
    assert refused.code == 2
    assert message in refused.err
    assert not (tmp_path / "train_dir").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nobody", r"encoder=nobody is not registered \(registered: .*\)\. Call sf\.register_model\('nobody'"),
        (
            "tests.nets.test_trial:Nothing",
            r"names Nothing, but .*test_trial\.py has no such class or function\. Correct one",
        ),
        (
            "no_such_module:Nothing",
            r"names the module no_such_module, which cannot be found\. .*in the working directory",
        ),
        (
            "tests.helpers.broken_encoder:Mean",
            r"raised NameError in the import of tests\.helpers\.broken_encoder\..*(?s:.*)'no_such_name'",
        ),
        ("tests.nets.test_trial:Flat", r"into torch\.float32\[2\], expected features torch\.float32\[2, n\]"),
        (
            "tests.nets.test_trial:flat",
            r"encoder=tests\.nets\.test_trial:flat made a dict, expected a torch\.nn\.Module",
        ),
        (
            "tests.nets.test_trial:Raising",
            r"Raising raised KeyError in its construction\. (?s:.*)shapes\[\"nothing\"\]",
        ),
        (
            "tests.nets.test_trial:RaisingLater",
            r"^encoder=tests\.nets\.test_trial:RaisingLater raised TypeError in forward\.",
        ),
        (
            "tests.nets.test_trial:Normalizing",
            r"num_batches_tracked \(torch\.int64\), expected float32 only\. .* LayerNorm",
        ),
        (
            "tests.nets.test_trial:double",
            r"holds weight \(torch\.float64\), bias \(torch\.float64\), expected float32 only",
        ),
        ("tests.nets.test_trial:Pair", r"turned 2 observations into tuple, expected features"),
        ("tests.nets.test_trial:Remembering", r"other features in a second call, .*For a memory use --use_rnn=True"),
        ("tests.nets.test_trial:Mixing", r"other features with others beside it than alone"),
    ],
)
def test_unknown_or_unfit_encoder_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ActorCritic(INFO, ModelConfig(encoder=name))


class Settled(Flat):
    """Counts and drops in training mode alone, and mixes rows behind that."""

    calls = 0.0

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        if self.training:
            self.calls += 1.0
        return observations["speed"] + self.calls


class Choosing(Flat):
    """Takes whole numbers only."""

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        assert (observations["speed"] == observations["speed"].round()).all()
        return functional.one_hot(observations["speed"].long(), 4).float().flatten(1)


class Normed(nn.Module):
    """A spectral norm iterates in training mode."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], config: Any) -> None:
        super().__init__()
        self.layer = nn.utils.parametrizations.spectral_norm(nn.Linear(shapes["speed"][0], 256))

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        features: Tensor = self.layer(observations["speed"])
        return features


@pytest.mark.parametrize("name", ["Settled", "Choosing", "Normed", "Noisy"])
def test_an_encoder_that_is_a_function_of_a_row_is_taken(name: str) -> None:
    module, _ = make_encoder({"speed": (3,)}, ModelConfig(encoder=f"tests.nets.test_trial:{name}"))
    assert not module.training


def test_an_encoder_that_mixes_rows_behind_a_dropout_is_refused() -> None:
    with pytest.raises(ConfigError, match="with others beside it than alone"):
        make_encoder({"speed": (3,)}, ModelConfig(encoder="tests.nets.test_trial:MixingDropping"))


class MixingDropping(Mixing):
    """Drops numbers in training mode before it mixes rows."""

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        return super().forward({"speed": functional.dropout(observations["speed"], 0.5, self.training)})


def test_the_trial_of_an_encoder_takes_no_random_numbers_from_the_run() -> None:
    torch.manual_seed(3)
    make_encoder({"speed": (3,)}, ModelConfig(encoder="tests.nets.test_trial:Noisy"))
    drawn = torch.rand(1)
    torch.manual_seed(3)
    torch.randn(2, 3)  # of the features whose shape is looked at
    assert drawn == torch.rand(1)


def test_faulty_encoder_is_no_fault_of_ours(tmp_path: Path) -> None:
    finished = run(tmp_path, "--env=CartPole-v1", "--encoder=tests.nets.test_trial:Raising", "--serial_mode=True")
    assert finished.code == 2
    assert "ConfigError: encoder=tests.nets.test_trial:Raising raised KeyError in its construction" in finished.err
    assert "fault of sf" not in finished.err


def test_encoder_that_cannot_travel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = threading.Lock()
    monkeypatch.setitem(ENCODERS.registered, "locked", lambda shapes, config: lock)
    with pytest.raises(ConfigError, match=r"The encoder locked cannot be sent to the learner .* must not hold locks"):
        plugins_to_send()
