"""Configurations as plain JSON, read back with every name and type checked: the file may have been edited by hand."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

from sf.config.fields import alternatives, strip, typed_fields
from sf.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Loaded = TypeVar("Loaded", bound="DataclassInstance")

_MISMATCH = object()
_IN_WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "a text", type(None): "null"}


def dump(value: Any) -> Any:
    """Dataclasses as dicts and tuples as lists."""
    if is_dataclass(value):
        return {field.name: dump(getattr(value, field.name)) for field in fields(value)}
    return [dump(element) for element in value] if isinstance(value, tuple) else value


def load(cls: type[Loaded], data: Any) -> Loaded:
    """The dataclass that `dump` made `data` from; ConfigError with everything that does not fit."""
    problems: list[str] = []
    values = _read(cls, data, "", problems)
    if problems:
        raise ConfigError(problems)
    return _build(cls, values)


def without(data: Any, names: Mapping[str, Sequence[str]]) -> Any:
    """The JSON objects of `data` without some of their entries; anything else as it is."""
    if not isinstance(data, Mapping):
        return data
    return {
        part: {name: value for name, value in values.items() if name not in names.get(part, ())}
        if isinstance(values, Mapping)
        else values
        for part, values in data.items()
    }


def _read(cls: type[DataclassInstance], data: Any, path: str, problems: list[str]) -> dict[str, Any]:
    """The values for the fields of `cls`, dicts for the dataclasses among them."""
    if not isinstance(data, Mapping):
        problems.append(f"Configuration: {path.rstrip('.') or 'the file'} must be a JSON object, found {data!r}.")
        return {}
    hints = typed_fields(cls)
    problems += [_unknown(path, name, hints) for name in data if name not in hints]
    values: dict[str, Any] = {}
    for field in fields(cls):
        if field.name not in data:
            if field.default is field.default_factory is MISSING:
                problems.append(f"Configuration: {path}{field.name} is missing.")
        elif is_dataclass(hint := hints[field.name]):
            values[field.name] = _read(hint, data[field.name], f"{path}{field.name}.", problems)  # type: ignore[arg-type]  # a class
        elif (value := _convert(hint, data[field.name])) is not _MISMATCH:
            values[field.name] = value
        else:
            problems.append(f"Configuration: {path}{field.name} must be {_in_words(hint)}, found {data[field.name]!r}.")
    return values


def _build(cls: type[Loaded], values: dict[str, Any]) -> Loaded:
    hints = typed_fields(cls)
    return cls(
        **{name: _build(hints[name], value) if is_dataclass(hints[name]) else value for name, value in values.items()}
    )


def _unknown(path: str, name: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(str(name), known, n=1)
    return f"Configuration: {path}{name} is unknown. {f'Did you mean {near[0]}?' if near else 'Remove it.'}"


def _convert(hint: Any, value: Any) -> Any:
    """The JSON value as the type of the field, or _MISMATCH."""
    for member in alternatives(hint):
        plain, _ = strip(member)
        if get_origin(plain) is tuple:
            if isinstance(value, list):
                elements = tuple(_convert(get_args(plain)[0], element) for element in value)
                return _MISMATCH if _MISMATCH in elements else elements
        elif get_origin(plain) is Literal:
            if isinstance(value, str) and value in get_args(plain):
                return value
        elif plain is float and type(value) is int:
            return float(value)
        elif type(value) is plain:  # not isinstance: True is no number here
            return value
    return _MISMATCH


def _in_words(hint: Any) -> str:
    words = []
    for member in alternatives(hint):
        plain, _ = strip(member)
        if get_origin(plain) is Literal:
            words.append(f"one of {', '.join(get_args(plain))}")
        else:
            words.append(_IN_WORDS.get(plain) or f"a list of {'texts' if get_args(plain)[0] is str else 'numbers'}")
    return " or ".join(words)
