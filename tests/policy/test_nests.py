"""Structures of tensors: what is left out, and where two of them differ."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from sf.policy.nests import check_structure, without_extra_keys


class Pair(NamedTuple):
    left: Any
    right: Any


class Other(NamedTuple):
    left: Any
    right: Any


@pytest.mark.parametrize(
    ("nest", "wanted", "left"),
    [
        ({"a": 1, "b": 2}, {"a": 0}, {"a": 1}),
        ([{"a": 1, "b": 2}, 3], [{"a": 0}, 0], [{"a": 1}, 3]),
        (({"a": 1, "b": 2}, 3), ({"a": 0}, 0), ({"a": 1}, 3)),
        (Pair({"a": 1, "b": 2}, 3), Pair({"a": 0}, 0), Pair({"a": 1}, 3)),
        ([{"a": 1, "b": 2}], [{"a": 0}, 0], [{"a": 1, "b": 2}]),
        ({"b": 2}, {"a": 0}, {"b": 2}),
        ([], [], []),
        (5, {"a": 0}, 5),
    ],
)
def test_extra_keys_are_left_out_at_every_depth(nest: Any, wanted: Any, left: Any) -> None:
    found = without_extra_keys(nest, wanted)
    assert found == left
    assert type(found) is type(left)


@pytest.mark.parametrize(
    ("nest", "wanted", "message"),
    [
        ({"a": (1, [2])}, {"a": (0, 0)}, r"action\['a'\]\[1\] is .*, expected one int"),
        ({"a": 1}, {"a": 0, "b": 0}, "action is .*, expected .*'b'"),
        ((1, 2), [0, 0], "action is .*tuple.*, expected .*list"),
        (Pair(1, 2), Other(0, 0), "action is .*Pair.*, expected .*Other"),
        (Pair(1, {"c": 2}), Pair(0, {"d": 0}), r"action\.right|action\['right'\]|action\[1\]"),
    ],
)
def test_first_difference_is_named_with_its_place(nest: Any, wanted: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_structure(nest, wanted, "action")


@pytest.mark.parametrize("nest", [1, {"a": (1, [2])}, Pair({"x": 1}, (2,)), [], {}])
def test_equal_structures_pass(nest: Any) -> None:
    check_structure(nest, nest, "action")
