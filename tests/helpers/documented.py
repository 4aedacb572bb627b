"""The commands, files and flags of the documentation."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w*)\n((?:.*\n)*?)```$|((?:^ {4}.*\n|^\n)+)", re.M)
PROGRAM = re.compile(r"(?:sf|sf-\w+|python|make|torchrun|srun|pip|chrt|tensorboard)$")
VALUE = "\0"
"""In the place of what an f-string computes."""
LEAST_LETTERS = 10
NUMBER = re.compile(r"\d[\d,.]*(?:e[+-]?\d+)?")


@dataclass(frozen=True)
class Command:
    """One command of a page."""

    page: str
    arguments: tuple[str, ...]
    """The program is the first one."""
    output: tuple[str, ...] = ()
    """The lines that the page shows below it."""

    def __str__(self) -> str:
        """As an id of a test."""
        return f"{self.page}: {shlex.join(self.arguments)}"


@dataclass(frozen=True)
class Page:
    """A page in Markdown."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def blocks(self) -> list[tuple[str, str]]:
        """Language and text of every block of code; the language of an indented one is empty."""
        found = []
        for match in BLOCK.finditer(self.text):
            language, fenced, indented = match.groups()
            if fenced is not None:
                found.append((language, fenced))
            elif indented.strip():
                found.append(("", re.sub("^ {4}", "", indented, flags=re.M)))
        return found

    @property
    def files(self) -> dict[str, str]:
        """Name to text of the blocks that begin with the comment ``# name.py``."""
        found = {}
        for language, text in self.blocks:
            if language == "python" and (name := re.match(r"# (\w+\.py)\n", text)):
                found[name[1]] = text
        return found

    @property
    def commands(self) -> Iterator[Command]:
        """The commands in blocks, in order."""
        for language, text in self.blocks:
            if language not in ("python", "mermaid", "toml"):
                yield from self._commands(re.sub(r"\\\n\s*", " ", text).splitlines())

    @property
    def inline_commands(self) -> Iterator[Command]:
        """The commands with flags in the lines of the page."""
        prose = BLOCK.sub("", self.text)
        for code in re.findall(r"`([^`\n]+)`", prose):
            words = code.split()
            if PROGRAM.match(words[0]) and ("--" in code or words[0] in ("make", "python")):
                yield Command(self.name, tuple(shlex.split(code)))

    def _commands(self, lines: list[str]) -> Iterator[Command]:
        """A line of output belongs to the command above it, if that is marked with a dollar."""
        for index, line in enumerate(lines):
            plain = line.removeprefix("$ ")
            if not PROGRAM.match(plain.partition(" ")[0]):
                continue
            output = []
            if line != plain:
                for shown in lines[index + 1 :]:
                    if shown.startswith("$ "):
                        break
                    output.append(shown)
            yield Command(self.name, tuple(shlex.split(plain, comments=True)), tuple(filter(str.strip, output)))


PAGES = [Page(ROOT / "README.md"), *(Page(path) for path in sorted((ROOT / "docs").glob("**/*.md")))]


def pattern_of(line: str) -> str:
    """A line of output without its time, its process, its directory, its numbers and what a busy machine adds to it."""
    line = re.sub(r"^\[[\d :,-]+\]\[\d+\] ", "", line.strip())
    line = re.sub(r"discarded \(.*?\)", "discarded", line)
    line = line.replace("; larger where a worker waits for a core or its environments", "")
    return NUMBER.sub("#", re.sub(r"/\S*/train_dir", "train_dir", line))


@cache
def sentences() -> list[re.Pattern[str]]:
    """The sentences in the code of sf that can be told apart: groups of words, with values between them."""
    found = set()
    for path in sorted((ROOT / "sf").glob("**/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            texts = [str(part.value) if isinstance(part, ast.Constant) else VALUE for part in parts]
            for sentence in re.split(r"(?<=\.) |\n", re.sub("%[dsg]", VALUE, "".join(texts))):
                if len(sentence.replace(VALUE, "")) >= LEAST_LETTERS and " " in sentence:
                    found.add(
                        ".*?".join(f"({re.escape(words)})" for words in sentence.strip(VALUE + " ,;:").split(VALUE))
                    )
    return [re.compile(text) for text in sorted(found)]


def share_said_by_sf(line: str) -> float:
    """The share of the letters of a line that are words of the code; the rest is values, or words of something else."""
    line = re.sub(r"/\S*train_dir\S*", "/", line)
    said: set[int] = set()
    for sentence in sentences():
        if match := sentence.search(line):
            said.update(*(range(*span) for span in match.regs[1:]))
    letters = {index for index, letter in enumerate(line) if letter.isalpha()}
    return len(said & letters) / max(1, len(letters))
