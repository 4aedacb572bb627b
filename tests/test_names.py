"""A name stands for one thing, and a docstring begins with its subject."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1] / "sf"
REPOSITORY = ROOT.parent
BEGINS_WITH_OF = re.compile("""["']Of """)


def test_no_two_classes_have_one_name() -> None:
    homes = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        for part in ast.walk(ast.parse(path.read_text())):
            if isinstance(part, ast.ClassDef):
                homes[part.name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_no_docstring_begins_with_of() -> None:
    folders = "sf", "envs", "tests", "examples", "benchmarks"
    paths = [path for folder in folders for path in sorted((REPOSITORY / folder).rglob("*.py"))]
    assert [str(path) for path in paths if any(text.startswith("Of ") for text in lone_texts(path))] == []


def lone_texts(path: Path) -> list[str]:
    """Texts that stand alone in a file, as docstrings do; none of a file in which no text begins so, to save time."""
    if not BEGINS_WITH_OF.search(path.read_text()):
        return []
    statements = [part.value for part in ast.walk(ast.parse(path.read_text())) if isinstance(part, ast.Expr)]
    return [part.value for part in statements if isinstance(part, ast.Constant) and isinstance(part.value, str)]
