"""The folder of a published run.

    README.md                        the card, for people
    replay.mp4                       an episode, if one could be filmed
    config.json, scores.json         the configuration; the scores with what a pull needs to know
    manifest.json                    sizes and SHA-256 sums of these two
    checkpoint_p<i>/checkpoint_*/    the latest checkpoint of policy i, with its own manifest
    checkpoint_p<i>/best/            its best one, if that was published

The folder holds tensors, JSON, text and a film. A pull takes the files that it knows by name, compares them with their
manifests, and executes none of them.
"""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from sf import __version__
from sf.config import Config, check
from sf.errors import CheckpointError, ConfigError, ExperimentError
from sf.evaluator.summary import ReturnSummary
from sf.storage import checkpoint, sealed
from sf.storage.experiment import MARKER, errors_told
from sf.storage.names import list_checkpoints
from sf.storage.objects import json_object
from sf.tools.report.runs import RunFiles
from sf.tools.report.summary import checked

FORMAT = 1
CARD, FILM, CONFIG, SCORES = "README.md", "replay.mp4", "config.json", "scores.json"
PULLED = re.compile(
    r"config\.json|scores\.json|manifest\.json|"
    r"checkpoint_p\d{1,3}/(best/)?checkpoint_\d{9,18}_\d{1,18}/(tensors\.safetensors|state\.json|manifest\.json)",
    re.ASCII,
)
"""Names of the files that a pull takes."""
MOST_STARTS = 10_000
"""Lines of a marker that a pull writes at most."""


@dataclass(frozen=True)
class PublishedScores:
    """The scores of a published run and how they were found."""

    which: Literal["latest", "best"]
    """The checkpoint that played."""
    env: str
    trusted: dict[str, object]
    """Flags that name modules of the environment and of the encoder; no file gets to import them."""
    played: dict[str, int]
    """Flags of `sf-eval` that repeat the evaluation; nothing for scores from a file."""
    policies: list[ReturnSummary]


def read_run(directory: Path) -> RunFiles:
    """The configuration and the end of a run, without its curves.

    Raises:
        ExperimentError: config.json is missing or not one of this version.
    """
    path, summary = directory / CONFIG, directory / "summary.json"
    with errors_told(directory.absolute()):
        try:
            config = Config.from_json(json.loads(path.read_bytes()))
            end = checked(json_object(summary)) if summary.is_file() else None
        except (FileNotFoundError, ValueError, ConfigError, RecursionError) as error:
            raise ExperimentError(
                f"It cannot be told how {directory.absolute()} was trained, because its {CONFIG} is missing or of "
                f"another version of sf: {error}"
            ) from None
    return RunFiles(directory.resolve(), 0, (), 0, config.to_json(), end, ())


def write_folder(folder: Path, run: RunFiles, checkpoints: Sequence[Path], scores: PublishedScores) -> None:
    """Writes all but the card and the film into an empty folder, without the names of directories of this machine.

    Args:
        folder: exists and is empty.
        run: to publish.
        checkpoints: those that have played, by policy id.
        scores: of these.

    Raises:
        CheckpointError: a checkpoint is missing or damaged, or the folder cannot be written.
    """
    for policy_id, path in enumerate(checkpoints):
        own = run.path / f"checkpoint_p{policy_id}"
        newest = checkpoint.load_newest(own, put_aside=False) if scores.which == "best" else checkpoint.load(path)
        if newest is None:
            raise CheckpointError(f"There is no checkpoint in {own} to go on from. Train longer.")
        _copy(newest, folder / own.name)
        if scores.which == "best":
            _copy(checkpoint.load(path), folder / own.name / checkpoint.BEST)
    marker = run.path / MARKER
    with errors_told(folder.absolute()):
        num_starts = len(marker.read_text(errors="replace").splitlines()) if marker.is_file() else 1
        told = {"format": FORMAT, "sf": __version__, "num_starts": num_starts, "scores": asdict(scores)}
        files = {CONFIG: _without_paths(run.config), SCORES: told}
        sealed.write(folder, {name: sealed.canonical_json(content) for name, content in files.items()})


def _copy(saved: checkpoint.Checkpoint, directory: Path) -> None:
    data = saved.data | {"config": _without_paths(saved.data["config"])}
    checkpoint.save(directory, saved.version, saved.env_steps, saved.tensors, data)


def _without_paths(config: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return config | {"run": config["run"] | {"train_dir": "train_dir"}}


def expect_published(names: list[str], repo: str) -> list[str]:
    """The files of a repository that a pull takes.

    Raises:
        CheckpointError: they are not those of a published run.
    """
    wanted = [name for name in names if PULLED.fullmatch(name)]
    needed = {CONFIG, SCORES, sealed.MANIFEST}
    if needed - set(wanted) or not any(name.startswith("checkpoint_p0/") for name in wanted):
        raise CheckpointError(
            f"{repo} is not a run that sf-hub push has written: {', '.join(sorted(needed))} and checkpoint_p0 are "
            "expected. Look at the name, and at the page of the repository."
        )
    return wanted


def install(folder: Path, target: Path, repo: str) -> Config:
    """Makes an experiment of a pulled folder, whole or not at all; files of the folder are moved.

    Returns:
        The configuration of its training.

    Raises:
        CheckpointError: a file is missing, damaged, or of a newer version.
        ExperimentError: the experiment exists, or cannot be written.
    """
    incoming = target.with_name(f".incoming-{uuid.uuid4().hex}")
    try:
        told, config = _read(folder)
        with errors_told(target.absolute()):
            incoming.mkdir(mode=0o700)
            for policy_id in range(config.run.num_policies):
                _move_checkpoints(folder / f"checkpoint_p{policy_id}", incoming / f"checkpoint_p{policy_id}")
            data = config.to_json()
            data["run"] |= {"experiment": target.name, "train_dir": str(target.parent)}
            (incoming / CONFIG).write_text(json.dumps(data, indent=2) + "\n")
            starts = min(int(told["num_starts"]), MOST_STARTS)
            # A run that goes on counts them, so that it does not repeat random numbers.
            (incoming / MARKER).write_text("".join(f"start {index + 1}, before a pull\n" for index in range(starts)))
            incoming.rename(target)
        return config
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, ConfigError) as error:
        raise CheckpointError(f"{repo} is not a run that this version of sf can read: {error!r}") from None
    except (sealed.DamagedError, sealed.UnknownFormatError) as error:
        raise CheckpointError(
            f"{repo} is damaged: {error}. Nothing was kept. Pull it again, or ask its author to push it anew."
        ) from None
    finally:
        shutil.rmtree(incoming, ignore_errors=True)


def _read(folder: Path) -> tuple[dict[str, Any], Config]:
    """Contents of scores.json, and the configuration."""
    sealed.verify(folder, (CONFIG, SCORES))
    told = json.loads((folder / SCORES).read_bytes())
    if told["format"] > FORMAT:
        raise sealed.UnknownFormatError(f"format {told['format']}, but this version of sf reads up to {FORMAT}")
    config = Config.from_json(json.loads((folder / CONFIG).read_bytes()))
    check(config)
    return told, config


def _move_checkpoints(source: Path, target: Path) -> None:
    """All checkpoints of a policy, each compared with its manifest; there has to be one to go on from."""
    if not list_checkpoints(source):
        raise sealed.DamagedError(f"{source.name} has no checkpoint")
    for place in ("", checkpoint.BEST):
        for path in list_checkpoints(source / place):
            try:
                checkpoint.load(path)
            except CheckpointError as error:
                raise sealed.DamagedError(f"{path.relative_to(source.parent)}: {error.__cause__}") from None
            (target / place).mkdir(mode=0o700, parents=True, exist_ok=True)
            path.rename(target / place / path.name)
