"""What a learner saves and goes on from, whatever has happened to the directory meanwhile."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sf.config import Config
from sf.errors import CheckpointError
from sf.learner.changes import TOLD, notes_on_changes
from sf.shared.messages import SaveKind, SaveRequest
from sf.storage import checkpoint
from sf.storage.experiment import Experiment
from sf.storage.given import Given
from tests.helpers.checkpoints import flip_bit
from tests.helpers.lab import make_lab

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
    saved = lab.build("learner-0").saver.save(0, PERIODIC, 0)
    assert "is another run's now" in saved.error
    assert (saved.policy_id, saved.kind) == (0, "periodic"), "what could not be saved"
    assert list(other.owner.checkpoints(0).iterdir()) == []
    shutil.rmtree(other.path)
    with pytest.raises(CheckpointError, match="was removed while this run used it"):
        other.begin()
    other.close()


@pytest.mark.parametrize(
    ("asked", "kind"), [("best", checkpoint.BEST), ("milestone", checkpoint.MILESTONES), ("pool", checkpoint.POOL)]
)
def test_fault_d5_only_checkpoint_that_is_damaged_is_no_reason_to_begin_at_zero(
    tmp_path: Path, asked: SaveKind, kind: str
) -> None:
    lab = make_lab(tmp_path)
    learner = lab.build("learner-0")
    saved = learner.saver.save(0, SaveRequest(asked, 1.0), 0)
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


OTHERS: dict[tuple[str, str], Any] = {
    ("rollout", "reward_scale"): 0.1,
    ("rollout", "reward_clip"): 1.0,
    ("learner", "gamma"): 0.9,
    ("learner", "value_bootstrap"): False,
    ("rollout", "env_frameskip"): 4,
    ("rollout", "summaries_use_frameskip"): False,
    ("run", "env_kwargs"): '{"sutton_barto_reward": true}',
    ("run", "max_episode_steps"): 100,
}
"""What a resume may change and tells."""


def changed(config: Config, role: str, **values: Any) -> Config:
    return replace(config, **{role: replace(getattr(config, role), **values)})


@pytest.mark.parametrize(("role", "name"), OTHERS)
def test_resume_tells_what_a_change_does_to_values_and_counters(
    tmp_path: Path, role: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = make_lab(tmp_path, normalize_rewards=True)
    lab.build("learner-0").saver.save(0, PERIODIC, 0)
    lab.build("learner-0")
    assert "Warning" not in capsys.readouterr().out
    value, before = OTHERS[role, name], getattr(getattr(lab.config, role), name)
    lab.build("learner-0", config=changed(lab.config, role, **{name: value}))
    told = capsys.readouterr().out
    assert f"Warning: resumed with {name}={value!r} (was {before!r}). {TOLD[role, name]}\n" in told
    assert told.count("Warning") == 1


def test_other_ranks_are_told_with_the_size_of_a_minibatch() -> None:
    before, now = (
        {"world_size": ranks, "config": {"learner": {"batch_size": 64, "learning_rate": 0.001}}} for ranks in (2, 4)
    )
    assert list(notes_on_changes(before, before)) == []
    assert list(notes_on_changes(before, now)) == [
        "Warning: resumed with 4 ranks (were 2). --batch_size=64 is that of one rank, so a minibatch has 256 "
        "transitions. The learning rate stays as given, --learning_rate=0.001."
    ]


def test_resume_tells_each_consequence_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab = make_lab(tmp_path)
    lab.build("learner-0").saver.save(0, PERIODIC, 0)
    config = changed(changed(lab.config, "learner", gamma=0.9), "rollout", reward_scale=0.1, env_frameskip=2)
    lab.build("learner-0", config=changed(config, "run", env_kwargs="{ }"))  # which means the same
    told = capsys.readouterr().out
    assert "Warning: resumed with reward_scale=0.1 (was 1.0), gamma=0.9 (was 0.99). Values and the statistics" in told
    assert "Warning: resumed with env_frameskip=2 (was 1). Frames that were counted before stay as they are" in told
    assert told.count("Warning") == 2


@pytest.mark.parametrize(
    ("role", "values", "difference"),
    [
        ("learner", {"normalize_rewards": True}, "config.learner.normalize_rewards: expected True, found False"),
        ("model", {"normalize_returns": False}, "config.model.normalize_returns: expected False, found True"),
        ("model", {"normalize_input": False}, "config.model.normalize_input: expected False, found True"),
        ("model", {"obs_scale": 2.0}, "config.model.obs_scale: expected 2.0, found 1.0"),
        ("model", {"obs_subtract_mean": 2.0}, "config.model.obs_subtract_mean: expected 2.0, found 0.0"),
    ],
)
def test_resume_refuses_what_changes_the_meaning_of_weights(
    tmp_path: Path, role: str, values: dict[str, Any], difference: str
) -> None:
    lab = make_lab(tmp_path)
    path = lab.build("learner-0").saver.save(0, PERIODIC, 0).path
    expected = (
        f"{path} was made with another environment, model or normalization:\n  {difference}\nUse the same flags, or "
        "start anew with --restart_behavior=restart or another --experiment."
    )
    with pytest.raises(CheckpointError, match=re.escape(expected)):
        lab.build("learner-0", config=changed(lab.config, role, **values))


PENDULUM: dict[str, Any] = {"env": "Pendulum-v1", "encoder_mlp_layers": (8,)}


@pytest.mark.parametrize(
    ("earlier", "advice"),
    [
        (Given({"env": "Pendulum-v1", "preset": "none", "algorithm": "ppo"}), "the default has changed since"),
        (Given({"env": "Pendulum-v1", "preset": "mujoco", "algorithm": "ppo"}), "it is not given now"),
        (Given({"action_bounds": "clip"}), "it is not given now"),
        (None, "it is the default now"),
    ],
)
def test_a_refused_resume_says_how_a_default_has_its_earlier_value_again(
    tmp_path: Path, earlier: Given | None, advice: str
) -> None:
    lab = make_lab(tmp_path, **PENDULUM)
    before = changed(lab.config, "rollout", action_bounds="clip")
    saver = lab.build("learner-0", config=before).saver
    saver.save(0, PERIODIC, 0)
    if earlier is not None:
        earlier.write(saver.directory.parent)
    told = f"config.rollout.action_bounds: expected 'scale', found 'clip' ({advice}; add --action_bounds=clip)\n"
    with pytest.raises(CheckpointError, match=re.escape(told)):
        lab.build("learner-0")
    with pytest.raises(CheckpointError, match=r"expected 'tanh', found 'clip'\n"):
        lab.build("learner-0", config=changed(lab.config, "rollout", action_bounds="tanh"))


def test_a_refused_resume_has_no_advice_on_facts_of_the_environment(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, **PENDULUM)
    saver = lab.build("learner-0").saver
    saver.save(0, PERIODIC, 0)
    other = make_lab(tmp_path / "other", **PENDULUM | {"env": "MountainCarContinuous-v0"})
    directory = tmp_path / "other" / other.config.run.experiment
    shutil.copytree(saver.directory, directory / saver.directory.name, dirs_exist_ok=True)
    Given({"env": "Pendulum-v1", "preset": "none", "algorithm": "ppo"}).write(directory)
    told = r"env\.env_id: expected 'MountainCarContinuous-v0', found 'Pendulum-v1'\n"
    with pytest.raises(CheckpointError, match=told):
        other.build("learner-0")


def test_a_resume_does_not_compare_what_has_no_effect_on_the_policy(tmp_path: Path) -> None:
    lab = make_lab(tmp_path)
    lab.build("learner-0").saver.save(0, PERIODIC, 0)
    config = changed(changed(lab.config, "rollout", action_bounds="clip"), "model", rnn_size=7)
    assert lab.build("learner-0", config=config).saver.has_resumed


def test_resumed_learner_replaces_its_best_policy_by_a_better_one_only(tmp_path: Path) -> None:
    lab = make_lab(tmp_path)
    learner = lab.build("learner-0")
    for request in (SaveRequest("best", 10.0), PERIODIC):
        assert learner.saver.save(0, request, 0)
    saver = lab.build("learner-0").saver
    assert saver.save(0, SaveRequest("best", 10.0), 0) is None
    saved = saver.save(0, SaveRequest("best", 10.5), 0)
    assert checkpoint.load(Path(saved.path)).data["reward"] == 10.5


@pytest.mark.parametrize(("before", "wanted"), [("constant", 7e-4), ("kl_adaptive_epoch", 3e-3)])
def test_a_rate_that_follows_the_policy_goes_on_from_one_that_did_so(
    tmp_path: Path, before: str, wanted: float
) -> None:
    lab = make_lab(tmp_path, lr_schedule=before, learning_rate=2e-5)
    earlier = lab.build("learner-0")
    earlier.update._schedule.value = 3e-3
    assert not earlier.saver.save(0, PERIODIC, 0).error
    now = replace(lab.config.learner, lr_schedule="kl_adaptive_batch", learning_rate=7e-4)
    resumed = lab.build("learner-0", config=replace(lab.config, learner=now))
    assert resumed.saver.has_resumed
    assert resumed.update.lr == wanted
