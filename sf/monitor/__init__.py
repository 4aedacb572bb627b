"""The output of a run: console lines, curves, and the summary at the end. Imports no torch."""

from __future__ import annotations

from sf.console import Console
from sf.monitor.monitor import Monitor
from sf.monitor.snapshot import Lag, PolicySnapshot, Snapshot

__all__ = ["Console", "Lag", "Monitor", "PolicySnapshot", "Snapshot"]
