"""Names of Python and torch that are not public have two homes, and are there in the versions that were tried."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from multiprocessing import forkserver, popen_forkserver, popen_spawn_posix, resource_tracker, spawn, util
from pathlib import Path

import pytest
import torch
from torch._C._distributed_c10d import ProcessGroupGloo

from sf.tools.doctor.software import TRIED

ROOT = Path(__file__).parents[1] / "sf"
HOMES = {"processes/private.py", "nets/private.py"}
TRIED_TORCH = ("2.13",)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names(path: Path) -> Iterator[str]:
    """Those of modules that are not ours: ``torch._name``, ``a.b._name`` of an imported a, ``from a import _name``."""
    tree, imported = ast.parse(path.read_text()), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {(name.asname or name.name).partition(".")[0] for name in node.names}
            yield from (name.name for name in node.names if any(map(is_private, name.name.split("."))))
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("sf"):
            imported |= {name.asname or name.name for name in node.names}
            parts = *(node.module or "").split("."), *(name.name for name in node.names)
            yield from (f"{node.module}: {part}" for part in parts if is_private(part))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            root = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            if isinstance(root, ast.Name) and root.id in imported:
                yield ast.unparse(node)


def test_private_names_of_others_have_two_homes() -> None:
    found = {
        str(path.relative_to(ROOT)): sorted(set(private_names(path)))
        for path in sorted(ROOT.rglob("*.py"))
        if any(private_names(path))
    }
    public = {"os._exit", "_typeshed: _typeshed"}  # documented, and types alone
    assert {path for path, names in found.items() if set(names) - public} == HOMES


def test_private_names_are_there_in_the_versions_that_were_tried() -> None:
    if sys.version_info[:2] not in TRIED or not torch.__version__.startswith(TRIED_TORCH):
        pytest.skip(f"tried with Python {TRIED} and torch {TRIED_TORCH}, and not with these versions")
    assert callable(spawn._main)
    assert callable(popen_forkserver._DupFd)
    assert callable(popen_spawn_posix._DupFd)
    assert isinstance(util._args_from_interpreter_flags(), list)  # type: ignore[attr-defined]
    assert hasattr(forkserver._forkserver, "_inherited_fds")
    assert hasattr(resource_tracker._resource_tracker, "_fd")
    assert callable(torch._fused_adam_)
    assert hasattr(ProcessGroupGloo, "_Options")
