"""The end of the page: faults, configurations, a video, and how to run it again."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from pathlib import Path

from sf.storage.names import FILMS
from sf.tools.report.groups import RunGroup, differences, shown
from sf.tools.report.markup import section, table
from sf.tools.report.reproduction import changed_flags, command
from sf.tools.report.runs import RunFiles

LARGEST_VIDEO = 500_000
"""Bytes in the page, which has to stay below 3 MB; three of them make four letters there."""
VIDEOS = {".mp4": "video/mp4", ".gif": "image/gif"}
MOST_COLUMNS = 3
"""Groups side by side; more of them are below each other."""
SHOWN_RUNS = 4
"""Commands that are there without a click."""


def faults(runs: Sequence[RunFiles]) -> str:
    """A table of what broke."""
    rows = []
    for run in _one_each(runs):
        told = {name.replace("_", " "): f"{value:g}" for name, value in run.faults.items()}
        if len(run.starts) > 1:
            told["starts of the command"] = str(len(run.starts))
        if run.num_damaged:
            told["damaged lines of metrics.jsonl, left out"] = str(run.num_damaged)
        rows += [(run.name, what, count) for what, count in told.items()]
    return section("Faults and restarts", table(("Run", "What", "Count"), rows, (2,)))


def _one_each(runs: Sequence[RunFiles]) -> list[RunFiles]:
    """The first policy of each run, whose files have what concerns the whole run."""
    return [run for run in runs if run.policy_id == min(other.policy_id for other in runs if other.path == run.path)]


def configuration(groups: Sequence[RunGroup]) -> str:
    """Differences between groups, or of one group from the defaults."""
    if len(groups) > 1:
        values = differences([group.runs[0].compared for group in groups])
        rows = [[name, *map(shown, each)] for name, each in values.items()]
        head = ["Flag", *(group.label for group in groups)]
        if len(groups) <= MOST_COLUMNS:
            return section("Differences between the groups", table(head, rows))
        turned = [list(column) for column in zip(head, *rows, strict=True)]
        return section("Differences between the groups", table(["Group", *turned[0][1:]], turned[1:]), "wide")
    run = groups[0].runs[0]
    preset = str(run.flags.get("preset", "none"))
    rows = [[name, shown(value), shown(default)] for name, (value, default) in changed_flags(run).items()]
    title = "Differences from the defaults" + (f" of --preset={preset}" if preset != "none" else "")
    return section(title, table(("Flag", "Value", "Default"), rows))


def video(runs: Sequence[RunFiles]) -> str:
    """The newest film in the directory of a run; nothing if there is none."""
    there = [(path.stat().st_mtime, path, run) for run in runs for path in _films(run.path)]
    if not there:
        return ""
    _, path, run = max(there, key=lambda one: one[0])
    name, data = html.escape(f"{run.name}/{path.relative_to(run.path)}"), path.read_bytes()
    if len(data) > LARGEST_VIDEO:
        size = f"{len(data) / 1e6:.1f} MB, more than the {LARGEST_VIDEO / 1e6:.1f} MB that this page takes"
        return section("The last video", f"<p>{name} has {size}: {html.escape(str(path))}</p>")
    source = f'src="data:{VIDEOS[path.suffix]};base64,{base64.b64encode(data).decode()}"'
    film = f"<video controls loop muted {source}></video>" if path.suffix == ".mp4" else f'<img alt="" {source}>'
    return section("The last video", f'<p class="soft">{name}</p>{film}')


def _films(directory: Path) -> list[Path]:
    """All in the directory of a run that are complete."""
    places = [*directory.iterdir(), *directory.glob(f"{FILMS}/*")]
    return [path for path in places if path.suffix in VIDEOS and not path.name.startswith(".")]


def reproduction(runs: Sequence[RunFiles]) -> str:
    """The command, the seed and the versions of each run."""
    parts = []
    for run in _one_each(runs):
        versions = ", ".join(f"{name} {version}" for name, version in (run.summary or {}).get("versions", {}).items())
        head = f"{run.name}, seed {run.flags.get('seed', 'unknown')}: {versions or 'its summary.json has no versions'}"
        line = command(run) if run.config else "config.json is missing or damaged."
        parts.append(f'<p class="soft">{html.escape(head)}</p><pre>{html.escape(line)}</pre>')
    more = "".join(parts[SHOWN_RUNS:])
    rest = f"<details><summary>{len(parts) - SHOWN_RUNS} more</summary>{more}</details>" if more else ""
    return section("Run it again", "".join(parts[:SHOWN_RUNS]) + rest, "wide")
