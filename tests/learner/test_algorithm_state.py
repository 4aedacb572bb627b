"""State that an algorithm keeps beside the policy: found, saved, loaded, shared, and told where it is dropped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sf.config import LearnerConfig
from sf.errors import CheckpointError, ConfigError
from sf.learner.algorithm import Algorithm
from sf.learner.algorithm_state import (
    load_parts,
    pack,
    parts_unchanged,
    state_of_parts,
    take_state_from_first,
    unpack,
)
from sf.learner.peers import Peers
from sf.learner.ppo import PPO
from sf.learner.trial import loss_terms_of
from sf.learner.update import Update
from sf.shared.messages import SaveRequest
from sf.storage import checkpoint
from tests.helpers.keeping import Keeping
from tests.helpers.lab import Lab, make_lab, step_until
from tests.helpers.learners import EACH_WAY, Makers, together
from tests.helpers.updates import act, learner_config, make_policy, one_thread_and_seed, train

KEEPING = "tests.helpers.keeping:Keeping"


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    one_thread_and_seed()


def kept_by(algorithm: Algorithm) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in algorithm.state_dict().items()}


def trained(num_batches: int) -> tuple[Keeping, Update]:
    config, policy = learner_config(), make_policy()
    algorithm = Keeping(config)
    update = Update(policy, config, algorithm=algorithm)
    for _ in range(num_batches):
        train(update, act(policy, version=update.version))
    return algorithm, update


def test_ppo_keeps_nothing() -> None:
    assert PPO(LearnerConfig()).state_dict() == {}


def test_modules_and_optimizers_are_found_with_what_the_author_adds() -> None:
    algorithm, update = trained(2)
    state = algorithm.state_dict()
    assert {name.partition(".")[0] for name in state} == {"target", "predictor", "heads", "optimizer", "coefficient"}
    assert torch.equal(state["target.policy_head.weight"], algorithm.target.policy_head.weight)
    assert state["heads.1.weight"].shape == (8, 8)
    assert state["optimizer.group.0.lr"].item() == pytest.approx(0.01 * 0.999**3), "the dry run took a step of its own"
    assert {"optimizer.state.0.exp_avg", "optimizer.state.3.step"} <= state.keys()
    assert update.version == 2


def test_parameters_by_themselves_are_kept_as_modules_are() -> None:
    class WithParameter(PPO):
        def __init__(self, config: LearnerConfig) -> None:
            super().__init__(config)
            self.scale, self.more = nn.Parameter(torch.ones(2)), [nn.Parameter(torch.zeros(3))]
            self.later = nn.UninitializedParameter()

    algorithm, other = WithParameter(LearnerConfig()), WithParameter(LearnerConfig())
    saved = {name: tensor + 1 for name, tensor in algorithm.state_dict().items()}
    assert saved.keys() == {"scale.value", "more.0.value"}
    other.load_state_dict(saved)
    assert other.scale.tolist() == [2.0, 2.0]
    assert other.more[0].tolist() == [1.0, 1.0, 1.0]
    with parts_unchanged(other), torch.no_grad():
        other.scale.add_(1)
    assert other.scale.tolist() == [2.0, 2.0]


def test_a_state_that_is_loaded_is_the_one_that_was_saved() -> None:
    algorithm, _ = trained(3)
    other, _ = trained(1)
    saved = kept_by(algorithm)
    assert any(not torch.equal(tensor, other.state_dict()[name]) for name, tensor in saved.items())
    other.load_state_dict(saved)
    assert kept_by(other).keys() == saved.keys()
    for name, tensor in kept_by(other).items():
        assert torch.equal(tensor, saved[name]), name
    before = kept_by(algorithm)
    for parameter in other.heads[0].parameters():
        parameter.grad = torch.ones_like(parameter)
    other.optimizer.step()
    for name, tensor in kept_by(algorithm).items():
        assert torch.equal(tensor, before[name]), f"{name} is shared by the two"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {"predictor.weight": torch.zeros(3, 3)},
            r"predictor\.weight: expected float32\[8, 4\], found float32\[3, 3\]",
        ),
        ({"critic.weight": torch.zeros(3)}, r"critic\.weight: not expected"),
        ({"optimizer.state.9.exp_avg": torch.zeros(3)}, r"optimizer\.state\.9\.exp_avg: not expected"),
        (
            {"optimizer.state.0.exp_avg": torch.zeros(3)},
            r"\.state\.0\.exp_avg: expected \[8, 4\], found \[3\]",
        ),
        ({"predictor.weight": None}, r"predictor\.weight: missing"),
        ({"optimizer.group.0.lr": None}, r"optimizer\.group\.0\.lr: missing"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(change: dict[str, Tensor | None], line: str) -> None:
    algorithm, _ = trained(1)
    before = kept_by(algorithm)
    other = {name: tensor + 1 for name, tensor in before.items()} | change
    with pytest.raises(CheckpointError, match=line):
        algorithm.load_state_dict({name: tensor for name, tensor in other.items() if tensor is not None})
    after = kept_by(algorithm)
    del before["coefficient"], after["coefficient"]  # which is its author's own
    for name, tensor in after.items():
        assert torch.equal(tensor, before[name]), name


def test_a_dry_run_leaves_what_was_there_as_it_was() -> None:
    class Early(Keeping):
        def __init__(self, config: LearnerConfig) -> None:
            super().__init__(config)
            self.target, self.predictor = make_policy(), nn.Linear(4, 8)
            self.optimizer = torch.optim.Adam(self.predictor.parameters(), lr=0.01)

    algorithm = Early(learner_config())
    before = kept_by(algorithm)
    loss_terms_of(algorithm, make_policy())
    after = kept_by(algorithm)
    del before["coefficient"], after["coefficient"]
    assert after.keys() == before.keys()
    for name, tensor in after.items():
        assert torch.equal(tensor, before[name]), name


class NoTensors(Keeping):
    """Saves a number."""

    def state_dict(self) -> dict[str, Any]:
        return {"coefficient": self.coefficient}


class TakesNothing(Keeping):
    """Cannot load what it saves."""

    def load_state_dict(self, state: Any) -> None:
        raise KeyError("coefficient")


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        (NoTensors, r"algorithm=NoTensors: state_dict must return a dict of tensors by name, but returned \{'coef"),
        (TakesNothing, r"algorithm=TakesNothing raised KeyError in load_state_dict\(state\)"),
    ],
)
def test_a_state_that_cannot_be_saved_or_loaded_is_told_by_the_dry_run(
    algorithm: type[Algorithm], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        loss_terms_of(algorithm(learner_config()), make_policy())


def test_a_packed_state_is_unpacked_as_it_was() -> None:
    state = kept_by(trained(1)[0])
    found = unpack(pack(state))
    assert found.keys() == state.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, state[name])
        assert tensor.dtype == state[name].dtype
    assert unpack(pack({})) == {}


def state_after_taking(peers: Peers, seed: int) -> dict[str, Tensor]:
    """The first learner has taken more steps than the other one, so its optimizers keep more."""
    torch.manual_seed(seed)
    algorithm, is_first = Keeping(learner_config()), seed == 0
    loss_terms_of(algorithm, make_policy())
    algorithm.coefficient = seed + 0.5
    if is_first:
        for parameter in algorithm.heads[0].parameters():
            parameter.grad = torch.ones_like(parameter)
        algorithm.optimizer.step()
    take_state_from_first(algorithm, peers, is_first)
    return kept_by(algorithm)


@EACH_WAY
def test_learners_begin_with_what_the_first_one_keeps(makers: Makers) -> None:
    first, second = together(makers, state_after_taking, [0], [1])
    assert first["coefficient"] == 0.5
    assert "optimizer.state.2.exp_avg" in first
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


class Parts:
    """What a test says an algorithm has as attributes."""

    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)


def stepped(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=torch.tensor(0.01)),
    "SGD": lambda parameters: torch.optim.SGD(parameters, momentum=0.5),
    "Adafactor": torch.optim.Adafactor,
    "RMSprop": torch.optim.RMSprop,
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizers_of_any_kind_go_on_where_they_were(kind: str) -> None:
    torch.manual_seed(1)
    layer, other = nn.Linear(4, 3), nn.Linear(4, 3)
    first: Any
    second: Any
    first = Parts(layer=layer, optimizer=stepped(OPTIMIZERS[kind](layer.parameters())))
    first.optimizer.param_groups[0]["weight_decay"] = 0.125
    second = Parts(layer=other, optimizer=OPTIMIZERS[kind](other.parameters()))
    load_parts(second, {name: tensor.clone() for name, tensor in state_of_parts(first).items()})
    assert second.optimizer.param_groups[0]["weight_decay"] == 0.125
    assert type(second.optimizer.param_groups[0]["lr"]) is type(first.optimizer.param_groups[0]["lr"])
    for each in (first, second):
        stepped(each.optimizer)
    assert torch.equal(layer.weight, other.weight)


@pytest.mark.parametrize("kind", ["Adam", "SGD", "RMSprop"])
def test_moments_of_parameters_in_another_order_are_refused(kind: str) -> None:
    layer, other = nn.Linear(4, 3), nn.Linear(4, 3)
    first = Parts(layer=layer, optimizer=stepped(OPTIMIZERS[kind](layer.parameters())))
    second = Parts(layer=other, optimizer=OPTIMIZERS[kind]([other.bias, other.weight]))
    with pytest.raises(CheckpointError, match=r"optimizer\.state\.0\.\w+: expected \[3\], found \[3, 4\]"):
        load_parts(second, state_of_parts(first))


def test_what_an_optimizer_keeps_beside_tensors_and_numbers_is_named() -> None:
    layer = nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=3)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = layer(torch.ones(3, 2)).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    with pytest.raises(CheckpointError, match=r"LBFGS keeps .*old_dirs.* Give the algorithm a state_dict"):
        state_of_parts(Parts(optimizer=optimizer))


def test_modules_without_weights_yet_and_names_that_begin_alike() -> None:
    lazy: Any = Parts(lazy=nn.LazyLinear(3), parts={"a": nn.Linear(1, 1), "a.weight": nn.Linear(2, 2)})
    with parts_unchanged(lazy):
        lazy.lazy(torch.ones(1, 2))
    state = state_of_parts(lazy)
    assert state["lazy.weight"].shape == (3, 2)
    load_parts(lazy, {name: tensor.clone() + 1 for name, tensor in state.items()})
    assert torch.equal(lazy.parts["a.weight"].weight, state["parts.a.weight.weight"])


# ------------------------------------------------------------------------------------------------------------- resume


def saved_by(lab: Lab) -> dict[str, Tensor]:
    """Trains, saves, and closes the run."""
    roles = lab.build_all()
    step_until(roles, lambda: roles[0].record["iterations"] >= 3)
    learner = roles[0]
    saved = learner.saver.save(0, SaveRequest("periodic", None), learner.frames)
    state = kept_by(learner.update.algorithm)
    for role in roles:
        role.close()
    assert checkpoint.load(Path(saved.path)).version == 3
    return state


def resumed(lab: Lab, algorithm: str) -> Any:
    config = replace(lab.config, learner=replace(lab.config.learner, algorithm=algorithm))
    return lab.build("learner-0", config=config).update.algorithm


def test_a_resume_goes_on_with_what_the_algorithm_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab = make_lab(tmp_path, algorithm=KEEPING)
    state = saved_by(lab)
    found = kept_by(resumed(lab, KEEPING))
    assert found.keys() == state.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, state[name]), name
    assert "beside the policy" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("before", "now", "sentences"),
    [
        (KEEPING, "ppo", [f"Warning: The state that algorithm={KEEPING} kept beside the policy is dropped: coeffi"]),
        ("ppo", KEEPING, [f"Warning: The state that algorithm={KEEPING} keeps beside the policy begins anew: coeff"]),
        (
            KEEPING,
            f"{__name__}:Another",
            ["is dropped: coefficient, heads, optimizer, predictor, target.", "begins anew: coefficient, heads, optim"],
        ),
    ],
)
def test_a_resume_with_another_algorithm_says_what_is_dropped(
    before: str, now: str, sentences: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = make_lab(tmp_path, algorithm=before)
    saved_by(lab)
    capsys.readouterr()
    resumed(lab, now)
    told = capsys.readouterr().out
    for sentence in sentences:
        assert told.count(sentence) == 1, told


class Another(Keeping):
    """Another algorithm with the same parts."""


class Grown(Keeping):
    """The same name with another part, see the test."""


def test_the_same_algorithm_with_other_parts_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"{__name__}:Grown"
    lab = make_lab(tmp_path, algorithm=name)
    saved_by(lab)
    plain = Grown.__init__

    def with_one_more(self: Grown, config: LearnerConfig) -> None:
        plain(self, config)
        self.heads.append(nn.Linear(8, 8))

    monkeypatch.setattr(Grown, "__init__", with_one_more)
    with pytest.raises(CheckpointError, match=rf"another state of algorithm={name}.*\n  heads\.2\.bias: missing"):
        resumed(lab, name)
