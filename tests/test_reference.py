"""The reference pages are those that the code gives, and their curves are those that runs write."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

import sf
from sf.cli.reference import pages
from sf.errors import ExitCode
from sf.monitor import tags
from tests.helpers.commands import EXPERIMENT, OPEN, run

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"


def test_committed_pages_are_those_of_the_code() -> None:
    written = pages()
    assert {path.name for path in REFERENCE.iterdir()} == set(written)
    for name, text in written.items():
        assert (REFERENCE / name).read_text() == text, f"{name} is old: make docs"


def test_every_exit_code_and_flag_says_what_it_means() -> None:
    for name, text in pages().items():
        for row in re.findall(r"^\| `.*$", text, re.M):
            assert len(row.rstrip("| ").split(" | ")) >= 2, f"{name}: {row}"
    assert len(re.findall(r"^\| \d+ \| `\w+` \| \w", pages()["exit-codes.md"], re.M)) == len(ExitCode)


EVALUATIONS = "--eval_every_steps=4000", "--eval_episodes=2"


def documented() -> list[str]:
    """Tags, some of them with a wildcard."""
    train = [f"train/{tag}" for curve in tags.TRAIN for tag in curve.tags.split()]
    return train + [tag for curve in tags.RUN + tags.FAULTS + tags.EVALUATION for tag in curve.tags.split()]


def written_by(path: Path, *flags: str) -> set[str]:
    """Tags of a short run."""
    finished = run(path, *OPEN[1:], "--experiment_summaries_interval=1", *flags)
    assert finished.code == ExitCode.FINISHED, finished.err
    lines = (path / EXPERIMENT / "metrics.jsonl").read_text().splitlines()
    return {tag for line in lines for tag in json.loads(line)} - {"time_s", "policy_id", "frames"}


@pytest.mark.more
def test_curves_of_runs_are_those_of_the_page(tmp_path: Path) -> None:
    extras = (
        "--env=CartPole-v1",
        "--reward_clip=0.5",
        "--kl_loss_coeff=0.1",
        "--eval_every_steps=4000",
        "--eval_episodes=2",
    )
    seen = written_by(tmp_path / "plain", "--train_for_seconds=3", *extras)
    replay = "--env=Pendulum-v1", "--serial_mode=True", "--replay=staleness", "--train_for_env_steps=4000"
    seen |= written_by(tmp_path / "replay", *replay)
    seen |= written_by(
        tmp_path / "own", "--env=tests.envs.test_metrics:Keys-v0", "--serial_mode=True", "--train_for_env_steps=2000"
    )
    duel = "--env=tests.environments.duel:duel", "--serial_mode=True", "--train_for_env_steps=2000"
    seen |= written_by(tmp_path / "duel", *duel)
    game = "--env=tests.environments.moves:LargerMove", "--serial_mode=True", "--train_for_env_steps=4000"
    anchor = "--self_play", "--num_policies=3", '--frozen_policies={"2": "tests.environments.moves:best"}'
    seen |= written_by(tmp_path / "self_play", *game, *anchor)
    population = "--env=CartPole-v1", "--serial_mode=True", "--num_policies=2", "--with_pbt", "--pbt_start_mutation=0"
    length = "--pbt_period_env_steps=1", "--train_for_env_steps=2000"
    seen |= written_by(tmp_path / "population", *population, *length)
    result = sf.train(
        "CartPole-v1",
        train_dir=str(tmp_path),
        serial_mode=True,
        num_envs_per_worker=4,
        train_for_env_steps=2000,
        on_iteration=lambda iteration: {"own": iteration.frames},
    )
    seen |= result.metrics.keys()
    for tag in seen:
        assert any(fnmatchcase(tag, pattern) for pattern in documented()), f"{tag} is not documented"
    for pattern in documented():
        if not pattern.startswith("stats/gpu_"):
            assert any(fnmatchcase(tag, pattern) for tag in seen), f"no run writes {pattern}"
