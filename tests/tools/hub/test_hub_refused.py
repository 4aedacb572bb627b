"""`sf-hub` where it refuses: damaged, foreign or hostile folders, wrong arguments, and trouble with the Hub."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sf.cli import hub as command
from sf.errors import CheckpointError
from sf.storage import sealed
from sf.storage.names import list_checkpoints
from sf.tools.hub.folder import expect_published, install
from tests.helpers.hub_runs import PUSH, files_of, hub_run
from tests.helpers.hub_server import Hub


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def reseal(folder: Path, **changes: Any) -> None:
    """As a hostile writer does: whole, with other contents."""
    content = {name: json.loads((folder / name).read_bytes()) for name in ("config.json", "scores.json")}
    content["scores.json"].update(changes)
    if "num_policies" in changes:
        content["config.json"]["run"]["num_policies"] = changes["num_policies"]
    for name in (*content, "manifest.json"):
        (folder / name).unlink()
    sealed.write(folder, {name: sealed.canonical_json(data) for name, data in content.items()})


def checkpoint_in(folder: Path) -> Path:
    (path,) = list_checkpoints(folder / "checkpoint_p0")
    return path


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "tensors": (lambda folder: flip(checkpoint_in(folder) / "tensors.safetensors"), "tensors.safetensors has the SHA-"),
    "state": (lambda folder: (checkpoint_in(folder) / "state.json").unlink(), "state.json is missing"),
    "config": (lambda folder: flip(folder / "config.json"), "config.json has the SHA-256 sum"),
    "scores": (lambda folder: (folder / "scores.json").unlink(), "scores.json is missing"),
    "no checkpoint": (lambda folder: shutil.rmtree(checkpoint_in(folder)), "checkpoint_p0 has no checkpoint"),
    "too few": (lambda folder: reseal(folder, num_policies=2), "checkpoint_p1 has no checkpoint"),
    "newer": (lambda folder: reseal(folder, format=2), "format 2, but this version of sf reads up to 1"),
    "nonsense": (lambda folder: reseal(folder, num_starts="many"), "is not a run that this version of sf can read"),
    "endless": (
        lambda folder: reseal(folder, num_starts=float("inf")),
        "is not a run that this version of sf can read",
    ),
    "unknown": (lambda folder: reseal(folder, num_policies=0), "is not a run that this version of sf can read"),
    "link": (lambda folder: link(folder / "scores.json"), "scores.json is missing or not a regular file"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_folder_is_refused_in_one_sentence_and_leaves_nothing(
    written: Path, tmp_path: Path, kind: str
) -> None:
    folder = shutil.copytree(written, tmp_path / "folder")
    damage, sentence = DAMAGE[kind]
    damage(folder)
    train_dir = tmp_path / "train_dir"
    train_dir.mkdir()
    with pytest.raises(CheckpointError, match=re.escape(sentence)) as refused:
        install(folder, train_dir / "mine", "me/pole")
    assert str(refused.value).startswith("me/pole ")
    assert str(tmp_path) not in str(refused.value)
    assert not list(train_dir.iterdir())


def test_a_run_that_starts_often_does_not_fill_the_disk(written: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(written, tmp_path / "folder")
    reseal(folder, num_starts=10**12)
    install(folder, tmp_path / "mine", "me/pole")
    assert len((tmp_path / "mine" / ".sf-experiment").read_text().splitlines()) == 10_000


def test_a_repository_of_another_library_is_refused() -> None:
    with pytest.raises(CheckpointError, match="me/bert is not a run that sf-hub push has written"):
        expect_published(["config.json", "model.safetensors", "README.md"], "me/bert")


def test_an_experiment_that_exists_stays_as_it_is(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files_of(trained / "train_dir")
    assert command.main(["pull", "--repo=me/pole", f"--train_dir={trained}/train_dir"]) == 4
    assert "train_dir/pole exists. Choose another --experiment or --train_dir." in capsys.readouterr().err
    assert files_of(trained / "train_dir") == before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "The first argument must be push or pull, found nothing."),
        (("fetch",), "The first argument must be push or pull, found 'fetch'."),
        (("pull",), "--repo is missing."),
        (("pull", "--repo=pole"), "--repo=pole is not the name of a repository. Write it like --repo=user/name."),
        (("pull", "--repo=me/../x"), "--repo=me/../x is not the name of a repository."),
        (("pull", "--repo=me/pole", "--experiment=../x"), "'../x' cannot name a directory."),
        (("push", "--experiment=pole"), "Give --repo=user/name, or --output=DIR for a folder that is not sent."),
        (("push", "--experiment=pole", "--output=."), "exists and is not an empty directory"),
        (("push", "--experiment=none", "--output=new"), "There is no experiment 'none' with checkpoints"),
    ],
)
def test_wrong_arguments_are_refused(
    trained: Path,
    arguments: tuple[str, ...],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(trained)
    assert command.main(list(arguments)) in (2, 4)
    assert sentence in capsys.readouterr().err


TROUBLE = {
    "no such name": ({}, ("pull", "--repo=me/a--b"), 2, "--repo=me/a--b cannot be the name of a repository: Cannot"),
    "no such repository": ({}, ("pull", "--repo=me/nothing"), 2, "There is no repository me/nothing that this token"),
    "no connection": (
        {"HF_ENDPOINT": "http://127.0.0.1:9"}, ("pull", "--repo=me/pole"), 5, "The Hub cannot be reached: ",
    ),
    "offline": ({"HF_HUB_OFFLINE": "1"}, ("pull", "--repo=me/pole"), 2, "HF_HUB_OFFLINE=1 forbids every exchange"),
    "no token": ({"HF_TOKEN": ""}, (*PUSH, "--repo=me/pole"), 2, "There is no token for the Hub. Log in with `hf auth"),
    "wrong token": ({"HF_TOKEN": "hf_x"}, (*PUSH, "--repo=me/pole"), 2, "The token may not do this in me/pole (401)."),
    "down": ({"status": "503"}, ("pull", "--repo=me/pole"), 5, "The Hub answers with an error: Server error '503"),
}  # fmt: skip


@pytest.mark.parametrize("kind", TROUBLE)
def test_each_trouble_with_the_hub_is_one_sentence(
    trained: Path, hub: Hub, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables, arguments, code, sentence = TROUBLE[kind]
    hub.status = int(variables.get("status", 0))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    train_dir = trained / "train_dir" if arguments[0] == "push" else tmp_path / "train_dir"
    refused = hub_run(tmp_path, *arguments, f"--train_dir={train_dir}")
    assert refused.code == code, refused.err
    *_, last = refused.err.strip().splitlines()
    assert re.match("(UsageError|ResourceError): ", last)
    assert sentence in last
    assert "Traceback" not in refused.err
    assert not hub.repositories
    assert not (tmp_path / "train_dir" / "pole").exists()
