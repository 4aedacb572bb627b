"""What a report shows of runs whose policies meet: the pool of self-play, and the family tree of a population."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sf.storage.objects import json_object
from sf.storage.population import read_decisions
from sf.tools.report.markup import rounded, section, table
from sf.tools.report.plots import FROM_0, GREY, Plot, colour, numbers, plot
from sf.tools.report.runs import RunFiles
from sf.tools.report.summary import is_number

POOL = "self_play.json"
MOST_SNAPSHOTS = 30
"""Rows of the table: the newest ones."""


def strength_of_snapshots(runs: Sequence[RunFiles]) -> Plot:
    """The score of policy 0 against each snapshot, for each run with self-play, over the frames of the snapshot."""
    traces = []
    for index, run in enumerate(_first_policies(runs)):
        if played := [(one, score) for one in _snapshots(run.path) if (score := _score(one)) is not None]:
            texts = [f"snapshot {one['number']}: {sum(_games(one))} games" for one, _ in played]
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": html.escape(run.name),
                    "x": numbers([one["frames"] for one, _ in played]),
                    "y": numbers([score for _, score in played]),
                    "text": texts,
                    "line": {"color": colour(index)},
                }
            )
    return plot(traces, "frames of the snapshot", "score", showlegend=len(traces) > 1, xaxis=FROM_0)


def pools(runs: Sequence[RunFiles]) -> str:
    """A table of the snapshots in the pool of each run with self-play; nothing without one."""
    rows = []
    for run in _first_policies(runs):
        for one in _snapshots(run.path)[-MOST_SNAPSHOTS:]:
            games, score = _games(one), _score(one)
            row = [run.name, str(one["number"]), f"{one['frames']:,}", f"{one['rating']:.0f}", *map(str, games)]
            rows.append([*row, "" if score is None else rounded(score)])
    if not rows:
        return ""
    head = "Run", "Snapshot", "Frames", "Rating", "Won", "Drawn", "Lost", "Score"
    text = "<p>Games of policy 0 against its pool. The rating of a snapshot is that of policy 0 at the time.</p>"
    return section("Past selves", text + table(head, rows, range(1, len(head))))


def family_tree(runs: Sequence[RunFiles]) -> Plot:
    """A lane for each policy of the first run with a population, in the colour of the policy that it descends from."""
    for run in _first_policies(runs):
        if decisions := read_decisions(run.path):
            ends = {other.policy_id: float(other.frames) for other in runs if other.path == run.path}
            traces = list(_lanes(decisions, ends))
            lanes = {"tickmode": "linear", "dtick": 1, "autorange": "reversed", "zeroline": False}
            return plot(traces, "frames of the policy", "policy", showlegend=False, hovermode="closest", yaxis=lanes)
    return plot([], "", "")


def _lanes(decisions: Sequence[Mapping[str, Any]], ends: Mapping[int, float]) -> Iterator[Plot]:
    founders, begins = {policy: policy for policy in ends}, dict.fromkeys(ends, 0.0)
    for one in decisions:
        policy, source, frames = one["policy"], one.get("source"), float(one["frames"])
        if policy not in ends or one.get("kind") == "kept":
            continue
        if source is not None and source in ends:
            yield _segment(begins[policy], frames, policy, founders[policy])
            founders[policy], begins[policy] = founders[source], frames
            dotted = {"color": GREY, "width": 1, "dash": "dot"}
            yield {"type": "scatter", "mode": "lines", "x": [frames] * 2, "y": [source, policy], "line": dotted}
        values = one.get("after")
        told = [f"{name}={value:.3g}" for name, value in (values or {}).items() if is_number(value)]
        what = f"takes over policy {source}" if source in ends else str(one.get("kind"))
        mark = {"color": colour(founders[policy]), "size": 9, "symbol": "diamond" if source in ends else "circle-open"}
        yield {
            "type": "scatter", "mode": "markers", "x": [frames], "y": [policy], "marker": mark,
            "text": f"policy {policy} {what}: {', '.join(told)}", "hoverinfo": "text",
        }  # fmt: skip
    for policy, end in ends.items():
        yield _segment(begins[policy], max(end, begins[policy]), policy, founders[policy])


def _segment(begin: float, end: float, policy: int, founder: int) -> Plot:
    line = {"color": colour(founder), "width": 4}
    return {"type": "scatter", "mode": "lines", "x": [begin, end], "y": [policy] * 2, "line": line, "hoverinfo": "skip"}


def _first_policies(runs: Sequence[RunFiles]) -> list[RunFiles]:
    """The first policy of each run."""
    return list({run.path: run for run in reversed(runs)}.values())[::-1]


def _snapshots(path: Path) -> list[dict[str, Any]]:
    """Those of the pool that are whole, oldest first."""
    content = json_object(path / POOL).get("pool")
    found = content.get("snapshots") if isinstance(content, dict) else None
    needed = "number", "frames", "rating"
    return [
        one
        for one in (found if isinstance(found, list) else [])
        if isinstance(one, dict) and all(is_number(one.get(name)) for name in needed)
    ]


def _games(snapshot: Mapping[str, Any]) -> list[int]:
    """How many games policy 0 has won, drawn and lost."""
    results = snapshot.get("results")
    counts = results if isinstance(results, dict) else {}
    return [int(counts[name]) if is_number(counts.get(name)) else 0 for name in ("wins", "draws", "losses")]


def _score(snapshot: Mapping[str, Any]) -> float | None:
    """Mean score over all games; None without one."""
    wins, draws, losses = _games(snapshot)
    return (wins + draws / 2) / (wins + draws + losses) if wins + draws + losses else None
