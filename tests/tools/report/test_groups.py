"""Runs that train alike, but for their seed, are one group."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sf.config import RunConfig
from sf.storage.given import Given
from sf.tools.report.figures import MOST_GROUPS, make_figures, score_figures
from sf.tools.report.groups import RunGroup, differences, foremost, make_groups, rescaled, variants
from sf.tools.report.reproduction import changed_flags, command
from sf.tools.report.runs import read_run
from tests.helpers.reported import rising, write_run


def groups_of(*paths: Path) -> list[RunGroup]:
    return make_groups([policy for path in paths for policy in read_run(path)])


def test_seeds_are_one_group_and_other_flags_are_not(tmp_path: Path) -> None:
    slow = [write_run(tmp_path / f"slow-seed{seed}", rising(50.0 + seed), seed=seed) for seed in (1, 2, 3)]
    fast = [write_run(tmp_path / f"fast-{seed}", rising(90.0), seed=seed, learning_rate=0.01) for seed in (1, 2)]
    groups = groups_of(*slow, *fast)
    assert [group.label for group in groups] == ["learning_rate=0.01", "learning_rate=0.001"], "the best one first"
    assert [group.scores.tolist() for group in groups] == [[90.0, 90.0], [51.0, 52.0, 53.0]]
    assert [group.index for group in groups] == [0, 1]
    (alone,) = groups_of(*slow)
    assert alone.label == "slow"
    assert groups_of(slow[0])[0].label == "slow-seed1"
    assert groups_of(write_run(tmp_path / "first-seed"))[0].label == "first-seed", "a run alone keeps its name"


def test_values_that_runs_chose_themselves_do_not_split_a_group(tmp_path: Path) -> None:
    def with_workers(name: str, number: int, chosen: tuple[str, ...]) -> Path:
        path = write_run(tmp_path / name)
        config = json.loads((path / "config.json").read_text())
        config["rollout"]["num_workers"] = number
        config["faults"]["max_restarts"] = number
        (path / "config.json").write_text(json.dumps(config))
        Given({}, frozenset(chosen)).write(path)
        return path

    chosen = [with_workers(f"run-{number}", number, ("num_workers",)) for number in (2, 3)]
    (group,) = groups_of(*chosen)
    assert len(group.runs) == 2
    assert sorted(len(group.runs) for group in groups_of(*chosen, with_workers("given", 3, ()))) == [1, 2]


OUTPUT: dict[str, Any] = {
    "dashboard": True,
    "with_wandb": True,
    "with_trackio": True,
    "wandb_project": "mine",
    "wandb_user": "me",
    "wandb_group": "first",
    "wandb_tags": "a,b",
    "experiment_summaries_interval": 3,
    "keep_checkpoints": 7,
    "save_every_sec": 30,
    "save_best_every_sec": 60,
    "save_milestones_sec": 600,
}


@pytest.mark.parametrize(("flag", "value"), OUTPUT.items())
def test_flags_of_output_alone_make_no_group(flag: str, value: Any, tmp_path: Path) -> None:
    assert getattr(RunConfig(env="any"), flag) != value, "no default"
    first = write_run(tmp_path / "run-1", seed=1)
    second = write_run(tmp_path / "run-2", seed=2, flags={flag: value})
    (group,) = groups_of(first, second)
    assert changed_flags(group.runs[1]).keys() == {"batch_size", "learning_rate"}
    assert flag not in command(group.runs[1])


@pytest.mark.parametrize(("flag", "value"), [("train_for_env_steps", 1000), ("stats_avg", 7)])
def test_other_flags_of_the_run_make_groups(flag: str, value: int, tmp_path: Path) -> None:
    groups = groups_of(write_run(tmp_path / "run-1"), write_run(tmp_path / "run-2", flags={flag: value}))
    assert len(groups) == 2
    assert {f"--{flag}={value}" in command(group.runs[0]) for group in groups} == {True, False}


def test_groups_that_differ_in_much_have_the_name_of_their_runs(tmp_path: Path) -> None:
    first = write_run(tmp_path / "plain-1", env="Acrobot-v1", learning_rate=0.123456789)
    second = write_run(tmp_path / "tuned-1", env="CartPole-v1", learning_rate=0.987654321)
    assert [group.label for group in groups_of(first, second)] == ["plain-1", "tuned-1"]


def test_labels_are_unique(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / name / "run", env=f"A-very-long-name-of-one-environment-{name}-v0") for name in "ab"]
    assert [group.label for group in groups_of(*paths)] == ["run", "run (2)"]


def test_policies_of_a_run_are_groups_of_their_own(tmp_path: Path) -> None:
    points = rising(80.0) + rising(60.0, policy_id=1)
    paths = [write_run(tmp_path / f"pair-{seed}", points, seed=seed, num_policies=2) for seed in (1, 2)]
    groups = groups_of(*paths)
    assert [group.label for group in groups] == ["pair, policy 0", "pair, policy 1"]
    assert [group.scores.tolist() for group in groups] == [[80.0, 80.0], [60.0, 60.0]]


def test_runs_without_a_configuration_are_not_taken_for_seeds(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / name) for name in ("one", "two")]
    for path in paths:
        (path / "config.json").unlink()
    assert [group.label for group in groups_of(*paths)] == ["one", "two"]


def test_group_without_an_episode_has_no_score(tmp_path: Path) -> None:
    points = [{"time_s": 1.0, "policy_id": 0, "frames": 10, "perf/_fps": 3.0}]
    (group,) = groups_of(write_run(tmp_path / "run", points, ended=False))
    assert group.score is None
    assert [figure.name for figure in make_figures([group])] == ["throughput"]


def test_differences_name_fields_that_one_configuration_lacks() -> None:
    found = differences([{"gamma": 0.9, "lr": 1}, {"gamma": 0.9, "lr": 2}, {"gamma": 0.9, "lr": 1, "new": True}])
    assert found == {"lr": [1, 2, 1], "new": ["(none)", "(none)", True]}


def test_plots_have_the_best_groups_of_every_environment(tmp_path: Path) -> None:
    rates = [round(0.001 * number, 3) for number in range(1, 10)]
    paths = [write_run(tmp_path / f"{env}{rate}", env=env, learning_rate=rate) for env in ("A", "B") for rate in rates]
    groups = groups_of(*paths)
    assert len(groups) == 18
    shown = foremost(groups, MOST_GROUPS)
    assert [group.index for group in shown] == [0, 1, 2, 3, 9, 10, 11, 12]


def test_configurations_are_compared_over_environments(tmp_path: Path) -> None:
    scores = {("A", 0.1): [0.0, 50.0], ("A", 0.2): [100.0, 75.0], ("B", 0.1): [-4.0, -3.0], ("B", 0.2): [-2.0, -4.0]}
    paths = [
        write_run(tmp_path / f"{env}-{rate}-{seed}", rising(score), env=env, learning_rate=rate, seed=seed)
        for (env, rate), each in scores.items()
        for seed, score in enumerate(each)
    ]
    groups = groups_of(*paths)
    found = variants(groups)
    assert found.keys() == {"learning_rate=0.1", "learning_rate=0.2"}
    strata = rescaled(found["learning_rate=0.2"], groups)
    assert [stratum.tolist() for stratum in strata] == [[1.0, 0.75], [1.0, 0.0]]
    assert [figure.name for figure in score_figures(groups)] == ["scores-1", "scores-2", "scores-over-all"]
    over_all = score_figures(groups)[-1].plot["data"]
    large = {trace["name"]: trace["x"][0] for trace in over_all if "error_x" in trace}
    expected = {"learning_rate=0.1": np.mean([0.0, 0.5]), "learning_rate=0.2": np.mean([0.75, 1.0])}
    assert large["learning_rate=0.2"] == pytest.approx(expected["learning_rate=0.2"])
    assert large["learning_rate=0.1"] == pytest.approx(expected["learning_rate=0.1"])
