"""Entry points are read once, and again when a package was installed or removed."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from pathlib import Path

import pytest

from sf.envs.installed import entry_points


def offered() -> set[str]:
    return {point.name for point in entry_points("sf.envs")}


def test_a_package_is_seen_when_it_comes_and_when_it_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    before = offered()
    assert "worlds" not in before
    package = tmp_path / "worlds-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: worlds\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[sf.envs]\nworlds = worlds:ENVIRONMENTS\n")
    os.utime(tmp_path, ns=(1, 1))  # else both changes may be of one tick of the clock
    assert offered() == before | {"worlds"}
    shutil.rmtree(package)
    assert offered() == before


def test_packages_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    offered()
    monkeypatch.setattr(importlib.metadata, "entry_points", None)
    assert offered()
