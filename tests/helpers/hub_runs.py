"""Arguments of `sf-hub` and of the run that it sends, and what is in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.helpers.commands import Finished, run

SMALL = "--num_workers=1", "--num_envs_per_worker=8", "--seed=1"
PUSH = "push", "--experiment=pole", "--num_episodes=7"
NEAR = "--env=CartPole-v1", "--experiment=pole", *SMALL


def hub_run(path: Path, *arguments: str) -> Finished:
    return run(path, *arguments, module="sf.cli.hub")


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def told(folder: Path) -> Any:
    return json.loads((folder / "scores.json").read_bytes())
