"""Walks over the fields of configuration dataclasses and over their types, for any dataclass."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin, get_type_hints

from sf.config.ranges import Range

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@cache
def typed_fields(cls: type[DataclassInstance]) -> Mapping[str, Any]:
    """Field name to type, with the ranges that are written into it."""
    hints = get_type_hints(cls, include_extras=True)
    return MappingProxyType({field.name: hints[field.name] for field in fields(cls)})


def strip(hint: Any) -> tuple[Any, Range | None]:
    """A type without its annotation, and the range in the annotation."""
    if get_origin(hint) is not Annotated:
        return hint, None
    plain, *extras = get_args(hint)
    return plain, next((extra for extra in extras if isinstance(extra, Range)), None)


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the type itself."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def numbers(hint: Any, value: Any) -> Iterator[tuple[float, Range | None]]:
    """The numbers in a value, each with the range that its type gives it."""
    if value is None:
        return
    for member in alternatives(hint):
        plain, allowed = strip(member)
        if get_origin(plain) is tuple and isinstance(value, tuple):
            for element in value:
                yield from numbers(get_args(plain)[0], element)
        elif plain in (int, float) and not isinstance(value, str):
            yield value, allowed
