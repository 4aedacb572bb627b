"""Exported policies compute what the policy computes."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from sf.cli import export
from sf.errors import ExportError
from sf.plugins import ENCODERS, register_model
from sf.policy import GreedyPolicy, PolicySaver, RandomPolicy, TimeStep, TrainedPolicy, export_policy
from sf.policy.exporting import SUFFIXES, Format, TensorProgram
from sf.policy.nests import leaves
from sf.policy.specs import BoundedTensorSpec, TensorSpec
from tests.helpers.policies import network
from tests.helpers.spaces import BOX_ACTION, IMAGE, VECTOR

POLICIES: dict[str, Callable[[], TrainedPolicy]] = {
    "discrete": lambda: TrainedPolicy(network(action=spaces.Discrete(4, start=2))),
    "box": lambda: TrainedPolicy(network(action=BOX_ACTION)),
    "tanh": lambda: TrainedPolicy(network(action=BOX_ACTION, adaptive_stddev=True), "tanh"),
    "lstm": lambda: TrainedPolicy(network(use_rnn=True, rnn_type="lstm", rnn_num_layers=2)),
    "gru": lambda: TrainedPolicy(network(use_rnn=True, actor_critic_share_weights=False)),
    "everything": lambda: TrainedPolicy(
        network(
            spaces.Dict(a=spaces.Tuple((VECTOR, spaces.Discrete(3))), b=IMAGE, action_mask=spaces.MultiBinary(5)),
            spaces.Dict(x=spaces.MultiDiscrete([2, 3]), y=BOX_ACTION),
            use_rnn=True,
        )
    ),
}


def random_inputs(program: TensorProgram, num: int, seed: int = 0) -> list[Tensor]:
    """What an environment could show, masks with a legal choice."""
    generator, inputs = torch.Generator().manual_seed(seed), []
    for name, spec in program.input_specs.items():
        shape = (num, *spec.shape)
        if name.endswith("action_mask"):
            mask = torch.randint(2, shape, generator=generator)
            mask[:, [0, 2]] = 1  # of [2, 3] choices
            inputs.append(mask.to(spec.dtype))
        elif isinstance(spec, BoundedTensorSpec):
            inputs.append(torch.randint(int(spec.maximum.max()) + 1, shape, generator=generator).to(spec.dtype))
        elif spec.dtype.is_floating_point:
            inputs.append(torch.randn(shape, generator=generator))
        else:
            inputs.append(torch.randint(256, shape, generator=generator).to(spec.dtype))
    return inputs


def load(path: Path, to: str, program: TensorProgram) -> Callable[[Sequence[Tensor]], list[Tensor]]:
    """The exported file as a function, run by its own runtime."""
    if to == "torchscript":
        script = torch.jit.load(str(path))  # type: ignore[no-untyped-call]
        return lambda inputs: list(script(*inputs))
    if to == "torch_export":
        graph = torch.export.load(path).module()
        return lambda inputs: list(graph(*inputs))
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    assert [x.name for x in session.get_inputs()] == list(program.input_specs)
    assert [x.name for x in session.get_outputs()] == program.output_names

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        named = {name: tensor.numpy() for name, tensor in zip(program.input_specs, inputs, strict=True)}
        return [torch.from_numpy(array) for array in session.run(None, named)]

    return run


@pytest.mark.more
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    ("kind", "to"),
    [(kind, "onnx") for kind in POLICIES] + [(k, to) for k in ("tanh", "everything") for to in get_args(Format)[1:]],
)
def test_exported_policy_agrees_on_a_thousand_inputs(kind: str, to: Format, tmp_path: Path) -> None:
    policy = POLICIES[kind]()
    with torch.no_grad():
        for name, buffer in policy.network.named_buffers():
            if "normalizer" in name:
                buffer.add_(0.5 * torch.rand_like(buffer))  # statistics of a trained policy
    program = TensorProgram(policy)
    path = export_policy(policy, tmp_path / f"p{SUFFIXES[to]}", to)
    if (kind, to) == ("everything", "onnx"):
        expect_names_in_the_file(path)
    run = load(path, to, program)
    for num in (1000, 1):
        inputs = random_inputs(program, num)
        with torch.no_grad():
            expected = program(*inputs)
        for ours, theirs in zip(expected, run(inputs), strict=True):
            torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", POLICIES)
def test_program_does_what_the_greedy_policy_does(kind: str) -> None:
    policy = POLICIES[kind]()
    program = TensorProgram(policy)
    inputs = random_inputs(program, 20)
    num = len(list(leaves(policy.time_step_spec.observation)))
    remaining = iter(inputs)
    from sf.policy.nests import map_leaves

    observation = map_leaves(lambda _: next(remaining), policy.time_step_spec.observation)
    state = map_leaves(lambda _: next(remaining), policy.policy_state_spec)
    time_step = TimeStep.first(observation, 20)._replace(step_type=torch.ones(20, dtype=torch.int32))
    step = GreedyPolicy(policy).action(time_step, state)
    with torch.no_grad():
        found = dict(zip(program.output_names, program(*inputs), strict=True))
    for expected, name in zip([*leaves(step.action), *leaves(step.state)], program.output_names, strict=False):
        torch.testing.assert_close(found[name], expected, msg=name)
    assert num + len(list(leaves(state))) == len(inputs)


def expect_names_in_the_file(path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.load(path)
    assert [x.name for x in model.graph.input] == [
        "observation/a/0",
        "observation/a/1",
        "observation/b",
        "observation/action_mask",
        "state/hidden",
    ]
    assert [x.name for x in model.graph.output] == [
        "action/x",
        "action/y",
        "next_state/hidden",
        "logits/x",
        "mean/y",
        "std/y",
    ]
    (entry,) = (entry for entry in model.metadata_props if entry.key == "sf")
    assert json.loads(entry.value)["env"] == "test"


class Peeking(nn.Module):
    def __init__(self, shapes: Any, config: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        x = observations["obs"]
        features: Tensor = self.layer(x) if x.sum().item() > 0 else self.layer(-x)
        return features


class Bessel(nn.Module):
    def __init__(self, shapes: Any, config: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        features: Tensor = torch.special.bessel_j0(self.layer(observations["obs"]))
        return features


def test_an_export_that_fails_leaves_the_earlier_file(tmp_path: Path) -> None:
    path = export_policy(TrainedPolicy(network()), tmp_path / "policy.pt", "torchscript")
    before, (soft, hard) = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, hard))  # as on a disk that is full
    try:
        with pytest.raises(ExportError, match="cannot be written: File too large"):
            export_policy(TrainedPolicy(network()), path, "torchscript")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_an_export_through_a_link_and_under_a_long_name(tmp_path: Path) -> None:
    target, link = tmp_path / f"{'n' * 240}.pt", tmp_path / "latest.pt"
    link.symlink_to(target)
    assert export_policy(TrainedPolicy(network()), link, "torchscript") == link
    assert link.is_symlink()
    assert target.stat().st_size > 0


@pytest.mark.more
def test_what_cannot_be_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = TimeStep(*[TensorSpec((), torch.float32)] * 4)
    with pytest.raises(ExportError, match="RandomPolicy cannot be exported, only policies that were trained"):
        export_policy(RandomPolicy(spec, BoundedTensorSpec((), torch.int64, None, 0, 1)), tmp_path / "x", "onnx")
    with pytest.raises(
        ExportError, match=r"There is no export format 'tf'\. Choose one of onnx, torchscript, torch_export"
    ):
        export_policy(TrainedPolicy(network()), tmp_path / "x", "tf")  # type: ignore[arg-type]
    (tmp_path / "file").write_text("")
    for to in get_args(Format):
        with pytest.raises(ExportError, match="cannot be written"):
            export_policy(TrainedPolicy(network()), tmp_path / "file/x.pt", to)
    monkeypatch.setattr(ENCODERS, "registered", {})
    register_model("peeking", Peeking)
    for to in get_args(Format):
        with pytest.raises(ExportError, match=r"cannot be written as a graph: .* An encoder must not decide"):
            export_policy(TrainedPolicy(network(encoder="peeking")), tmp_path / "x", to)
    register_model("bessel", Bessel)
    with pytest.raises(ExportError, match="ONNX cannot express the policy"):
        export_policy(TrainedPolicy(network(encoder="bessel")), tmp_path / "x", "onnx")
    assert not (tmp_path / "x").exists()


class TestCommand:
    def test_saved_policy(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        PolicySaver(TrainedPolicy(network())).save(tmp_path / "mine")
        flags = [f"--policy={tmp_path / 'mine'}", "--to=torchscript", f"--output={tmp_path / 'out/p.pt'}"]
        assert export.main(flags) == 0
        assert capsys.readouterr().out.startswith(f"Wrote {tmp_path / 'out/p.pt'} (")
        assert (tmp_path / "out/p.pt").is_file()

    @pytest.mark.parametrize(
        ("flags", "code", "message"),
        [
            ([], 2, "--experiment and --policy are missing"),
            (["--policy=a", "--experiment=b"], 2, "Give either --experiment or --policy"),
            (["--policy=a", "--to=tf"], 2, "--to=tf must be onnx or torchscript or torch_export"),
            (["--experiment=none"], 4, "There is no experiment 'none'"),
            (["--policy=nowhere"], 4, "There is no policy in "),
            (["--policy=a", "--policy_id=-1"], 2, "policy_id=-1 must be at least 0"),
        ],
    )
    def test_refusals(self, flags: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert export.main(flags) == code
        assert message in capsys.readouterr().err
