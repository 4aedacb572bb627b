"""The help of a command with many flags: those that are used most, one group, or all."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, NoReturn

from sf.config.fields import typed_fields
from sf.errors import ExitCode, UsageError
from sf.output import discard_output

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

WIDEST = 100
COLUMN = 34
"""Where meanings begin."""


def show_help(
    cls: type[DataclassInstance], default: Any, topic: str, usual: Sequence[str], prog: str, description: str
) -> NoReturn:
    """Prints the flags of a topic, and ends the program.

    Args:
        cls: groups of flags, each a dataclass.
        default: an instance with other defaults than the class has, or None.
        topic: a group; empty for the usual flags.
        usual: their names, in the order in which they are shown.
        prog: name of the program.
        description: what it does.

    Raises:
        UsageError: there is no such group.
    """
    from sf.config.texts import docstrings

    groups = {name: hint for name, hint in typed_fields(cls).items() if isinstance(hint, type)}
    if topic and topic not in groups:
        raise UsageError(f"--help {topic} is no group of flags. There are all, {', '.join(groups)}.")
    known = {field.name: (name, field) for name, hint in groups.items() for field in fields(hint)}
    names = [field.name for field in fields(groups[topic])] if topic else usual
    lines = [f"usage: {prog} [--flag=value ...]", "", *textwrap.wrap(description, _width()), ""]
    for name in names:
        group, field = known[name]
        value = field.default if default is None else getattr(getattr(default, group), name)
        lines += _entry(name, value if field.default is not MISSING else MISSING, docstrings(groups[group])[name])
    others = (
        f"--help all shows the {len(known)} flags, --help learner a group: {', '.join(groups)}. --config=FILE reads "
        "flags from a file, and --save_config=FILE writes one. --env=? lists environments."
    )
    lines += ["", *textwrap.wrap(others, _width())]
    try:
        print("\n".join(lines))
    except BrokenPipeError:
        discard_output()
        sys.exit(ExitCode.SIGPIPE)
    sys.exit(ExitCode.FINISHED)


def _entry(name: str, value: Any, meaning: str) -> list[str]:
    """A flag with its default, and its meaning beside it."""
    default = "" if value is MISSING else f"={value}"
    if isinstance(value, tuple):
        default = " " + " ".join(map(str, value))
    head = f"  --{name}{default}"
    first, *rest = textwrap.wrap(meaning, _width() - COLUMN)
    if len(head) > COLUMN - 2:
        return [head, *(" " * COLUMN + line for line in (first, *rest))]
    return [f"{head:<{COLUMN}}{first}", *(" " * COLUMN + line for line in rest)]


def _width() -> int:
    return max(72, min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns))
