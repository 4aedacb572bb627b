"""Bars at the top of the page: runs that go on, and those that did not end as they should."""

from __future__ import annotations

import html
from collections.abc import Sequence
from datetime import datetime

from sf.storage.experiment import listed
from sf.tools.report.runs import RunFiles


def state_bars(runs: Sequence[RunFiles], now: datetime) -> str:
    """HTML; empty where every run has ended or was stopped."""
    one_each = list({run.path: run for run in runs}.values())
    is_alone = len(one_each) == 1
    living = [run.name for run in one_each if run.state == "running"]
    killed = [run.name for run in one_each if run.state == "killed"]
    failed = [run for run in one_each if run.state == "failed"]
    bars = [_bar("failed", _failed(run, is_alone)) for run in failed]
    if killed:
        what = _subject(killed, is_alone, "was", "were")
        bars.append(_bar("failed", f"{what} killed, without a summary. The same command goes on from the last save."))
    if living:
        what = _subject(living, is_alone, "goes", "go")
        bars.append(_bar("living", f"{what} on. This page has its state at {now:%H:%M:%S} on {now:%Y-%m-%d}."))
    return "".join(bars)


def _subject(names: Sequence[str], is_alone: bool, verb: str, plural: str) -> str:
    if is_alone:
        return f"The run {verb}"
    return f"{listed(names)} {verb if len(names) == 1 else plural}"


def _failed(run: RunFiles, is_alone: bool) -> str:
    reason = run.end.rstrip(".")
    return f"{'The run' if is_alone else run.name} has failed: {reason}."


def _bar(kind: str, text: str) -> str:
    return f'<p class="bar {kind}" role="status">{html.escape(text)}</p>\n'
