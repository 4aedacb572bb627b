"""What was given to a run, what it chose, and what a later start compares."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sf.config import Config, ModelConfig, RunConfig
from sf.config.effects import without_effect
from sf.config.given import chosen_flags, default_values, given_flags
from sf.config.presets import with_preset
from sf.spaces import ActionColumn, ActionSpec, EnvInfo, LeafSpec
from sf.storage.compared import EarlierStart
from sf.storage.experiment import Experiment
from sf.storage.given import GIVEN, Given, given_at, read_given
from tests.helpers.configs import env_info, make


def changed(config: Config, role: str, **values: Any) -> Config:
    return replace(config, **{role: replace(getattr(config, role), **values)})


def differing(path: Path, *starts: tuple[Config, Given], without: tuple[str, ...] = ()) -> list[str]:
    """What the last start says of the one before."""
    found = []
    for config, given in starts:
        experiment = Experiment(str(path), "x", "resume")
        found = experiment.write_config(json.loads(json.dumps(config.to_json())), EarlierStart(given, without))
        experiment.close()
    return found


def test_given_are_the_flags_that_differ_from_the_defaults_of_their_preset() -> None:
    config = with_preset("classic", Config(RunConfig(env="CartPole-v1", preset="classic")))
    own = {"env": "CartPole-v1", "preset": "classic", "algorithm": "ppo"}
    assert given_flags(config) == own
    assert given_flags(changed(config, "learner", gamma=0.5)) == own | {"gamma": 0.5}
    assert default_values("CartPole-v1", "auto")["gamma"] == config.learner.gamma


def test_chosen_are_the_flags_that_were_left_open() -> None:
    given = changed(Config(RunConfig(env="CartPole-v1")), "rollout", num_workers=3)
    resolved = changed(changed(given, "rollout", num_envs_per_worker=8), "learner", gamma=0.5)
    assert chosen_flags(given, resolved) == ["num_envs_per_worker"]


def test_the_file_of_a_run_is_read_back_and_a_damaged_one_says_nothing(tmp_path: Path) -> None:
    assert read_given(tmp_path) == Given()
    given = Given({"env": "CartPole-v1", "gamma": 0.5}, frozenset({"num_workers"}))
    given.write(tmp_path)
    assert read_given(tmp_path) == given
    for damaged in ("[]", "{", '{"given": 3, "chosen": [4]}'):
        (tmp_path / GIVEN).write_text(damaged)
        assert read_given(tmp_path) == Given()


def test_sizes_that_were_chosen_both_times_are_not_compared(tmp_path: Path) -> None:
    given = Config(RunConfig(env="CartPole-v1"))
    few, many = (changed(given, "rollout", num_workers=number) for number in (2, 4))
    assert differing(tmp_path / "chosen", (few, given_at(few, given)), (many, given_at(many, given))) == []
    found = differing(tmp_path / "given", (few, given_at(few, given)), (many, given_at(many, many)))
    assert found == ["num_workers=4 (was 2)"]


def test_output_patience_and_flags_without_effect_are_not_compared(tmp_path: Path) -> None:
    config = make()
    other = changed(changed(config, "faults", max_restarts=3), "run", keep_checkpoints=9, dashboard=True)
    other = changed(other, "rollout", action_bounds="clip")
    starts = (config, given_at(config)), (other, given_at(other))
    assert differing(tmp_path / "a", *starts, without=("action_bounds",)) == []
    assert differing(tmp_path / "b", *starts) == ["action_bounds='clip' (was 'scale')"]


def test_a_default_that_has_moved_is_told_as_that(tmp_path: Path) -> None:
    """As another version of sf would have started it."""
    now = make()
    before = changed(now, "rollout", action_bounds="clip")
    as_default = given_at(now)  # which does not name it
    (told,) = differing(tmp_path / "a", (before, as_default), (now, as_default))
    assert told == "action_bounds='scale' (was 'clip'; the default has changed since; add --action_bounds=clip)"
    for name, earlier in (("b", given_at(before)), ("c", Given())):
        (told,) = differing(tmp_path / name, (before, earlier), (now, as_default))
        assert told == "action_bounds='scale' (was 'clip')", "left out now, or not noted"


BOX = ActionSpec((ActionColumn(low=-1.0, high=1.0),))
VECTOR = env_info()
CONTROL, PICTURES = replace(VECTOR, action=BOX), replace(VECTOR, observations={"obs": LeafSpec((8, 8), "uint8")})


@pytest.mark.parametrize(
    ("info", "model", "flag", "has_effect"),
    [
        (VECTOR, {}, "action_bounds", False),
        (VECTOR, {}, "adaptive_stddev", False),
        (CONTROL, {}, "action_bounds", True),
        (CONTROL, {}, "initial_stddev", True),
        (VECTOR, {}, "rnn_size", False),
        (VECTOR, {"use_rnn": True}, "rnn_size", True),
        (VECTOR, {}, "encoder_conv_architecture", False),
        (VECTOR, {"encoder": "own"}, "encoder_conv_architecture", True),
        (PICTURES, {}, "encoder_conv_architecture", True),
        (VECTOR, {}, "encoder_mlp_layers", True),
    ],
)
def test_flags_without_effect_on_a_policy(info: EnvInfo, model: dict[str, Any], flag: str, has_effect: bool) -> None:
    assert (flag not in without_effect(ModelConfig(**model), info)) == has_effect
