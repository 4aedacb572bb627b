"""What a learner saves and goes on from, whatever has happened to the directory meanwhile."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sf.errors import CheckpointError
from sf.experiment import Experiment
from sf.learner import checkpoint
from sf.messages import SaveRequest
from tests.checkpoints import flip_bit
from tests.lab import make_lab

PERIODIC = SaveRequest("periodic", None)


def test_fault_d3_d11_directory_that_another_run_has_now_is_left_alone(tmp_path: Path) -> None:
    """Somebody removes the directory of a living run, and starts another one of the same name."""
    lab = make_lab(tmp_path)
    learner, run_config = lab.build("learner-0"), lab.config.run
    assert not learner.saver.save(0, PERIODIC, 0).error
    shutil.rmtree(run_config.experiment_dir)
    for _ in range(2):
        assert "was removed while this run used it, or is another" in learner.saver.save(0, PERIODIC, 0).error
        other = Experiment(run_config.train_dir, run_config.experiment, "resume")
        assert not other.owner.checkpoints(0).exists()
        other.close()


def test_fault_d3_d11_successors_leave_the_directory_of_another_run_alone(tmp_path: Path) -> None:
    """Also who is built after it was taken: the learner of a run that begins again, or another evaluator."""
    lab = make_lab(tmp_path)
    run_config = lab.config.run
    shutil.rmtree(run_config.experiment_dir)
    other = Experiment(run_config.train_dir, run_config.experiment, "resume")
    other.make_checkpoints(1)
    assert "is another run's now" in lab.build("learner-0").saver.save(0, PERIODIC, 0).error
    assert list(other.owner.checkpoints(0).iterdir()) == []
    shutil.rmtree(other.path)
    with pytest.raises(CheckpointError, match="was removed while this run used it"):
        other.begin()
    other.close()


@pytest.mark.parametrize("kind", [checkpoint.BEST, checkpoint.MILESTONES])
def test_fault_d5_only_checkpoint_that_is_damaged_is_no_reason_to_begin_at_zero(tmp_path: Path, kind: str) -> None:
    lab = make_lab(tmp_path)
    learner = lab.build("learner-0")
    saved = learner.saver.save(0, SaveRequest("best" if kind == checkpoint.BEST else "milestone", 1.0), 0)
    flip_bit(Path(saved.path) / "state.json", 100)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=f"No usable checkpoint in .*{kind}:"):
            lab.build("learner-0")


def test_fault_d10_run_that_went_back_saves_its_best_policy_over_that_of_before(tmp_path: Path) -> None:
    """It comes by the same version once more, with a better policy."""
    learner = make_lab(tmp_path).build("learner-0")
    for reward in (10.0, 20.0):
        saved = learner.saver.save(0, SaveRequest("best", reward), 0)
        assert checkpoint.load(Path(saved.path)).data["reward"] == reward
