"""What a report shows of self-play and of populations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sf.storage.population import DECISIONS
from sf.tools.report.populations import POOL, family_tree, pools, strength_of_snapshots
from sf.tools.report.runs import read_run
from tests.helpers.reported import point, write_run


def snapshot(number: int, wins: int, draws: int, losses: int) -> dict[str, Any]:
    results = {"wins": wins, "draws": draws, "losses": losses}
    return {"number": number, "frames": 1000 * number, "rating": 12.4 * number, "results": results}


def test_pool_of_self_play_is_a_plot_and_a_table(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    runs = read_run(path)
    assert pools(runs) == ""
    assert strength_of_snapshots(runs)["data"] == []
    damaged = [{"number": 7}, "no object"]
    snapshots = [snapshot(0, 6, 2, 2), snapshot(3, 0, 0, 0), snapshot(5, 1, 0, 3), *damaged]
    (path / POOL).write_text(json.dumps({"pool": {"snapshots": snapshots}}))
    (trace,) = strength_of_snapshots(runs)["data"]
    assert (trace["x"], trace["y"]) == ([0, 5000], [0.7, 0.25]), "the snapshot without a game is left out"
    found = pools(runs)
    for cells in (("0", "0", "0", "6", "2", "2", "0.7"), ("5", "5,000", "62", "1", "0", "3", "0.25")):
        assert "".join(f'<td class="number">{cell}</td>' for cell in cells) in found
    assert found.count("<tr>") == 4


def test_family_tree_follows_takeovers(tmp_path: Path) -> None:
    points = [point(1000 * place, place, 5.0, policy) for place in range(1, 6) for policy in range(3)]
    path = write_run(tmp_path / "run", points, num_policies=3)
    assert family_tree(read_run(path))["data"] == []
    lines = [
        {"frames": 1000, "policy": 1, "kind": "replaced", "source": 0, "after": {"learning_rate": 0.001}},
        {"frames": 1500, "policy": 0, "kind": "kept", "source": None, "after": {}},
        {"frames": 2000, "policy": 2, "kind": "mutated", "source": None, "after": {"learning_rate": 0.5}},
        {"frames": 3000, "policy": 2, "kind": "replaced", "source": 1, "after": {"learning_rate": 0.002}},
    ]
    (path / DECISIONS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    runs = read_run(path)
    traces = family_tree(runs)["data"]
    lanes = [trace for trace in traces if trace["mode"] == "lines" and trace["y"][0] == trace["y"][1]]
    ends = {trace["y"][0]: trace["line"]["color"] for trace in lanes}
    assert len(set(ends.values())) == 1, "in the end all descend from policy 0"
    assert len({trace["line"]["color"] for trace in lanes}) == 3
    marks = [trace for trace in traces if trace["mode"] == "markers"]
    assert [mark["text"] for mark in marks] == [
        "policy 1 takes over policy 0: learning_rate=0.001",
        "policy 2 mutated: learning_rate=0.5",
        "policy 2 takes over policy 1: learning_rate=0.002",
    ]
    assert [trace["y"] for trace in traces if trace.get("line", {}).get("dash") == "dot"] == [[0, 1], [1, 2]]
