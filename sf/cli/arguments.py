"""Command lines from dataclasses: every field is a flag ``--name=value`` or ``--name value``.

tyro parses and shows the help. Before it does, the arguments are compared with the fields here. So a mistyped flag gets
a sentence that names it, all of them at once. And tyro would let a flag be given twice.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

import tyro

from sf.cli.habits import SHORT_FLAG, foreign, rewritten
from sf.cli.short_help import show_help
from sf.config.fields import alternatives, strip, typed_fields
from sf.errors import ExitCode, UsageError
from sf.output import discard_output

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Parsed = TypeVar("Parsed", bound="DataclassInstance")

HELP = ("-h", "--help")
_IN_WORDS = {int: "an integer", float: "a number", str: "a text", type(None): "None"}


def parse(
    cls: type[Parsed],
    arguments: Sequence[str],
    prog: str,
    description: str,
    required: str | tuple[str, ...],
    defaults: Callable[[Mapping[str, str]], Parsed] | None = None,
    runs: str | None = None,
    usual: Sequence[str] = (),
) -> Parsed:
    """The dataclass that the arguments describe.

    Args:
        cls: the dataclass; the fields of dataclasses in it are flags as well, one group for each.
        arguments: without the name of the program.
        prog: name of the program.
        description: what it does, for the help.
        required: an argument that must be there, as an example: ``--env=CartPole-v1``; or several, of which one must;
            or none.
        defaults: returns the missing values from the given ones, among them ``help`` if that was asked for. Without it
            the class has the defaults.
        runs: the flag that words without a flag belong to; None where a command has none.
        usual: flags that the help shows if nothing follows ``--help``; empty for all.

    Raises:
        UsageError: with everything that is wrong.
        SystemExit: the help was asked for and has been shown.
    """
    topic, others = _topic_and_others(arguments, usual)
    wants_help = len(others) < len(arguments)
    others = rewritten(dict(flags_of(cls)), others, runs)
    problems = list(_problems(dict(flags_of(cls)), others))
    examples = (required,) if isinstance(required, str) else required
    names = [example.partition("=")[0] for example in examples]
    if required and not (problems or wants_help or any(argument.partition("=")[0] in names for argument in others)):
        verb = "is missing" if len(names) == 1 else "are missing"
        problems.append(f"{' and '.join(names)} {verb}. Give {'it' if len(names) == 1 else 'one'} like {examples[0]}.")
    if problems:
        raise UsageError("\n".join(problems))
    given = {name.removeprefix("--").replace("-", "_"): " ".join(values) for name, values in _grouped(others)}
    if wants_help:
        given["help"] = ""
    default = None if defaults is None else defaults(given)
    if topic is not None:
        show_help(cls, default, topic, usual, prog, description)
    try:
        parsed: Parsed = tyro.cli(  # type: ignore[assignment]  # a default of None is none
            cls,
            default=default,
            prog=prog,
            description=description,
            args=[*others, *(["--help"] if wants_help else [])],
            config=(tyro.conf.FlagConversionOff, tyro.conf.OmitArgPrefixes),
            use_underscores=True,
        )
    except BrokenPipeError:  # the reader of the help has seen enough, such as `head`
        discard_output()
        sys.exit(ExitCode.SIGPIPE)
    return parsed


def _topic_and_others(arguments: Sequence[str], usual: Sequence[str]) -> tuple[str | None, list[str]]:
    """What follows ``--help``, empty if nothing does, and the other arguments; None where the help has one form."""
    others: list[str] = []
    topic, rest = None, list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument.partition("=")[0] not in HELP:
            others.append(argument)
            continue
        topic = argument.partition("=")[2]
        if not topic and rest and not rest[0].startswith("-"):
            topic = rest.pop(0)
    return (topic if usual and topic != "all" else None), others


def flags_of(cls: type[DataclassInstance]) -> Iterator[tuple[str, Any]]:
    """Name and type of every flag."""
    for name, hint in typed_fields(cls).items():
        if is_dataclass(hint):
            yield from flags_of(hint)  # type: ignore[arg-type]  # is_dataclass does not tell classes from instances
        else:
            yield name, hint


def _problems(flags: Mapping[str, Any], arguments: Sequence[str]) -> Iterator[str]:
    seen: dict[str, list[str]] = {}
    for argument, values in _grouped(arguments):
        name = argument.removeprefix("--").replace("-", "_")
        if not argument.startswith("--"):
            example = f", such as --env={argument}" if "env" in flags and not argument.startswith("-") else ""
            yield f"Unexpected argument {argument!r}. Flags are written --name=value{example}."
        elif name not in flags:
            yield f"Unknown flag {argument}. {foreign(name, flags) or _nearest(name, flags)}"
        elif name in seen:
            yield f"--{name} is given twice ({' '.join(seen[name])} and {' '.join(values)}). Give it once."
        else:
            seen[name] = values
            yield from _value_problems(name, flags[name], values)


def _grouped(arguments: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each flag with the values that follow it; arguments before the first flag stand alone."""
    groups: list[tuple[str, list[str]]] = []
    for argument in arguments:
        if argument.startswith("--"):
            flag, equals, value = argument.partition("=")
            groups.append((flag, [value] if equals else []))
        elif groups and groups[-1][0].startswith("--") and not SHORT_FLAG.match(argument):
            groups[-1][1].append(argument)
        else:
            groups.append((argument, []))
    return iter(groups)


def _nearest(name: str, flags: Mapping[str, Any]) -> str:
    known = [*flags, "config", "save_config"]
    near = difflib.get_close_matches(name, known, n=1) or [flag for flag in flags if _initials(flag) == name]
    return f"Did you mean --{near[0]}?" if near else "See --help for all flags."


def _initials(flag: str) -> str:
    return "".join(word[0] for word in flag.split("_"))


def _value_problems(name: str, hint: Any, values: Sequence[str]) -> Iterator[str]:
    plain, _ = strip(hint)
    lists = [member for member in alternatives(plain) if get_origin(member) is tuple]
    if lists:
        plain = get_args(lists[0])[0]
        if list(values) == ["None"] and type(None) in alternatives(hint):
            return
    elif not values:
        yield f"--{name} needs a value: {in_words(plain)}."
    elif len(values) > 1:
        yield f"--{name} takes one value, found {len(values)}: {' '.join(values)}. Put quotes around text with spaces."
    for value in values:
        if any(_converts(strip(member)[0], value) for member in alternatives(plain)):
            continue
        words = value.strip("[()]").replace(",", " ").split() if lists else []
        are_values = len(words) > 1 and all(_converts(strip(plain)[0], word) for word in words)
        several = f" Write --{name} {' '.join(words)}." if are_values else ""
        yield f"--{name}={value} must be {in_words(plain)}.{several}"


def _converts(plain: Any, text: str) -> bool:
    if get_origin(plain) is Literal:
        return text in get_args(plain)
    if plain in (bool, type(None)):
        return text in (("True", "False") if plain is bool else ("None",))
    try:
        plain(text)
    except ValueError:
        return False
    return True


def in_words(hint: Any) -> str:
    """The values of a type in words, to follow "must be"."""
    words = []
    for member in alternatives(hint):
        plain, _ = strip(member)
        choices = get_args(plain) if get_origin(plain) is Literal else ("True", "False") if plain is bool else ()
        words.append(" or ".join(choices) if choices else _IN_WORDS[plain])
    return " or ".join(words)
