"""What people type who come from other libraries: taken, or answered with the name that it has here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sf.cli import train
from sf.cli.arguments import flags_of, parse
from sf.cli.enjoy import EnjoyConfig
from sf.cli.evaluate import EvaluationConfig
from sf.cli.habits import OURS, SETTINGS, foreign
from sf.cli.main import COMMANDS, main
from sf.cli.main import OURS as OURS_OF_COMMANDS
from sf.config import Config
from sf.errors import UsageError

ENV = "--env=CartPole-v1"


def config(*words: str) -> Config:
    return train.parse_config([ENV, *words])


@pytest.mark.parametrize(
    ("words", "role", "name", "value"),
    [
        (["--serial_mode"], "run", "serial_mode", True),
        (["--serial_mode", "--seed=1"], "run", "serial_mode", True),
        (["--serial-mode"], "run", "serial_mode", True),
        (["--serial_mode", "False"], "run", "serial_mode", False),
        (["--serial_mode", "true"], "run", "serial_mode", True),
        (["--async_rl=false"], "run", "async_rl", False),
        (["--no-async_rl"], "run", "async_rl", False),
        (["--no_value_bootstrap"], "learner", "value_bootstrap", False),
        (["--train_for_env_steps=1e6"], "run", "train_for_env_steps", 1_000_000),
        (["--train_for_env_steps", "2.5e5"], "run", "train_for_env_steps", 250_000),
        (["--train_for_env_steps=1_000"], "run", "train_for_env_steps", 1000),
        (["--device=cuda"], "run", "device", "gpu"),
        (
            ["--device=auto"],
            "run",
            "device",
            "gpu" if Path("/dev/nvidia0").exists() or Path("/dev/kfd").exists() else "cpu",
        ),
        (["--learning_rate=1e-3"], "learner", "learning_rate", 1e-3),
        (["--stop_at_reward", "-250"], "run", "stop_at_reward", -250.0),
        (["--encoder_mlp_layers", "32", "16"], "model", "encoder_mlp_layers", (32, 16)),
    ],
)
def test_habits_that_are_taken(words: list[str], role: str, name: str, value: Any) -> None:
    assert getattr(getattr(config(*words), role), name) == value


@pytest.mark.parametrize("name", OURS)
def test_flags_of_others_are_answered_with_ours(name: str) -> None:
    flags = dict(flags_of(Config))
    assert name not in flags
    assert OURS[name] in {"", *flags}
    with pytest.raises(UsageError, match=r"is called|nothing of the kind") as refused:
        config(f"--{name}=1")
    assert OURS[name] in str(refused.value)


@pytest.mark.parametrize(
    ("other", "ours"),
    [
        ("total_timesteps", "train_for_env_steps"), ("n_envs", "num_envs_per_worker"), ("n_steps", "rollout"),
        ("ent_coef", "exploration_loss_coeff"), ("num_steps", "rollout"), ("update_epochs", "num_epochs"),
        ("clip_range", "ppo_clip_ratio"), ("num_minibatches", "num_batches_per_epoch"), ("lr", "learning_rate"),
        ("exp_name", "experiment"),
    ],
)  # fmt: skip
def test_the_flags_that_are_typed_most(other: str, ours: str) -> None:
    assert foreign(other, {ours}) == f"It is called --{ours} here."
    assert len(OURS) >= 40


@pytest.mark.parametrize("words", [["--objective=env/success"], ["--objective", "env/success"], ["--objective=reward"]])
def test_what_a_run_is_to_raise_may_be_called_its_objective(words: list[str]) -> None:
    assert config(*words).run.score == words[-1].rpartition("=")[2]
    assert config(*words, "--objective=decoupled").learner.objective == "decoupled"
    with pytest.raises(UsageError, match="--score is given twice"):
        config(*words, "--score=env/keys")


def test_films_have_a_flag() -> None:
    assert foreign("capture_video", {"film_every_steps"}) == "It is called --film_every_steps here."


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_algorithms_are_answered_with_their_flag(name: str) -> None:
    with pytest.raises(UsageError, match="It is a setting of some algorithms") as refused:
        config(f"--{name}=1")
    assert f"--algorithm_kwargs='{json.dumps(SETTINGS[name])}'" in str(refused.value)


def test_a_command_does_not_answer_with_flags_that_it_does_not_have() -> None:
    for flag, answer in (
        ("--n_eval_episodes=5", "Did you mean --num_episodes?"),
        ("--total-timesteps=5", "See --help"),
    ):
        with pytest.raises(UsageError, match=re.escape(answer)):
            parse(EvaluationConfig, [flag, "--experiment=x"], "sf-eval", "", "--experiment=x", runs="experiment")


def test_runs_are_named_without_a_flag(tmp_path: Path) -> None:
    policy = tmp_path / "saved"
    policy.mkdir()
    (policy / "policy.json").write_text("{}")

    def read(*words: str) -> EvaluationConfig:
        return parse(EvaluationConfig, words, "sf-eval", "", "--experiment=x", runs="experiment")

    assert read("cartpole").experiment == ("cartpole",)
    assert read("one", "--num_episodes=5", "two").experiment == ("one", "two")
    assert read("--deterministic", "one").experiment == ("one",)
    assert read("--deterministic", "one").deterministic
    assert read(str(policy), "one").policy == (str(policy),)
    inside = read("runs/one", "runs/two")
    assert (inside.experiment, inside.train_dir) == (("one", "two"), str(Path("runs").absolute()))
    with pytest.raises(UsageError, match="lie in several directories"):
        read("runs/one", "others/two")
    enjoy = parse(EnjoyConfig, ["--num_episodes", "3", "one", "--overlay"], "sf-enjoy", "", (), runs="experiment")
    assert (enjoy.experiment, enjoy.num_episodes, enjoy.overlay) == ("one", 3, True)
    with pytest.raises(UsageError, match=r"One run is expected, found 2: one, two\. Give one of them"):
        parse(EnjoyConfig, ["one", "two"], "sf-enjoy", "", (), runs="experiment")
    with pytest.raises(UsageError, match="--experiment is given twice"):
        read("one", "--experiment=two")


TOML = """
env = "CartPole-v1"
serial_mode = true
train_for_env_steps = 5000
encoder_mlp_layers = [32, 16]

[learner]
gamma = 0.9
num_epochs = 3
"""


def test_a_file_has_flags_and_those_of_the_command_line_come_first(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(TOML)
    read = train.parse_config([f"--config={file}", "--gamma=0.95"])
    assert (read.run.env, read.run.serial_mode, read.run.train_for_env_steps) == ("CartPole-v1", True, 5000)
    assert (read.learner.gamma, read.learner.num_epochs, read.model.encoder_mlp_layers) == (0.95, 3, (32, 16))
    again = tmp_path / "config.json"
    again.write_text(json.dumps(read.to_json()))
    assert train.parse_config(["--config", str(again)]) == read, "as a run has it in its directory"


def test_the_file_of_a_run_does_not_lead_to_its_directory(tmp_path: Path) -> None:
    """Nor to its seed, nor does it delete what is there."""
    own = config(
        "--experiment=mine", "--restart_behavior=overwrite", "--seed=3", f"--train_dir={tmp_path}", "--gamma=0.5"
    )
    file = tmp_path / "config.json"
    file.write_text(json.dumps(own.to_json()))
    read = train.parse_config([f"--config={file}"])
    assert (read.learner.gamma, read.run.env) == (0.5, "CartPole-v1")
    assert (read.run.experiment, read.run.train_dir) == ("CartPole-v1", "train_dir")
    assert (read.run.restart_behavior, read.run.seed) == ("resume", None)
    with pytest.raises(UsageError, match="has all flags, so --preset changes none of them"):
        train.parse_config([f"--config={file}", "--preset=classic"])


def test_switches_meet_their_flags_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("async_rl = true\nserial_mode = false")
    read = config(f"--config={file}", "--no-async_rl", "--serial_mode")
    assert (read.run.async_rl, read.run.serial_mode) == (False, True)
    with pytest.raises(SystemExit):
        config("--no-async_rl", "--seed=None", '--env_kwargs={"name": "\U0001f600"}', f"--save_config={file}")
    again = train.parse_config([f"--config={file}"])
    assert (again.run.async_rl, again.run.seed) == (False, None)
    assert again.run.env_arguments == {"name": "\U0001f600"}


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_a_file_that_was_written_starts_the_same(
    tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / f"run.{suffix}"
    words = [ENV, "--serial_mode", "--gamma=0.9", "--encoder_mlp_layers", "8", "4", '--env_kwargs={"a": 1}']
    with pytest.raises(SystemExit) as ended:
        train.parse_config([*words, f"--save_config={file}"])
    assert ended.value.code == 0
    assert f"sf-train --config={file}" in capsys.readouterr().out
    assert train.parse_config([f"--config={file}"]) == train.parse_config(words)
    assert "num_epochs" not in file.read_text()


@pytest.mark.parametrize(
    ("text", "name", "told"),
    [
        ("gamma = 0.9\nlr = 1", "a.toml", "has an unknown flag: 'lr'. It is called --learning_rate here"),
        ("rolout = 32", "a.toml", r"has an unknown flag: 'rolout'\. Did you mean rollout\? See --help all\."),
        ("zzz = 1", "a.toml", r"has an unknown flag: 'zzz'\. See --help all\."),
        ("gamma 0.9", "a.toml", "is no TOML"),
        ("[1]", "a.json", "must hold names and values, found list"),
        ('{"gamma": "high"}', "a.json", "--gamma=high must be a number"),
        ("gamma: 1", "a.yaml", "must end with .toml or .json"),
        (None, "none.toml", "cannot be read: No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_taken_is_told(tmp_path: Path, text: str | None, name: str, told: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=told):
        train.parse_config([ENV, f"--config={tmp_path / name}"])


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        train.parse_config(words)
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_the_help_is_short_and_says_where_the_rest_is(capsys: pytest.CaptureFixture[str]) -> None:
    short, learner, everything = (shown(capsys, *words) for words in (["--help"], ["--help", "learner"], ["-h", "all"]))
    assert len(short.splitlines()) < 60
    assert max(map(len, short.splitlines())) <= 100
    assert "--help all shows the" in short
    assert "--ppo_clip_ratio=0.2" in learner
    assert "--ppo_clip_ratio" not in short
    assert "--dashboard" not in learner
    assert all(f"--{name}" in everything for name in dict(flags_of(Config)))
    assert "--seed=None" in short
    preset = shown(capsys, "--help", "--preset=classic")
    assert "--train_for_env_steps=500000" in preset
    with pytest.raises(UsageError, match=r"--help lerner is no group of flags. There are all, run, rollout"):
        train.parse_config(["--help", "lerner"])


@pytest.mark.parametrize("words", [["--env=?"], ["--env", "?"]])
def test_a_question_lists_the_environments(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    listed = shown(capsys, *words)
    for name in ("atari/*", "sf/Remember-v0", "CartPole-v1", "HalfCheetah-v5", "module:Id"):
        assert re.search(rf"(^|[ ,]){re.escape(name)}([ ,\n]|$)", listed, re.M), name
    assert "CartPole-v0" not in listed, "the newest of each"
    assert max(map(len, listed.splitlines())) <= 100


@pytest.mark.more
def test_one_command_has_all_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    told = capsys.readouterr().out
    assert all(f"sf {name}" in told for name in COMMANDS)
    assert main(["trian"]) == 2
    assert "There is no command 'trian'. Did you mean sf train?" in capsys.readouterr().err
    assert main(["list"]) == 2
    assert "Did you mean sf ls?" in capsys.readouterr().err
    assert set(OURS_OF_COMMANDS.values()) <= set(COMMANDS)
    assert main(["--version"]) == 0
    version = capsys.readouterr().out
    for name in COMMANDS:
        assert main([name, "--version"]) == 0
        assert capsys.readouterr().out == version
    for module in ("sf", "sf.cli.evaluate"):
        done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout == version
    for name in COMMANDS:
        done = subprocess.run([sys.executable, "-m", "sf", name, "--help"], capture_output=True, text=True)
        assert (done.returncode, "usage" in done.stdout.lower()) == (0, True), (name, done.stderr)
