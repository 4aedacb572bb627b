"""Flags that several commands have: which run, and which of its policies."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WhichRun:
    """A run of sf-train."""

    experiment: str | None = None
    """Name of the run."""
    train_dir: str = "train_dir"
    """Directory that holds the experiments."""


@dataclass(frozen=True)
class WhichPolicy(WhichRun):
    """A policy of a run, or one that was saved."""

    checkpoint: str = "latest"
    """Checkpoint of the experiment: latest, best, or a name like checkpoint_000000552_141312."""
    policy: str | None = None
    """Directory of a policy that was saved with PolicySaver, instead of an experiment; it knows no environment."""
