"""``--config=run.toml``: flags out of a file, TOML or JSON; and ``--save_config=run.toml``, which writes one.

A file has the names of flags, flat or in the groups of the reference. ``config.json`` of a run is such a file. Flags of
the command line come before those of the file.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sf.cli.arguments import flags_of
from sf.cli.habits import foreign, rewritten
from sf.config import Config
from sf.config.as_flags import as_flags
from sf.config.fields import typed_fields
from sf.config.storage import dump
from sf.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SUFFIXES = (".toml", ".json")


def with_file(arguments: Sequence[str]) -> tuple[list[str], Path | None]:
    """The arguments behind what the file of ``--config`` adds to them, and the file of ``--save_config``.

    Raises:
        UsageError: the file cannot be read, or holds something that is no flag.
    """
    rest, read, written = [], None, None
    words = rewritten(dict(flags_of(Config)), arguments)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if name not in ("--config", "--save_config", "--save-config"):
            rest.append(word)
            continue
        if not equals:
            if not words:
                raise UsageError(f"{name} needs a value: a file that ends with .toml or .json.")
            value = words.pop(0)
        if Path(value).suffix not in SUFFIXES:
            raise UsageError(f"{name}={value} must end with .toml or .json.")
        if name == "--config":
            read = Path(value)
        else:
            written = Path(value)
    if read is not None:
        rest = [*_flags_of(read, names_in(rest)), *rest]
    return rest, written


OF_ONE_RUN = "experiment", "train_dir", "restart_behavior", "seed"
"""Flags in the config.json of a run that say nothing of the training; another run has its own."""


def _flags_of(path: Path, given: set[str]) -> Iterator[str]:
    """The lines of a file as arguments, without those that are given."""
    groups = {name: typed_fields(hint) for name, hint in typed_fields(Config).items() if isinstance(hint, type)}
    known = {flag for group in groups.values() for flag in group}
    values: dict[str, Any] = {}
    for name, value in _read(path).items():
        values |= value if name in groups and isinstance(value, Mapping) else {name: value}
    if len(values) == len(known):  # all flags, as a run writes them
        if "preset" in given:
            raise UsageError(f"{path} has all flags, so --preset changes none of them. Leave one of the two out.")
        values = {name: value for name, value in values.items() if name not in OF_ONE_RUN}
    if unknown := [name for name in values if name.replace("-", "_") not in known]:
        told = " ".join(f"{name!r}. {foreign(name, known) or _nearest(name, known)}".rstrip() for name in unknown)
        raise UsageError(f"{path} has an unknown flag: {told} See --help all.")
    for name, value in values.items():
        flag = name.replace("-", "_")
        if flag not in given:
            yield from as_flags(flag, value)


def _nearest(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name.replace("-", "_"), known, n=1)
    return f"Did you mean {near[0]}?" if near else ""


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--config={path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"--config={path} is no text in UTF-8. Give a file with TOML or JSON.") from None
    try:
        found = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except ValueError as error:  # of both
        raise UsageError(f"--config={path} is no {path.suffix[1:].upper()}: {error}.") from None
    if not isinstance(found, dict):
        raise UsageError(f"--config={path} must hold names and values, found {type(found).__name__}.")
    return found


def write_flags(path: Path, arguments: Sequence[str], config: Config) -> None:
    """Writes the flags that were given, with their values, and says how to start it.

    Raises:
        UsageError: it cannot be written.
    """
    given = names_in(arguments)
    values = {name: value for role in dump(config).values() for name, value in role.items() if name in given}
    values = {name: "None" if value is None else value for name, value in values.items()}  # TOML has no null
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items()]
    text = json.dumps(values, indent=2) if path.suffix == ".json" else "\n".join(lines)
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--save_config={path} cannot be written: {error.strerror}.") from None
    print(f"Wrote {path}. Start it with sf-train --config={path}")


def names_in(arguments: Sequence[str]) -> set[str]:
    """Names of the flags among the arguments."""
    return {word.partition("=")[0].removeprefix("--").replace("-", "_") for word in arguments if word.startswith("--")}
