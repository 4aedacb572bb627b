"""Registries of environments as they were before a test."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import gymnasium
import pytest

from sf.envs import registry


@pytest.fixture
def clean_registries() -> Iterator[None]:
    """No test sees what another one has registered; packages register when they are imported, which is done once."""
    ours, theirs, modules = dict(registry._registered), dict(gymnasium.registry), set(sys.modules)
    yield
    for env_id, spec in gymnasium.registry.items():
        if isinstance(spec.entry_point, str) and not spec.entry_point.startswith(("tests.", "temporary_")):
            theirs.setdefault(env_id, spec)
    for now, before in ((registry._registered, ours), (gymnasium.registry, theirs)):
        now.clear()
        now.update(before)  # type: ignore[arg-type]  # both are of the type of their registry
    for module in set(sys.modules) - modules:
        if module.startswith("temporary_"):
            del sys.modules[module]
