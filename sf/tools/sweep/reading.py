"""Reads the file of a sweep. The parser of ``sf-train`` checks every flag and value before anything starts."""

from __future__ import annotations

import itertools
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sf.config import Config
from sf.config.checks import range_problems
from sf.config.fields import typed_fields
from sf.config.storage import load
from sf.errors import ConfigError, SfError, UsageError
from sf.tools.sweep.description import Description, Settings, Span
from sf.tools.sweep.objectives import objective_problem

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FLAG_TABLES = "flags", "values", "ranges"
TABLES = *FLAG_TABLES, "slurm", "ray"
SET_BY_SWEEP = {
    "experiment": "The sweep names its runs.",
    "train_dir": "Give it at the top of the file.",
    "seed": "Give seeds = [1, 2] at the top of the file.",
    "restart_behavior": "Runs of a sweep are always resumed.",
    "config": "Give the flags of that file here.",
    "save_config": "It writes a file and starts nothing.",
    "help": "It starts nothing.",
}
"""Flags that the file may not give, with the reason."""
DECISIVE = "env", "preset", "algorithm", "algorithm_defaults"
"""Flags by which others are judged: with a mistake in one of them, what the parser says of the others may be false."""
MOST_CHECKED = 100
"""Combinations that are parsed before the start; each takes 40 ms."""

Check = Callable[[Mapping[str, Any]], Config]
"""From all flags of a run to its configuration; raises an SfError with everything that is wrong."""
Loaded = TypeVar("Loaded", bound="DataclassInstance")


class Problem(NamedTuple):
    """A sentence, and the place in the file that it is about."""

    table: str
    key: str
    sentence: str


def read_description(path: Path, check: Check) -> Description:
    """The sweep in a file.

    Raises:
        UsageError: there is no such file, or it is no TOML.
        ConfigError: with everything that is wrong in it, and the lines.
    """
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}. Give a file like examples/sweep.toml.") from None
    except ValueError as error:  # also of an encoding
        raise UsageError(f"{path} is not TOML: {error}.") from None
    problems: list[Problem] = []
    description = _described(data, problems)
    if description is not None:
        problems += (unknown := list(_unknown(data, check)))
        if not any(name == each.key or f"--{name}?" in each.sentence for each in problems for name in DECISIVE):
            problems += _flag_problems(description.without({each.key for each in unknown}), check)
    if problems or description is None:
        lines = text.splitlines()
        raise ConfigError([f"{path}{_place(lines, each.table, each.key)}: {each.sentence}" for each in problems])
    return description


def _described(data: Mapping[str, Any], problems: list[Problem]) -> Description | None:
    """The description if its form is right; else None, and problems."""
    tables = {name: data.get(name, {}) for name in TABLES}
    for name, table in tables.items():
        if not isinstance(table, dict):
            problems.append(Problem("", name, f"{name} must be a table: write [{name}] and the keys below it."))
    settings = _settings({name: value for name, value in data.items() if name not in TABLES}, problems)
    if not all(isinstance(table, dict) for table in tables.values()):
        return None
    if settings is not None:
        given = {name for table in FLAG_TABLES for name, value in tables[table].items() if value != 0}
        if sentence := objective_problem(settings.objective, given):
            problems.append(Problem("", "objective", sentence))
    problems += _misplaced(tables)
    values = {key: _values(key, given, problems) for key, given in tables["values"].items()}
    ranges = {key: _span(key, given, problems) for key, given in tables["ranges"].items()}
    tables["values"] = {key: some for key, some in values.items() if some}
    tables["ranges"] = {key: span for key, span in ranges.items() if span is not None}
    return Description(settings or Settings("sweep"), **tables).without(SET_BY_SWEEP)


def _values(key: str, given: Any, problems: list[Problem]) -> list[Any]:
    if not isinstance(given, list) or not given:
        problems.append(Problem("values", key, f"{key} must be a list of values to try, found {given!r}."))
        return [] if isinstance(given, (list, dict)) else [given]
    if twice := [value for value in given if given.count(value) > 1]:
        problems.append(Problem("values", key, f"{key} has {twice[0]!r} twice. Give each value once."))
    return given


def _settings(data: Mapping[str, Any], problems: list[Problem]) -> Settings | None:
    known = typed_fields(Settings)
    flags = {flag for role in typed_fields(Config).values() for flag in typed_fields(role)} - set(known)
    for name in data.keys() & flags:
        advice = SET_BY_SWEEP.get(name, "Move it below [flags].")
        problems.append(Problem("", name, f"{name} is a flag of sf-train. {advice}"))
    settings, sentences = _loaded(Settings, {name: value for name, value in data.items() if name not in flags})
    problems += [Problem("", re.split(r"[ =]", sentence)[0], sentence) for sentence in sentences]
    if settings is not None and not settings.seeds:
        problems.append(Problem("", "seeds", "seeds is empty. Give one seed at least, like seeds = [1]."))
    if settings is not None and len(set(settings.seeds)) < len(settings.seeds):
        problems.append(Problem("", "seeds", f"seeds={list(settings.seeds)} has a seed twice. Give each seed once."))
    return settings


def _misplaced(tables: Mapping[str, Mapping[str, Any]]) -> Iterator[Problem]:
    """Flags that the sweep sets itself, and those that are given twice."""
    for name in FLAG_TABLES:
        for key in tables[name].keys() & SET_BY_SWEEP.keys():
            yield Problem(name, key, f"{key} cannot be in [{name}]. {SET_BY_SWEEP[key]}")
    for one, other in itertools.combinations(FLAG_TABLES, 2):
        for key in tables[one].keys() & tables[other].keys():
            yield Problem(other, key, f"{key} is in [{one}] and in [{other}]. Give it once.")


def _span(key: str, given: Any, problems: list[Problem]) -> Span | None:
    if not isinstance(given, dict):
        sentences = [f"{key} must be a range like {{ low = 1, high = 8 }}, found {given!r}."]
        span = None
    else:
        span, sentences = _loaded(Span, given)
        sentences = [f"{key}: {each}" for each in sentences]
        if span is not None and (found := span.problem()) and not sentences:
            sentences = [f"{key}: {found}"]
    problems += [Problem("ranges", key, sentence) for sentence in sentences]
    return None if sentences else span


def _loaded(cls: type[Loaded], data: Mapping[str, Any]) -> tuple[Loaded | None, list[str]]:
    """A dataclass from a table, and what is wrong with it; `load` writes of the file of a run."""
    try:
        loaded = load(cls, data)
    except ConfigError as error:
        return None, [problem.removeprefix("Configuration: ") for problem in error.problems]
    return loaded, range_problems(loaded)


def _unknown(data: Mapping[str, Any], check: Check) -> Iterator[Problem]:
    """The keys of the tables that are no flags, with what the parser says of their names."""
    tables = {key: table for table in FLAG_TABLES for key in data.get(table, {}) if key not in SET_BY_SWEEP}
    sentences = _said(check, dict.fromkeys(tables, 1))
    for key, table in tables.items():
        yield from (Problem(table, key, each) for each in sentences if each.startswith(f"Unknown flag --{key}."))


def _flag_problems(description: Description, check: Check) -> Iterator[Problem]:
    """What the parser says to every value beside the first ones of the others, then to combinations."""
    tried = {key: list(values) for key, values in description.values.items()}
    tried |= {key: _probes(span) for key, span in description.ranges.items()}
    first = description.first
    alone = ({**first, key: value} for key, values in tried.items() for value in values[1:])
    together = (dict(zip(tried, each, strict=True)) for each in itertools.product(*tried.values()))
    told: set[Problem] = set()
    for combination in itertools.chain([first], alone, itertools.islice(together, MOST_CHECKED)):
        for sentence in refusals(description, combination, check):
            if (problem := _blamed(sentence, description)) not in told:
                told.add(problem)
                yield problem


def refusals(description: Description, varied: Mapping[str, Any], check: Check) -> list[str]:
    """The sentences of the parser to one combination."""
    settings = description.settings
    given = {**description.flags, **varied, "experiment": settings.sweep, "train_dir": settings.train_dir}
    return _said(check, given)


def _said(check: Check, flags: Mapping[str, Any]) -> list[str]:
    try:
        check(flags)
    except ConfigError as error:
        return list(error.problems)
    except SfError as error:
        return str(error).split("\n")
    return []


def _probes(span: Span) -> list[Any]:
    """The ends of a range, and a number between them that a flag of whole numbers refuses."""
    between = [] if span.integer else [span.low + (span.high - span.low) / math.pi]
    return [span.rounded(each) for each in (span.low, span.high, *between)]


def _blamed(sentence: str, description: Description) -> Problem:
    """The sentence with the place of the first flag that it names."""
    tables = {key: table for table in FLAG_TABLES for key in getattr(description, table)}
    words = [word.strip("-").replace("-", "_") for word in re.findall(r"[\w-]+", sentence)]
    for word in words:
        key = next((key for key in tables if key.replace("-", "_") == word), "")
        if key in description.ranges and "must be an integer" in sentence:
            return Problem("ranges", key, f"{key} takes whole numbers. Add integer = true to its range.")
        if key:
            return Problem(tables[key], key, sentence)
    if sentence.startswith("--env is missing"):
        return Problem("", "flags", 'env is missing. Give it like env = "CartPole-v1" below [flags].')
    own = {"experiment": "sweep", "train_dir": "train_dir"}
    return Problem("", next((own[word] for word in words if word in own), ""), sentence)


def _place(lines: Sequence[str], table: str, key: str) -> str:
    """The line of a key, to follow the name of the file; "" if it is not to be found."""
    wanted = f"{table}.{key}" if table else key
    current = ""
    for number, line in enumerate(lines, 1):
        header = re.match(r"\s*\[+\s*([^\]]*?)\s*\]", line)
        name = re.match(r"""\s*["']?([\w.-]+)["']?\s*=""", line)
        if header:
            current = header[1]
        found = current if header else f"{current}.{name[1]}".lstrip(".") if name else ""
        if found and found == wanted:
            return f", line {number}"
    return ""
