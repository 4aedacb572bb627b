"""`sf-hub`: the real client against a Hub on this machine, and what is pushed."""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch

import sf
from sf.cli import hub as command
from sf.cli.evaluate import _write_csv
from sf.evaluator import film
from sf.evaluator.summary import ReturnSummary, summarize
from sf.evaluator.tally import Episodes
from sf.policy import TimeStep
from sf.storage import checkpoint
from sf.storage.names import list_checkpoints
from sf.tools.hub.card import _table
from sf.tools.hub.folder import PublishedScores, _move_checkpoints, install, read_run
from sf.tools.hub.scoring import read_scores
from tests.helpers.commands import run
from tests.helpers.hub_runs import NEAR, PUSH, files_of, hub_run, told
from tests.helpers.hub_server import Hub


@pytest.mark.more
def test_a_pulled_run_plays_the_same_scores_and_trains_on(trained: Path, hub: Hub, tmp_path: Path) -> None:
    pushed = hub_run(trained, *PUSH, "--repo=me/pole", "--private=True")
    assert pushed.code == 0, pushed.err
    assert f"Sent pole to {hub.address}/me/pole" in pushed.out
    assert hub.private == {"me/pole"}
    files = hub.repositories["me/pole"]
    assert files["replay.mp4"][4:8] == b"ftyp"

    pulled = hub_run(tmp_path, "pull", "--repo=me/pole")
    assert pulled.code == 0, pulled.err
    experiment = tmp_path / "train_dir" / "pole"
    assert "Play it: sf-enjoy --experiment=pole" in pulled.out
    assert [path.name for path in experiment.parent.iterdir()] == ["pole"]

    scores = json.loads(files["scores.json"])["scores"]
    program, *flags = shlex.split(re.findall(r"sf-eval .*", files["README.md"].decode())[0])
    assert (program, flags[:2]) == ("sf-eval", ["--experiment=pole", "--num_episodes=7"])
    assert run(tmp_path, *flags, "--csv=again.csv", module="sf.cli.evaluate").code == 0
    rows = csv.DictReader((tmp_path / "again.csv").read_text().splitlines())
    rewards = [float(row["reward"]) for row in rows]
    assert len(set(rewards)) > 1
    again = {"mean": sum(rewards) / 7, "minimum": min(rewards), "maximum": max(rewards), "num_episodes": 7}
    assert again == {name: scores["policies"][0][name] for name in again}

    step = TimeStep.first(torch.randn(8, 4), 8)
    actions = [sf.load_policy(path).action(step, seed=3).action for path in (trained / "train_dir/pole", experiment)]
    assert torch.equal(*actions)

    (before,) = list_checkpoints(experiment / "checkpoint_p0")
    resumed = run(tmp_path, *NEAR, "--train_for_env_steps=14000")
    assert f"Resumed from {before}" in resumed.out
    assert resumed.code == 0
    assert len((experiment / ".sf-experiment").read_text().splitlines()) == 3


@pytest.mark.more
def test_the_card_has_metadata_that_the_hub_reads(written: Path) -> None:
    cards = pytest.importorskip("huggingface_hub.repocard")
    card = cards.ModelCard.load(written / "README.md")
    (result,) = card.data.eval_results
    (one,) = told(written)["scores"]["policies"]
    assert result.dataset_type == "CartPole-v1"
    assert (result.task_type, result.metric_type) == ("reinforcement-learning", "mean_reward")
    assert result.metric_value == f"{one['mean']:.2f} +/- {one['std']:.2f}"
    assert card.data.library_name == "sf"
    assert {"CartPole-v1", "reinforcement-learning", "ppo"} <= set(card.data.tags)


def test_the_card_says_how_the_policy_was_trained_and_is_played(written: Path, trained: Path) -> None:
    text = (written / "README.md").read_text()
    summary = json.loads((trained / "train_dir/pole/summary.json").read_text())["policies"][0]
    (one,) = told(written)["scores"]["policies"]
    assert "sf-hub pull --repo=USER/pole\nsf-enjoy --experiment=pole\n" in text
    assert re.search(r"sf-train --env=CartPole-v1 .*--num_envs_per_worker=8 .*--seed=1 --experiment=pole-again", text)
    assert f"{summary['frames']:,} frames, {summary['policy_version']:,} optimizer steps" in text
    assert f"{summary['lag_of_run']['avg']:.2f} on average, {summary['lag_of_run']['max']:.0f} at most" in text
    assert f"| 0 | {one['mean']:.2f} | {one['low']:.2f} to {one['high']:.2f} | {one['std']:.2f} |" in text
    assert f"torch {torch.__version__}" in text
    assert "[replay.mp4](replay.mp4)" in text


def test_no_directory_of_this_machine_is_published(written: Path, trained: Path) -> None:
    for name, data in files_of(written).items():
        assert str(trained).encode() not in data, name
    end = json.loads((trained / "train_dir/pole/summary.json").read_text())
    assert f"--train_dir={trained}/train_dir" in end["origin"]["command"], "which stays here"
    assert (trained / "train_dir/pole/console.log").is_file()
    assert not [name for name in files_of(written) if "console" in name or "summary" in name]


@pytest.mark.more
def test_a_push_replaces_the_checkpoint_that_was_there(trained: Path, hub: Hub) -> None:
    hub.repositories["me/pole"] = {
        "checkpoint_p0/checkpoint_000000001_1/state.json": b"{}",
        "replay.mp4": b"old",
        "notes.md": b"mine",
    }
    assert hub_run(trained, *PUSH, "--repo=me/pole").code == 0
    files = hub.repositories["me/pole"]
    assert "checkpoint_p0/checkpoint_000000001_1/state.json" not in files
    assert files["replay.mp4"] != b"old"
    assert files["notes.md"] == b"mine"
    assert not hub.private


def test_a_pull_takes_no_file_that_it_does_not_know(written: Path, hub: Hub, tmp_path: Path) -> None:
    whole = files_of(written)
    others = "policy.py", "policy.pt", "checkpoint_p0/../../evil/state.json", "checkpoint_p0/hook.py", "README.md"
    hub.repositories["me/pole"] = whole | dict.fromkeys(others, b"evil")
    pulled = hub_run(tmp_path, "pull", "--repo=me/pole", "--experiment=mine")
    assert pulled.code == 0, pulled.err
    there = files_of(tmp_path / "train_dir")
    assert b"evil" not in there.values()
    (name,) = {name.split("/")[2] for name in there if "checkpoint_p0" in name}
    files = {f"mine/checkpoint_p0/{name}/{file}" for file in ("tensors.safetensors", "state.json", "manifest.json")}
    assert set(there) == files | {"mine/config.json", "mine/.sf-experiment"}
    assert not any(name in url for url in hub.downloads for name in others)
    config = json.loads(there["mine/config.json"])
    assert config["run"]["experiment"] == "mine"


def test_with_best_the_latest_checkpoint_is_there_to_go_on_from(trained: Path, tmp_path: Path) -> None:
    experiment = tmp_path / "train_dir" / "pole"
    shutil.copytree(trained / "train_dir" / "pole", experiment)
    (newest,) = list_checkpoints(experiment / "checkpoint_p0")[-1:]
    saved = checkpoint.load(newest)
    data = saved.data | {"reward": 1e9}
    best = checkpoint.save(experiment / "checkpoint_p0" / "best", 5, 40, saved.tensors, data, keep=1)
    arguments = [*PUSH, f"--train_dir={experiment.parent}", f"--output={tmp_path / 'out'}", "--checkpoint=best"]
    assert command.main(arguments) == 0
    text = (tmp_path / "out" / "README.md").read_text()
    assert "sf-enjoy --experiment=pole --checkpoint=best\n" in text
    assert "sf-eval --experiment=pole --checkpoint=best " in text
    assert 'sf.load_policy("train_dir/pole", "best")' in text
    install(tmp_path / "out", tmp_path / "pulled", "me/pole")
    own = tmp_path / "pulled" / "checkpoint_p0"
    assert [path.name for path in list_checkpoints(own)] == [newest.name]
    assert [path.name for path in list_checkpoints(own / "best")] == [best.name]
    sf.load_policy(tmp_path / "pulled", "best")


def test_a_run_that_was_pulled_or_killed_is_published_without_its_length(written: Path, tmp_path: Path) -> None:
    install(shutil.copytree(written, tmp_path / "copy"), tmp_path / "pole", "me/pole")
    assert command.main([*PUSH, f"--train_dir={tmp_path}", f"--output={tmp_path / 'out'}"]) == 0
    text = (tmp_path / "out" / "README.md").read_text()
    assert "its length and its policy lag are not known" in text
    assert told(tmp_path / "out")["num_starts"] == told(written)["num_starts"] == 2


def test_a_damaged_summary_costs_its_lines_and_not_the_push(written: Path, tmp_path: Path) -> None:
    install(shutil.copytree(written, tmp_path / "copy"), tmp_path / "pole", "me/pole")
    damaged = {
        "policies": [{"frames": "many", "policy_version": 3, "lag_of_run": 1}],
        "fps": "fast",
        "wall_time_s": 2.0,
    }
    (tmp_path / "pole" / "summary.json").write_text(json.dumps(damaged))
    assert command.main([*PUSH, f"--train_dir={tmp_path}", f"--output={tmp_path / 'out'}"]) == 0
    text = (tmp_path / "out" / "README.md").read_text()
    assert "its length and its policy lag are not known" in text
    assert "optimizer steps" not in text


def test_a_run_without_its_configuration_is_refused(
    written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(shutil.copytree(written, tmp_path / "copy"), tmp_path / "pole", "me/pole")
    (tmp_path / "pole" / "config.json").unlink()
    assert command.main([*PUSH, f"--train_dir={tmp_path}", f"--output={tmp_path / 'out'}"]) == 4
    assert "its config.json is missing" in capsys.readouterr().err


def test_without_the_packages_there_is_no_film_and_the_card_says_so(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(film.PACKAGES, ".mp4", "no_such_package")
    folder = tmp_path / "out"
    assert command.main([*PUSH, f"--train_dir={trained}/train_dir", f"--output={folder}"]) == 0
    assert 'Without a film: no_such_package is missing: pip install "sf-rl[video]"' in capsys.readouterr().out
    assert "There is no film: no_such_package is missing" in (folder / "README.md").read_text()
    assert not (folder / "replay.mp4").exists()


def test_scores_may_come_from_a_file_of_sf_eval(trained: Path, tmp_path: Path) -> None:
    file, folder = tmp_path / "scores.csv", tmp_path / "out"
    file.write_text("policy,policy_id,episode,reward,length\npole latest,0,0,10,10\npole latest,0,1,20,20\n")
    flags = f"--train_dir={trained}/train_dir", f"--scores={file}", f"--output={folder}"
    assert command.main([*PUSH, *flags]) == 0
    (one,) = told(folder)["scores"]["policies"]
    assert (one["mean"], one["num_episodes"]) == (15.0, 2)
    assert "sf-eval" not in (folder / "README.md").read_text()


def test_agents_in_a_file_of_sf_eval_are_told_apart(tmp_path: Path) -> None:
    episodes = Episodes([1.0, 5.0, 3.0], [4, 4, 4], metrics=[{}, {}, {}], agents=[0, 1, 0], num_agents=2)
    _write_csv(tmp_path / "scores.csv", [("pole latest", [episodes])])
    (read,) = read_scores(tmp_path / "scores.csv", 1)
    assert read.agents == summarize(episodes).agents == {0: 2.0, 1: 5.0}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a,b\n1,2\n", "is not a file that sf-eval --csv has written"),
        ("policy,policy_id,episode,reward,length\na,0,0,nan,1\n", "is not a file that sf-eval --csv has written"),
        ("policy,policy_id,episode,reward,length\na,1,0,1,1\n", "is not a file that sf-eval --csv has written"),
        ("policy,policy_id,episode,reward,length\na,0,0,1,1\nb,0,0,1,1\n", "is about 2 checkpoints, expected one"),
        ("policy,policy_id,episode,reward,length\n", "is about 0 checkpoints, expected one"),
        (None, "cannot be read: No such file"),
    ],
)
def test_scores_of_something_else_are_refused(
    trained: Path, tmp_path: Path, text: str | None, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (tmp_path / "scores.csv").write_text(text)
    flags = f"--train_dir={trained}/train_dir", f"--scores={tmp_path}/scores.csv", f"--output={tmp_path}/out"
    assert command.main([*PUSH, *flags]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.more
def test_modules_are_named_by_the_user_in_a_push_and_after_a_pull(written: Path, hub: Hub, tmp_path: Path) -> None:
    env, experiment = "tests.environments.toys:Toy-v0", tmp_path / "train_dir" / "pole"
    experiment.parent.mkdir()
    install(shutil.copytree(written, tmp_path / "copy"), experiment, "me/pole")
    (path,) = list_checkpoints(experiment / "checkpoint_p0")
    saved = checkpoint.load(path)
    data = json.loads(json.dumps(saved.data))
    data["config"]["run"]["env"] = env
    checkpoint.save(path.parent, saved.version, saved.env_steps, saved.tensors, data, replace=True)
    config = read_run(experiment).config
    (experiment / "config.json").write_text(json.dumps(config | {"run": config["run"] | {"env": env}}))
    refused = hub_run(tmp_path, *PUSH, "--repo=me/pole")
    assert f"If you trust it, name it: --env={env}" in refused.err
    assert not hub.repositories
    assert hub_run(tmp_path, *PUSH, "--repo=me/pole", "--env=CartPole-v1").code == 0
    assert "sf-enjoy --experiment=pole --env=CartPole-v1\n" in hub.repositories["me/pole"]["README.md"].decode()
    pulled = hub_run(tmp_path, "pull", "--repo=me/pole", "--experiment=mine")
    assert f"If you trust it, name it: --env={env}" in pulled.out
    played = run(tmp_path, "--experiment=mine", "--num_episodes=2", module="sf.cli.evaluate")
    assert f"If you trust it, name it: --env={env}" in played.err


def test_each_number_of_the_card_is_under_its_name() -> None:
    """Every number differs, so that none can stand for another."""
    summary = ReturnSummary(12, 1.5, 2.5, 3.5, 4.5, (5.5, 6.5, 7.5, 8.5, 9.5), 10.5, 11.5, 13.5)
    head, _, row = (
        line.strip("| ").split(" | ")
        for line in _table(PublishedScores("latest", "Env-v0", {}, {}, [summary])).splitlines()
    )
    found = dict(zip(head, row, strict=True))
    del found["95% interval"]
    assert {name: float(text) for name, text in found.items()} == {
        "policy": 0, "mean": 1.5, "std": 2.5, "min": 10.5, "median": 7.5, "max": 11.5, "length": 13.5, "episodes": 12,
    }  # fmt: skip


def test_all_checkpoints_of_a_policy_move(tmp_path: Path) -> None:
    source, target = tmp_path / "checkpoint_p0", tmp_path / "target"
    source.mkdir()
    for version in (1, 2):
        checkpoint.save(source, version, 10 * version, {"x": torch.ones(3)}, {"reward": 1.0})
    names = [path.name for path in list_checkpoints(source)]
    _move_checkpoints(source, target)
    assert len(names) == 2
    assert [path.name for path in list_checkpoints(target)] == names
