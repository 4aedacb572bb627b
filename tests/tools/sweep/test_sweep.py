"""`sf-sweep` on this machine, with real runs: to the end, through stops and kills, and past runs that fail."""

from __future__ import annotations

import csv
import json
import re
import signal
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

from sf.cli.sweep import main
from sf.errors import ExitCode
from sf.tools.sweep.description import Settings
from sf.tools.sweep.execution import with_values
from tests.helpers.commands import Running, run, running

HEAD = 'sweep = "small"\n'
FLAGS = '[flags]\nenv = "CartPole-v1"\nserial_mode = true\nnum_envs_per_worker = 4\nrollout = 16\n'
SWEEP = "sf.cli.sweep"
LONG = 20_000
"""Frames of a run that is met while it goes on."""


def written(path: Path, text: str) -> str:
    """A file of a sweep in a directory; returns its name."""
    (path / "sweep.toml").write_text(text)
    return "sweep.toml"


def results_of(path: Path) -> list[dict[str, Any]]:
    trials: list[dict[str, Any]] = json.loads((path / "train_dir/small/results.json").read_text())["trials"]
    return trials


def starts_of(path: Path, name: str) -> int:
    """How often a run was started."""
    return len((path / "train_dir/small" / name / ".sf-experiment").read_text().splitlines())


def wait_for_curves(command: Running, name: str) -> None:
    """Until a run of the sweep trains."""
    curves = command.out_file.parent / "train_dir/small" / name / "metrics.jsonl"
    command.wait_for(lambda: curves.is_file() and "train/loss" in curves.read_text(), f"curves of {name}")


@pytest.mark.more
def test_grid_of_two_seeds_to_the_best_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    flags = f'{FLAGS}train_for_env_steps = 600\nupdates = "fast"\n'
    text = f"{HEAD}seeds = [1, 2]\njobs = 2\n{flags}[values]\nlearning_rate = [1e-6, 0.02]\n"
    finished = run(tmp_path, written(tmp_path, text), module=SWEEP)
    assert finished.code == ExitCode.FINISHED, finished.err
    trials = results_of(tmp_path)
    assert [trial["flags"] for trial in trials] == [{"learning_rate": 1e-6}, {"learning_rate": 0.02}]
    assert all(each["state"] == "finished" for trial in trials for each in trial["runs"])
    for trial in trials:
        for each in trial["runs"]:
            summary = tmp_path / "train_dir/small" / f"trial00{trial['trial']}-seed{each['seed']}" / "summary.json"
            assert each["value"] == json.loads(summary.read_text())["policies"][0]["reward"]
    with (tmp_path / "train_dir/small/results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["trial"], row["seed"], row["learning_rate"]) for row in rows] == [
        ("0", "1", "1e-06"), ("0", "2", "1e-06"), ("1", "1", "0.02"), ("1", "2", "0.02"),
    ]  # fmt: skip
    table = re.search(r"^trial .*\n +1 .* 2/2 .* 0.02\n +0 .* 2/2 .* 1e-06$", finished.out, re.M)
    assert table, finished.out
    assert (tmp_path / "train_dir/small/sweep.png").stat().st_size > 10_000
    best = finished.lines[-1].split()
    assert best[0] == "sf-train"
    assert {"--learning_rate=0.02", "--experiment=small-best", "--train_dir=train_dir"} < set(best)
    assert run(tmp_path, *best[1:]).code == ExitCode.FINISHED

    shown = run(tmp_path, "sweep.toml", "--show", module=SWEEP)
    assert table[0] in shown.out, "and nothing was started"
    assert {starts_of(tmp_path, f"trial00{trial}-seed{seed}") for trial in (0, 1) for seed in (1, 2)} == {1}


@pytest.mark.alone
def test_sweep_goes_on_after_ctrl_c_and_after_a_kill(tmp_path: Path) -> None:
    values = f"train_for_env_steps = {LONG}\n[values]\ngamma = [0.9, 0.95, 0.99]\n"
    file = written(tmp_path, HEAD + FLAGS + values)
    with running(tmp_path, file, module=SWEEP) as command:
        command.wait_for_text("trial000-seed1: reward")
        wait_for_curves(command, "trial001-seed1")
        command.process.send_signal(signal.SIGINT)
        stopped = command.finish()
    assert stopped.code == ExitCode.SIGINT
    assert "Stopping trial001-seed1. They save first." in stopped.out
    assert stopped.lines[-1] == "Stopped. Go on with the same command: sf-sweep sweep.toml"
    assert [len(trial["runs"]) for trial in results_of(tmp_path)] == [1, 0]

    with running(tmp_path, file, module=SWEEP) as command:
        command.wait_for_text("trial001-seed1: reward")
        wait_for_curves(command, "trial002-seed1")
        command.process.kill()
        command.process.wait()
        command.expect_nobody(20.0)
    finished = run(tmp_path, file, module=SWEEP)
    assert finished.code == ExitCode.FINISHED, finished.err
    assert re.findall(r"^(trial\d+)-seed1: reward", finished.out, re.M) == ["trial002"]
    assert [trial["runs"][0]["state"] for trial in results_of(tmp_path)] == ["finished"] * 3
    assert [starts_of(tmp_path, f"trial00{index}-seed1") for index in range(3)] == [1, 2, 2]
    for index in (1, 2):
        name = f"trial00{index}-seed1"
        summary = json.loads((tmp_path / "train_dir/small" / name / "summary.json").read_text())
        assert summary["frames"] >= LONG, "all of them"
        assert 0 < summary["new_frames"] < LONG, "a part of them before the stop"


@pytest.mark.more
def test_sweep_goes_past_runs_that_fail(tmp_path: Path) -> None:
    values = 'env = ["CartPole-v1", "NoSuchTask-v0"]\n'
    text = HEAD + FLAGS.replace('env = "CartPole-v1"\n', "") + "train_for_env_steps = 600\n"
    finished = run(tmp_path, written(tmp_path, f"{text}[values]\n{values}"), module=SWEEP)
    assert finished.code == ExitCode.FINISHED
    assert "trial001-seed1: failed with exit code 3. EnvError: " in finished.out
    assert "NoSuchTask" in next(line for line in finished.lines if line.startswith("trial001-seed1"))
    assert "1 of 2 runs failed; the next start tries them again." in finished.out

    (tmp_path / "train_dir").rename(tmp_path / "earlier")
    values = 'env = ["NoSuchTask-v0", "NoSuchTask-v1"]\n'
    finished = run(tmp_path, written(tmp_path, f"{text}[values]\n{values}"), module=SWEEP)
    assert finished.code == ExitCode.ENVIRONMENT, "if all have failed, as the last one has"


@pytest.mark.slow  # ten seconds of which a start can take many on a busy machine
def test_run_at_its_time_limit_counts_with_what_it_has(tmp_path: Path) -> None:
    finished = run(tmp_path, written(tmp_path, f"{HEAD}time_limit_s = 10\n{FLAGS}"), module=SWEEP)
    assert finished.code == ExitCode.FINISHED, finished.err
    (trial,) = results_of(tmp_path)
    assert trial["runs"][0]["state"] == "time_limit"
    assert trial["runs"][0]["value"] > 0
    assert run(tmp_path, "sweep.toml", module=SWEEP).code == ExitCode.FINISHED
    assert starts_of(tmp_path, "trial000-seed1") == 1, "it is not run again"


def test_values_of_a_flag_stay_with_it_and_in_their_order() -> None:
    words = ["--num_epochs=1", "--encoder_mlp_layers", "64", "32", "--env=CartPole-v1"]
    assert with_values(words) == ["--encoder_mlp_layers 64 32", "--env=CartPole-v1", "--num_epochs=1"]


@pytest.mark.more
def test_run_of_other_flags_is_not_taken_for_a_trial(tmp_path: Path) -> None:
    """Where results.json was moved away, and trials have other numbers than before."""
    text = f"{HEAD}{FLAGS}train_for_env_steps = 2000\n[values]\nnum_epochs = "
    assert run(tmp_path, written(tmp_path, f"{text}[1]\n"), module=SWEEP).code == ExitCode.FINISHED
    (tmp_path / "train_dir/small/results.json").unlink()
    finished = run(tmp_path, written(tmp_path, f"{text}[2]\n"), module=SWEEP)
    assert finished.code != ExitCode.FINISHED
    message = results_of(tmp_path)[0]["runs"][0]["message"]
    assert "was trained with --num_epochs=1, and this trial has --num_epochs=2. Move it away" in message
    assert "Move it away, or give the sweep another name." in message


@pytest.mark.more
def test_run_that_did_not_reach_its_goal_has_no_frames_to_compare(tmp_path: Path) -> None:
    text = f'{HEAD}objective = "frames"\nminimise = true\n{FLAGS}stop_at_reward = 400\ntrain_for_env_steps = 500\n'
    finished = run(tmp_path, written(tmp_path, text), module=SWEEP)
    assert finished.code != ExitCode.FINISHED
    (trial,) = results_of(tmp_path)
    assert "no frames to compare (train_for_env_steps reached)" in trial["runs"][0]["message"]


def test_directory_of_something_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "small/notes.txt").touch()
    file = tmp_path / "sweep.toml"
    file.write_text(f'{HEAD}train_dir = "{tmp_path}"\n{FLAGS}')
    assert main([str(file)]) == ExitCode.CHECKPOINT
    assert "exists and is no sweep. Give the sweep another name." in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "small").iterdir()] == ["notes.txt"]


def test_sweep_without_results_shows_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(f'{HEAD}train_dir = "{tmp_path}"\n{FLAGS}')
    assert main([str(file), "--show"]) == ExitCode.CHECKPOINT
    assert "has ended with a reward yet." in capsys.readouterr().err
    assert not (tmp_path / "small").exists()


@pytest.mark.slow
def test_documented_example_runs(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    root = Path(__file__).parents[3]
    example = (root / "examples/sweep.toml").read_text()
    documented = re.findall(r"(?:^    .*\n|^\n)+", (root / "docs/sweeps.md").read_text(), re.M)
    assert any(example in re.sub("^    ", "", block, flags=re.M) for block in documented)
    for key, value in (("trials", "2"), ("seeds", "[1]"), ("train_for_env_steps", "1_000"), ("jobs", "1000")):
        example = re.sub(rf"^{key} = .*", f"{key} = {value}", example, flags=re.M)
    finished = run(tmp_path, written(tmp_path, example), "--search=random", module=SWEEP)
    assert finished.code == ExitCode.FINISHED, finished.err
    assert "1000 runs at once with 1 rollout workers each share" in finished.lines[0]
    assert "--learning_rate=" in finished.lines[-1]


def test_documented_keys_are_those_of_the_file() -> None:
    text = (Path(__file__).parents[3] / "docs/sweeps.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", text, re.M))
    assert list(rows) == [field.name for field in fields(Settings)]
    for field in fields(Settings):
        shown = (
            "[1]" if field.name == "seeds" else json.dumps(field.default) if field.default is not MISSING else "null"
        )
        assert rows[field.name].strip("` ") == ("none" if shown == "null" else shown), field.name
