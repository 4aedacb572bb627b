"""Policies as folders that need neither the training configuration nor the environment.

    <folder>/
        policy.json             which kind of policy, its specs, its metadata
        variables.safetensors   parameters and buffers by name
        manifest.json           sizes and SHA-256 sums of both

A folder is written under a hidden name and renamed, so that it appears whole; one that is there already is replaced.
Nothing in it is ever executed. A checkpoint of variables is the same without policy.json.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from sf.errors import CheckpointError, ConfigError
from sf.nets.initialization import without_initialization
from sf.policy.checkpoints import SavedNetwork, load, load_newest
from sf.policy.description import OPTIONS, build, describe
from sf.policy.policy import Policy
from sf.storage import sealed
from sf.storage.checkpoint import named
from sf.storage.differences import tensor_differences
from sf.storage.names import STATE, policy_of

FORMAT = 1
POLICY = "policy.json"
VARIABLES = "variables.safetensors"


class PolicySaver:
    """Saves a policy as often as asked; it may be trained between two saves."""

    def __init__(
        self,
        policy: Policy,
        batch_size: int | None = None,
        train_step: int | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Takes note of the policy to save.

        Args:
            policy: one of sf: trained, collecting, random, or greedy around one of these.
            batch_size: the only one that the loaded policy will accept; None for any.
            train_step: optimizer steps done.
            metadata: anything that JSON can hold.

        Raises:
            ValueError: the batch size is not None or an integer above 0, or the metadata is not for JSON.
            TypeError: a policy of another class, which could not be loaded again.
        """
        if batch_size is not None and not (_is_integer(batch_size) and batch_size > 0):
            raise ValueError(f"batch_size={batch_size!r}, expected None or an integer above 0.")
        if train_step is not None and not _is_integer(train_step):
            raise ValueError(f"train_step={train_step!r}, expected None or an integer.")
        try:
            sealed.canonical_json(dict(metadata or {}))
        except (TypeError, ValueError) as error:
            raise ValueError(f"metadata cannot be written as JSON: {error}.") from None
        describe(policy)
        self.policy, self.batch_size, self.train_step = policy, batch_size, train_step
        self.metadata = dict(metadata or {})

    def save(self, directory: str | Path) -> Path:
        """Writes the policy as it is now; a policy that is there is replaced.

        Raises:
            CheckpointError: it cannot be written, or something else is there.
        """
        description = {
            "format": FORMAT,
            "policy": describe(self.policy),
            "batch_size": self.batch_size,
            "train_step": -1 if self.train_step is None else self.train_step,
            "metadata": self.metadata,
        }
        files = {POLICY: sealed.canonical_json(description), VARIABLES: _variables_of(self.policy)}
        return _write(Path(directory), files)

    def save_checkpoint(self, directory: str | Path) -> Path:
        """Writes the variables only, for `load_policy(..., checkpoint=directory)`.

        Raises:
            CheckpointError: as for `save`.
        """
        return _write(Path(directory), {VARIABLES: _variables_of(self.policy)})


def load_policy(path: str | Path, checkpoint: str | Path | None = None, policy_id: int = 0, **options: Any) -> Policy:
    """The policy of a folder of `PolicySaver`, or that of an experiment, finished or running.

    Args:
        path: the folder, the directory of the experiment, or one of its checkpoints.
        checkpoint: of a folder: a checkpoint of variables to take instead of its own. Of an experiment: "latest" (as
            None), "best", or the name or the path of one checkpoint.
        policy_id: of an experiment with several policies; one checkpoint has one.
        options: `clip`, `emit_log_probability`, `automatic_state_reset`, `validate_args` and `name` of `Policy`.

    Raises:
        CheckpointError: there is no policy, it is damaged, of a newer version, or its encoder is not registered.
    """
    path = Path(path)
    if unknown := options.keys() - set(OPTIONS):
        raise TypeError(f"load_policy() has no option {', '.join(sorted(unknown))}. There are {', '.join(OPTIONS)}.")
    if (path / POLICY).exists():
        return _load_folder(path, checkpoint, options)
    if checkpoint is None and (path / STATE).is_file():
        saved, policy_id = load(path), policy_of(path)
    else:
        saved = _of_experiment(path, checkpoint, policy_id)
    if name := saved.config.run.scripted.get(policy_id):
        raise CheckpointError(
            f"Policy {policy_id} of {path.absolute()} is the function {name} and no network. Call the function itself."
        )
    return saved.trained_policy(**options).eval()


def _of_experiment(path: Path, checkpoint: str | Path | None, policy_id: int) -> SavedNetwork:
    directory = path / f"checkpoint_p{policy_id}"
    if not directory.is_dir() and (others := sorted(path.glob("checkpoint_p*"), key=lambda one: (len(one.name), one))):
        there = ", ".join(one.name.removeprefix("checkpoint_p") for one in others)
        raise CheckpointError(
            f"There is no policy {policy_id} in {path.absolute()}, expected one of policy_id={there}."
        )
    if not directory.is_dir():
        raise CheckpointError(
            f"There is no policy in {path.absolute()}: expected {POLICY} as PolicySaver writes it, or the directory "
            f"checkpoint_p{policy_id} of an experiment."
        )
    if checkpoint in (None, "latest", "best"):
        return load_newest(directory / "best" if checkpoint == "best" else directory)
    assert checkpoint is not None
    is_elsewhere = not (directory / checkpoint).is_dir() and Path(checkpoint).is_dir()
    return load(Path(checkpoint) if is_elsewhere else named(directory, str(checkpoint)))


def _load_folder(path: Path, checkpoint: str | Path | None, options: Mapping[str, Any]) -> Policy:
    try:
        sealed.verify(path, (POLICY, VARIABLES))
        description = json.loads((path / POLICY).read_bytes())
        if description["format"] > FORMAT:
            raise sealed.UnknownFormatError(
                f"format {description['format']}, but this version of sf reads up to {FORMAT}. Install a newer one"
            )
        with without_initialization():
            policy = build(description["policy"], options)
        policy.train_step, policy.metadata = int(description["train_step"]), description["metadata"]
        policy.batch_size = description["batch_size"]
    except (OSError, sealed.DamagedError, sealed.UnknownFormatError) as error:
        raise CheckpointError(f"The policy {path} cannot be loaded: {error}.") from None
    except ConfigError as error:
        raise CheckpointError(f"The policy {path} cannot be built: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"The policy {path} is not one that this version of sf has written: {error!r}.") from None
    load_variables(policy, path if checkpoint is None else Path(checkpoint))
    return policy.eval()


def load_variables(policy: Policy, directory: str | Path) -> None:
    """Gives a policy the variables of a folder or of a checkpoint of variables.

    Raises:
        CheckpointError: there are none, they are damaged or do not fit; then nothing is changed.
    """
    directory = Path(directory)
    files = (POLICY, VARIABLES) if (directory / POLICY).exists() else (VARIABLES,)
    try:
        sealed.verify(directory, files)
        stored = safetensors.torch.load_file(directory / VARIABLES)
    except (OSError, sealed.DamagedError, sealed.UnknownFormatError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"The variables in {directory} cannot be used: {error}.") from None
    variables = policy.variables()
    if differences := tensor_differences(variables, stored):
        raise CheckpointError(f"The variables in {directory} do not fit {policy.name}:\n  " + "\n  ".join(differences))
    with torch.no_grad():
        for name, variable in variables.items():
            variable.copy_(stored[name])


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _variables_of(policy: Policy) -> bytes:
    """The contents of a safetensors file; views of one memory become separate."""
    separate: dict[str, Tensor] = {
        name: variable.detach().to("cpu", copy=True).contiguous() for name, variable in policy.variables().items()
    }
    return safetensors.torch.save(separate)


def _write(directory: Path, files: Mapping[str, bytes]) -> Path:
    """Replaces what an earlier save of the same kind has written, and nothing else."""
    directory = directory.absolute()
    if not _may_be_replaced(directory, tuple(files)):
        raise CheckpointError(f"{directory} exists and was not written by PolicySaver. Choose another directory.")
    incoming = directory.with_name(f".incoming-{uuid.uuid4().hex}")
    try:
        incoming.mkdir(parents=True)
        sealed.write(incoming, files)
        sealed.verify(incoming, tuple(files))
        _put_in_place(incoming, directory)
    except (OSError, sealed.DamagedError) as error:
        raise CheckpointError(f"The policy was not saved in {directory}: {error}.") from error
    finally:
        shutil.rmtree(incoming, ignore_errors=True)
    try:
        sealed.sync_directory(directory.parent)
    except OSError as error:
        raise CheckpointError(
            f"The policy is written in {directory}, but whether it survives a power failure is unknown: {error}."
        ) from error
    return directory


def _put_in_place(incoming: Path, directory: Path) -> None:
    """Under its name; nothing has changed where that fails.

    A file system that cannot exchange two names has nothing of that name for an instant.
    """
    if not directory.exists():
        incoming.rename(directory)
        return
    try:
        sealed.exchange(incoming, directory)
        return
    except OSError as error:
        if error.errno not in sealed.CANNOT_EXCHANGE:
            raise
    outgoing = directory.with_name(f".outgoing-{uuid.uuid4().hex}")
    directory.rename(outgoing)
    try:
        incoming.rename(directory)
    except OSError:
        outgoing.rename(directory)
        raise
    shutil.rmtree(outgoing, ignore_errors=True)


def _may_be_replaced(directory: Path, names: tuple[str, ...]) -> bool:
    """Whether nothing is there, or exactly what a save of these files leaves behind."""
    if not directory.exists():
        return True
    if not directory.is_dir() or directory.is_symlink():
        return False
    there = {path.name for path in directory.iterdir()}
    if there != {*names, sealed.MANIFEST}:
        return not there
    try:
        sealed.verify(directory, names)
    except (OSError, sealed.DamagedError, sealed.UnknownFormatError):
        return False
    return True
