"""Policies as programs for other runtimes: ONNX, TorchScript, torch.export.

    inputs    observation leaves [B, ...], state leaves [B, layers, size]
    outputs   action leaves [B, ...], next state leaves, and for each action leaf its logits or its mean and std

The batch size is free. Normalization of observations, masks and the bounds of actions are inside. The action is the
most likely one. Programs that draw actions find logits [B, number of choices, column after column]. For numbers they
find means and standard deviations [B, ...] before the bounds. The state is zeros at the beginning of an episode, and
after that the next state of the last step.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import uuid
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from sf.errors import ExportError
from sf.policy.greedy import GreedyPolicy
from sf.policy.nests import Nest, leaves, leaves_with_paths, map_leaves
from sf.policy.policy import Policy
from sf.policy.specs import TensorSpec
from sf.policy.trained import TrainedPolicy

Format = Literal["onnx", "torchscript", "torch_export"]
SUFFIXES: dict[str, str] = {"onnx": ".onnx", "torchscript": ".pt", "torch_export": ".pt2"}
EXAMPLE_BATCH = 2  # a batch of one would be taken for a constant


def export_policy(policy: Policy, path: str | Path, to: Format) -> Path:
    """Write a policy for another runtime.

    Args:
        policy: a TrainedPolicy, or a GreedyPolicy of one.
        path: of the file.
        to: format.

    Raises:
        ExportError: the policy or its encoder cannot be exported, a package is missing, or the file cannot be written.
    """
    inner = policy.wrapped if isinstance(policy, GreedyPolicy) else policy
    if not isinstance(inner, TrainedPolicy):
        raise ExportError(f"{type(inner).__name__} cannot be exported, only policies that were trained.")
    if to not in get_args(Format):
        raise ExportError(f"There is no export format {to!r}. Choose one of {', '.join(get_args(Format))}.")
    path = Path(path)
    with _quiet(), torch.no_grad():
        content = _WRITERS[to](TensorProgram(inner.eval()))
    try:
        _write_whole(path.resolve(), content)
    except OSError as error:
        raise ExportError(f"{path} cannot be written: {error.strerror}.") from error
    return path


def _write_whole(path: Path, content: bytes) -> None:
    """A file that is there stays until the new one is whole; a pipe or a device gets the bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    incoming = path.with_name(f".incoming-{uuid.uuid4().hex}")
    try:
        incoming.write_bytes(content)
        incoming.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            incoming.unlink()
        raise


class TensorProgram(nn.Module):
    """A policy from tensors to tensors, without a contract to check."""

    def __init__(self, policy: TrainedPolicy) -> None:
        super().__init__()
        self.policy = policy
        observation, state = policy.time_step_spec.observation, policy.policy_state_spec
        self.input_specs: dict[str, TensorSpec] = dict(_named("observation", observation)) | dict(
            _named("state", state)
        )
        self.output_names = [name for name, _ in _named("action", policy.action_spec)]
        self.output_names += [name for name, _ in _named("next_state", state)]
        for part, columns in policy.parts:
            kinds = ("logits",) if columns[0].num_choices else ("mean", "std")
            self.output_names += ["/".join(map(str, (kind, *part.path))) for kind in kinds]
        self._num_observations = len(list(leaves(observation)))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Leaves of observation and state to leaves of action and next state, and parameters of the distribution."""
        policy = self.policy
        observation = _packed(policy.time_step_spec.observation, inputs[: self._num_observations])
        state = _packed(policy.policy_state_spec, inputs[self._num_observations :])
        action, state, params = policy.act_greedily(observation, state)
        return (*leaves(action), *leaves(state), *self._of_distribution(params))

    def _of_distribution(self, params: Tensor) -> Iterator[Tensor]:
        columns = iter(self.policy.network.distribution.columns(params))
        for part, specs in self.policy.parts:
            own = [next(columns) for _ in specs]
            if specs[0].num_choices:
                yield torch.cat([logits for (logits,) in own], -1)
            else:
                for numbers in zip(*own, strict=True):
                    yield torch.stack(numbers, -1).reshape(-1, *part.shape)

    def example(self, batch_size: int = EXAMPLE_BATCH) -> tuple[Tensor, ...]:
        """Zeros of the right shapes and types."""
        return tuple(spec.zeros((batch_size,)) for spec in self.input_specs.values())

    def export(self) -> torch.export.ExportedProgram:
        """As a graph in which the batch size is free."""
        batch = torch.export.Dim("batch", min=1)
        shapes = (tuple({0: batch} for _ in self.input_specs),)
        try:
            return torch.export.export(self, self.example(), dynamic_shapes=shapes)
        except Exception as error:  # the encoder of a user may do anything that a graph cannot
            raise ExportError(
                f"The policy cannot be written as a graph: {_first_line(error)}. An encoder must not decide what it "
                "computes from the values of its inputs or the size of the batch."
            ) from error


def _to_onnx(program: TensorProgram) -> bytes:
    try:
        import onnx
        import onnxscript  # noqa: F401  # torch imports it
    except ModuleNotFoundError as error:
        raise ExportError(f'{error.name} is missing: pip install "sf-rl[onnx]"') from None
    graph, names = program.export(), list(program.input_specs)
    try:
        exported = torch.onnx.export(
            graph, (), dynamo=True, input_names=names, output_names=program.output_names, verbose=False
        )
    except Exception as error:
        raise ExportError(f"ONNX cannot express the policy: {_first_line(error)}.") from error
    assert exported is not None
    model = exported.model_proto
    entry = model.metadata_props.add()
    entry.key, entry.value = (
        "sf",
        json.dumps({"env": program.policy.network.info.env_id, "inputs": _described(program)}),
    )
    onnx.checker.check_model(model)
    serialized: bytes = model.SerializeToString()
    return serialized


def _to_torchscript(program: TensorProgram) -> bytes:
    program.export()  # which refuses what a trace would silently freeze
    buffer = io.BytesIO()
    try:
        traced = torch.jit.trace(program, program.example(), check_trace=False)  # type: ignore[no-untyped-call]
        torch.jit.save(traced, buffer)
    except Exception as error:
        raise ExportError(f"The policy cannot be traced: {_first_line(error)}.") from error
    return buffer.getvalue()


def _to_torch_export(program: TensorProgram) -> bytes:
    buffer = io.BytesIO()
    torch.export.save(program.export(), buffer)
    return buffer.getvalue()


_WRITERS = {"onnx": _to_onnx, "torchscript": _to_torchscript, "torch_export": _to_torch_export}


def _named(prefix: str, nest: Nest) -> Iterator[tuple[str, Any]]:
    for path, leaf in leaves_with_paths(nest):
        yield "/".join(map(str, (prefix, *path))), leaf


def _packed(structure: Nest, tensors: Sequence[Tensor]) -> Nest:
    """The tensors in the places of the leaves."""
    remaining = iter(tensors)
    return map_leaves(lambda _: next(remaining), structure)


def _described(program: TensorProgram) -> dict[str, Any]:
    return {name: spec.to_json() for name, spec in program.input_specs.items()}


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings that torch has for its own authors."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
