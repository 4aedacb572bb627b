"""A name stands for one thing."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1] / "sf"


def test_no_two_classes_have_one_name() -> None:
    homes = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        for part in ast.walk(ast.parse(path.read_text())):
            if isinstance(part, ast.ClassDef):
                homes[part.name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}
