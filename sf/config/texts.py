"""What stands below the fields of a dataclass, or the members of an enum, in its source."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import is_dataclass


def docstrings(cls: type) -> dict[str, str]:
    """Name to the text below it, of the fields of a dataclass and of those above it, or the members of an enum."""
    above = [docstrings(base) for base in reversed(cls.__bases__) if is_dataclass(base)]
    found = {name: text for texts in above for name, text in texts.items()}
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    name = ""
    for node in tree.body:
        if isinstance(node, ast.AnnAssign | ast.Assign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            name = target.id if isinstance(target, ast.Name) else ""
        elif name and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found[name] = " ".join(str(node.value.value).split())
            name = ""
        else:
            name = ""
    return found
