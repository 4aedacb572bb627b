"""Runs the notebooks in examples/ and keeps their outputs in them; `make notebooks`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbclient
import nbformat

EXAMPLES = Path(__file__).parent.parent / "examples"
TEMPORARY = re.compile(r"/tmp/tmp\w+")
"""Directory of the runs of a notebook, which has another name each time."""


def main() -> None:
    """Writes each notebook."""
    for path in sorted(EXAMPLES.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        metadata = [notebook.metadata, *(cell.metadata for cell in notebook.cells)]
        nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
        notebook.metadata, *of_cells = metadata
        for cell, own in zip(notebook.cells, of_cells, strict=True):
            cell.metadata = {name: value for name, value in own.items() if name != "execution"}
            if cell.cell_type == "code":
                cell.outputs = joined(cell.outputs)
        path.write_text(nbformat.writes(notebook).rstrip("\n") + "\n", encoding="utf-8")
        print(f"Wrote {path}")


def joined(outputs: list[Any]) -> list[Any]:
    """Neighbouring pieces of printed text as one, with one name for the directory of the runs."""
    found: list[Any] = []
    for output in outputs:
        if output.output_type == "stream":
            output.text = TEMPORARY.sub("/tmp/runs", output.text)
            if found and found[-1].get("name") == output.name:
                found[-1].text += output.text
                continue
        found.append(output)
    return found


if __name__ == "__main__":
    main()
