"""The CPU time that a frame costs, part by part: a table to keep, and what this code does to it.

    python benchmarks/frame_costs.py [WORKLOAD ...] [--rounds 4] [--seconds 15] [--write]
    python benchmarks/frame_costs.py --compare [--base REVISION] [WORKLOAD ...]

`--write` puts the table into docs/benchmarks.md. `--compare` runs the revision that the table was measured at, or
another one, and this code in turns, in the other order after each round. It ends with code 1 if a frame costs 3 % more
than there.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from peers import WORKLOADS
from side_by_side import flags

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- costs of a frame: begin -->", "<!-- costs of a frame: end -->"
LINE = re.compile(r"^  (\w+) +([\d.]+) us$", re.MULTILINE)
REVISION = re.compile(r"Measured at ([0-9a-f]{7,40})")
LOSS = 1.03
"""Ratio from which on a frame has become dearer."""
TOGETHER = "together"
TOO_SHORT = "Two training iterations must end"
LONGEST_S = 120

Costs = Mapping[str, float]
"""Microseconds by part."""


def measured(tree: Path, workload: str, seconds: int) -> Costs:
    """One run of the code in a tree, longer than asked for where that holds too few training iterations.

    Raises:
        SystemExit: it fails, as code without `sf-bench cost` does.
    """
    work = WORKLOADS[workload]
    kept = [
        flag for flag in flags(work, work.workers, "unused") if not flag.startswith(("--train_dir", "--experiment"))
    ]
    line = [sys.executable, "-m", "sf.cli.bench", "cost", *kept, f"--train_for_seconds={seconds}"]
    path = os.pathsep.join([str(tree), str(tree / "envs")])
    done = subprocess.run(line, cwd=tree, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    costs = {part: float(value) for part, value in LINE.findall(done.stdout)}
    if TOGETHER not in costs and TOO_SHORT in done.stderr and seconds < LONGEST_S:
        return measured(tree, workload, 2 * seconds)
    if TOGETHER not in costs:
        sys.exit(f"{tree}: sf-bench cost has failed on {workload}:\n{done.stderr[-2000:]}")
    return costs


def medians(runs: list[Costs]) -> Costs:
    """By part."""
    return {part: statistics.median(run[part] for run in runs) for part in runs[0]}


def table(found: Mapping[str, list[Costs]], revision: str) -> str:
    """Markdown: a row for each workload, a column for each part."""
    parts = [*next(iter(found.values()))[0]]
    rows = [f"| {' | '.join(['CPU time of a sample, µs', *parts])} |", f"|---|{'---:|' * len(parts)}"]
    for workload, runs in found.items():
        costs, totals = medians(runs), [run[TOGETHER] for run in runs]
        values = [f"{costs[part]:.2f}" for part in parts[:-1]]
        together = f"{costs[TOGETHER]:.2f} ({min(totals):.2f} - {max(totals):.2f})"
        rows.append(f"| {' | '.join([workload, *values, together])} |")
    return "\n".join([f"Measured at {revision}.", "", *rows])


def keep(text: str) -> None:
    """Puts the table in the place of the one before."""
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")


def kept_revision() -> str:
    """The revision that the table was measured at.

    Raises:
        SystemExit: there is no table.
    """
    if found := REVISION.search(PAGE.read_text()):
        return found[1]
    sys.exit(f"{PAGE} has no table of costs. Name a revision with --base.")


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


@contextlib.contextmanager
def tree_of(revision: str) -> Iterator[Path]:
    """The code of a revision, in a directory that goes again."""
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory, "base")
        git("worktree", "add", "--detach", str(tree), revision)
        try:
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree))


def compare(workloads: list[str], base: str, rounds: int, seconds: int) -> int:
    """Prints ratios of this code to another revision, part by part; returns the exit code."""
    dearer = []
    with tree_of(base) as tree:
        for workload in workloads:
            runs: dict[Path, list[Costs]] = {tree: [], ROOT: []}
            for turn in range(rounds):  # each comes first as often as second
                for each in (tree, ROOT) if turn % 2 == 0 else (ROOT, tree):
                    runs[each].append(measured(each, workload, seconds))
            before, now = runs.values()
            old, new = medians(before), medians(now)
            ratio = statistics.median(b[TOGETHER] / a[TOGETHER] for a, b in zip(before, now, strict=True))
            parts = "  ".join(f"{part} {old[part]:.2f} -> {new[part]:.2f}" for part in new)
            print(f"{workload}: a sample costs {ratio:.3f} times as much as at {base}; us: {parts}", flush=True)
            if ratio > LOSS:
                dearer.append(workload)
    if dearer:
        print(f"More than {LOSS:.2f} times as much: {', '.join(dearer)}")
    return 1 if dearer else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(WORKLOADS)}; all by default")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--base", help="a revision; by default the one that the table was measured at")
    options = parser.parse_args()
    workloads = options.workloads or [*WORKLOADS]
    if unknown := [name for name in workloads if name not in WORKLOADS]:
        parser.error(f"there is no workload {unknown[0]!r}; there are {', '.join(WORKLOADS)}")
    if options.compare:
        return compare(workloads, options.base or kept_revision(), options.rounds, options.seconds)
    found: dict[str, list[Costs]] = {}
    for name in workloads:
        found[name] = [measured(ROOT, name, options.seconds) for _ in range(options.rounds)]
        print(f"{name}: {' '.join(f'{run[TOGETHER]:.2f}' for run in found[name])} us", flush=True)
        if options.write:
            keep(table(found, git("rev-parse", "--short=12", "HEAD")))
    print(table(found, git("rev-parse", "--short=12", "HEAD")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
