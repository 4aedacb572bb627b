"""``python -m sf.cli.reference DIRECTORY``: the reference pages, written from the code that they describe."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from sf.cli.arguments import in_words
from sf.config.fields import alternatives, strip, typed_fields
from sf.config.texts import docstrings

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from sf.errors import SfError
    from sf.monitor.tags import TagRow

GENERATED = "<!-- Written by `make docs` from the code; changes belong there. -->"
TRAINING = """
The last minibatch of an iteration: of each one in a young run, later every fortieth of the time so far, and at least
every 2 s (60 s at 100,000 optimizer steps, 120 s at 1,000,000).

r is the probability ratio exp(log π_now - log π_acting), A the advantage, V the value, R its target. With several
learners per policy all numbers are those of all of them. Means over the minibatch are weighted with the sizes of the
shares; minima and maxima cover all shares. Only `explained_variance` and `adv_std` are means of what each learner finds
in its own share.
""".strip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes all pages into a directory."""
    (directory,) = map(Path, sys.argv[1:] if arguments is None else arguments)
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (directory / name).write_text(text, encoding="utf-8")
    return 0


def pages() -> dict[str, str]:
    """File name to text."""
    texts = {
        "flags.md": flags_page(),
        "commands.md": commands_page(),
        "metrics.md": metrics_page(),
        "exit-codes.md": exit_codes_page(),
    }
    return {name: f"{GENERATED}\n\n{text}" for name, text in texts.items()}


def flags_page() -> str:
    """The flags of ``sf-train``, one table for each role."""
    from sf.config import Config

    parts = [
        "# Flags of `sf-train`",
        "`--flag=value` and `--flag value` both work. Booleans are written `True` and `False`, or as `--flag` and "
        "`--no-flag`, lists as `--encoder_mlp_layers 64 64`, and large numbers as `1e6`. `--config=run.toml` reads "
        "flags from a file. [Configuration](../configuration.md) says how open flags (None) are chosen, and "
        "what presets set.",
    ]
    for name, role in typed_fields(Config).items():
        parts += [f"## {name.capitalize()}", str(role.__doc__), flag_table(role)]
    return _joined(parts)


def commands_page() -> str:
    """The flags of all other commands."""
    from sf.cli import bench
    from sf.cli.all_commands import commands

    parts = [
        "# Flags of the other commands",
        "Every command shows its flags with `--help`. `sf eval` is `sf-eval`, and so for each of them; `sf` lists "
        "them. The name or the directory of a run needs no flag: `sf-eval cartpole`.",
    ]
    for command in commands():
        what, _, example = command.description.partition(" Example: ")
        about = str(command.config.__doc__)
        parts += [f"## {command.usage}", what, f"    {example}", about, flag_table(command.config)]
    rows = [(f"`sf-bench {name}`", text) for name, text in bench.COMMANDS.items()]
    parts += ["## sf-bench", "Each takes the [flags of `sf-train`](flags.md).", table(("Command", "Effect"), rows)]
    what = "Prints a script with which the shell completes commands, flags, their values, environments and runs; see"
    parts += ["## sf completion bash|zsh", f"{what} [configuration](../configuration.md#completion)."]
    return _joined(parts)


def metrics_page() -> str:
    """All curves."""
    from sf.monitor import tags

    return _joined(
        [
            "# Metrics",
            "The curves of TensorBoard and of `metrics.jsonl`. The console has [its own page](../metrics.md).",
            "## The run",
            "For each policy, at least every `experiment_summaries_interval` seconds, and more often in a young run.",
            curve_table(tags.RUN),
            "## Faults",
            "Of the whole run, in the files of policy 0, at the same times.",
            curve_table(tags.FAULTS),
            "## Training: `train/`",
            TRAINING,
            curve_table(tags.TRAIN, "train/"),
            "An [algorithm](../algorithms.md) of your own adds the terms of its loss.",
            "## Evaluation",
            "After each evaluation, with `--eval_every_steps`.",
            curve_table(tags.EVALUATION),
        ]
    )


def exit_codes_page() -> str:
    """Exit codes, and the exceptions behind them."""
    from sf.errors import ExitCode, SfError

    words = docstrings(ExitCode)
    codes = [(str(code.value), f"`{code.name}`", words[code.name]) for code in ExitCode]
    errors = [
        (f"`{error.__name__}`", f"`{error.__mro__[1].__name__}`", str(error.exit_code.value), str(error.__doc__))
        for error in _below(SfError)
    ]
    return _joined(
        [
            "# Exit codes",
            "Of every command. `summary.json` of a run that has begun to train has its code and says why it ended.",
            table(("Code", "Name", "Meaning"), codes),
            "## Exceptions",
            "`sf.train` and the classes of `sf` raise these; a command prints them and ends with their code.",
            table(("Exception", "Base", "Code", "Meaning"), errors),
            "An error in a child process is shown with the name of the process and its traceback. Usage errors come "
            "before any directory exists. See [failure and shutdown](../failure-and-shutdown.md).",
        ]
    )


def flag_table(config: type[DataclassInstance]) -> str:
    """One row for each field."""
    words, types = docstrings(config), typed_fields(config)
    rows = [
        (f"`--{field.name}`", values_in_words(types[field.name]), _default(field), words[field.name])
        for field in fields(config)
    ]
    return table(("Flag", "Value", "Default", "Meaning"), rows)


def values_in_words(hint: Any) -> str:
    """Type and range of a flag: "an integer, at least 1, or None"."""
    plain, allowed = strip(hint)
    if get_origin(plain) is tuple:
        return f"list: each {values_in_words(get_args(plain)[0])}"
    if get_origin(plain) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(plain))
    members = alternatives(plain)
    if len(members) > 1:
        return ", or ".join(values_in_words(member) for member in members)
    return in_words(plain) if allowed is None else f"{in_words(plain)}, {allowed}"


def curve_table(curves: Iterable[TagRow], prefix: str = "") -> str:
    """One row for each meaning."""
    rows = [
        (", ".join(f"`{prefix}{tag}`" for tag in curve.tags.split()), curve.unit, curve.meaning) for curve in curves
    ]
    return table(("Tag", "Unit", "Meaning"), rows)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _below(error: type[SfError]) -> Iterator[type[SfError]]:
    yield error
    for child in error.__subclasses__():
        if child.__module__ == error.__module__:
            yield from _below(child)


def _default(field: Field[Any]) -> str:
    if field.default is MISSING:
        return "required"
    if isinstance(field.default, tuple):
        return f"`{' '.join(map(str, field.default))}`" if field.default else "none"
    return f"`{field.default}`"


def _joined(parts: Iterable[str]) -> str:
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(main())
