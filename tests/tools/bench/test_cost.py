"""The CPU time of a sample, part by part."""

from __future__ import annotations

import pytest

from sf.tools.bench.cost import part_lines, parts_of
from sf.tools.bench.usage import Usage

ACTIVITIES = {
    "rollout-0": {"step": 3.0, "write": 1.0, "act": 2.0, "wait": 4.0},
    "learner-0": {"batch": 1.0, "update": 4.0, "publish": 0.5, "save": 0.5, "wait": 4.0},
    "inference-0-0": {"forward": 2.0, "wait": 8.0},
}
PARTS = {
    "environment": 1.5,
    "acting": 2.0 + 1.0,
    "writing": 1.5 + 1.0,
    "batch": 0.5,
    "update": 2.0,
    "publishing": 0.5,
    "supervision": 0.25,
}


def usage(cpu: dict[str, float]) -> Usage:
    return Usage(10.0, 1e6, 18.0, cpu, ACTIVITIES, timed=0.2, inside=0.1)


def test_parts_are_all_cpu_time_of_a_run() -> None:
    cpu = {"rollout-0": 6.0, "learner-0": 3.0, "inference-0-0": 1.0, "supervisor": 0.25}
    found = parts_of(usage(cpu))
    assert found == pytest.approx({part: seconds * 1e-6 for part, seconds in PARTS.items()})
    assert sum(found.values()) == pytest.approx(sum(cpu.values()) * 1e-6)


def test_one_process_deals_its_time_by_the_clock() -> None:
    found = parts_of(usage({"supervisor": 15.0}))
    assert found["update"] == pytest.approx(4e-6)
    assert found["supervision"] == pytest.approx(1e-6)


def test_lines_say_microseconds() -> None:
    lines = part_lines(parts_of(usage({"rollout-0": 6.0})))
    assert "  environment       1.500 us" in lines
    assert lines[-1].startswith("  together")
