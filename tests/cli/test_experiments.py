"""Runs that a command cannot play, and what it says of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sf.cli.experiments import environment, experiment_directory
from sf.config import RunConfig
from sf.errors import EnvError, ExperimentError
from sf.storage.runs import PLAN


def test_a_run_of_a_plan_is_played_by_a_program(tmp_path: Path) -> None:
    (tmp_path / "pole" / "checkpoint_p0").mkdir(parents=True)
    assert experiment_directory(tmp_path, "pole") == tmp_path / "pole"
    (tmp_path / "pole" / PLAN).write_text("{}")
    with pytest.raises(ExperimentError, match=r"is a run of sf-plan.*trainer\.restore\('.*pole/checkpoints'\), then"):
        experiment_directory(tmp_path, "pole")


def test_an_environment_that_a_program_has_registered_is_asked_for_with_its_module() -> None:
    run = RunConfig(env="Pusher")
    with pytest.raises(EnvError, match=r"'Pusher' here, on which the run was trained.*--env=module:Pusher"):
        environment(None, None, run, None, 100)
    with pytest.raises(EnvError, match=r"There is no environment 'Pusher'\. Did you mean|and no similar name"):
        environment("Pusher", None, run, None, 100)
