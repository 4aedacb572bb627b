"""Finding and reading the directories of runs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from sf.errors import ExperimentError
from sf.tools.report.figures import make_figures
from sf.tools.report.groups import make_groups
from sf.tools.report.page import make_page
from sf.tools.report.runs import find_runs, read_run, read_runs
from tests.helpers.reported import BEGAN, point, rising, write_run


def test_runs_are_found_by_name_by_directory_and_in_folders(tmp_path: Path) -> None:
    train_dir = tmp_path / "train_dir"
    one = write_run(train_dir / "one")
    first, second = write_run(train_dir / "sweep" / "trial0-seed1"), write_run(train_dir / "sweep" / "trial0-seed2")
    write_run(train_dir / "one.before-20261126-080000-000000")
    (train_dir / "sweep" / "logs").mkdir()
    assert find_runs(["one"], train_dir) == [one]
    assert find_runs([str(one)], tmp_path / "elsewhere") == [one]
    assert find_runs(["sweep"], train_dir) == [first, second]
    assert find_runs([str(train_dir), "one"], train_dir) == [one, first, second], "set aside runs are left out"
    aside = "one.before-20261126-080000-000000"
    assert find_runs([aside], train_dir) == [train_dir / aside], "but not if they are named"


def test_folder_of_the_working_directory_does_not_hide_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "train_dir" / "docs")
    (tmp_path / "docs").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_runs(["docs"], Path("train_dir")) == [run.relative_to(tmp_path)]


def test_missing_run_names_the_one_that_is_meant(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"There is no run 'x'.* Train one with sf-train"):
        find_runs(["x"], tmp_path)
    for number in range(6):
        write_run(tmp_path / f"lander-{number}")
    with pytest.raises(ExperimentError, match=r"There is no run 'landr-3'.* Did you mean lander-3\?"):
        find_runs(["landr-3"], tmp_path)
    with pytest.raises(ExperimentError, match=r"Found: lander-0, .*lander-4, and others\."):
        find_runs(["x"], tmp_path)


def test_run_without_curves_is_told(tmp_path: Path) -> None:
    path = write_run(tmp_path / "fresh", [])
    with pytest.raises(ExperimentError, match="has no curves yet"):
        read_run(path)
    (path / "metrics.jsonl").unlink()
    with pytest.raises(ExperimentError, match=r"metrics\.jsonl is missing\. It comes with the first curves"):
        find_runs(["fresh"], tmp_path)


def test_runs_of_a_folder_without_curves_are_left_out(tmp_path: Path) -> None:
    good = write_run(tmp_path / "sweep" / "c")
    fresh = write_run(tmp_path / "sweep" / "a", [])
    begun = write_run(tmp_path / "sweep" / "b")
    (begun / "metrics.jsonl").unlink()
    runs, without = read_runs(find_runs(["sweep"], tmp_path), ["sweep"], tmp_path)
    assert [run.path for run in runs] == [good]
    assert without == [fresh, begun]
    for named in (["sweep", "sweep/a"], [str(fresh), "sweep"]):
        with pytest.raises(ExperimentError, match="has no curves yet"):
            read_runs(find_runs(named, tmp_path), named, tmp_path)
    (good / "metrics.jsonl").write_text("")
    with pytest.raises(ExperimentError, match=r"No run has curves yet: a, b, c\. They come"):
        read_runs(find_runs(["sweep"], tmp_path), ["sweep"], tmp_path)


def test_damaged_lines_are_left_out_and_counted(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    good = (path / "metrics.jsonl").read_text()
    bad = [json.dumps(point(1, 1.0, 1.0) | {"policy_id": wrong}) for wrong in (-1, 0.5, True, 10**400)]
    bad += ['{"time_s": 1, "fra', "[1, 2]", '{"frames": 3}', "\x00\x00", "[" * 100_000]
    (path / "metrics.jsonl").write_text("\n".join(bad) + "\n" + good + '{"time_s": 17')
    (run,) = read_run(path)
    assert run.num_damaged == 9, "the last line may just be written"
    assert len(run.points) == 50


def test_values_that_are_no_numbers_are_no_points(tmp_path: Path) -> None:
    points = [point(1000, 1.0, 5.0), point(2000, 2.0, 6.0), point(3000, 3.0, 7.0)]
    points[0]["reward/reward"], points[1]["reward/reward"] = None, "much"
    (run,) = read_run(write_run(tmp_path / "run", points))
    assert run.curve("reward/reward").values.tolist() == [7.0]
    assert run.curve("reward/reward").frames.tolist() == [3000.0]
    assert run.curve("lag/histogram").values.tolist() == []
    assert run.curve("unknown").seconds.tolist() == []


def test_pause_between_two_starts_takes_no_time(tmp_path: Path) -> None:
    points = [point(1000, 2.0, 1.0), point(2000, 12.0, 1.0), point(3000, 1004.0, 1.0), point(4000, 1010.0, 1.0)]
    (run,) = read_run(write_run(tmp_path / "run", points, starts=(0.0, 1000.0)))
    assert run.curve("reward/reward").seconds.tolist() == [0.0, 10.0, 14.0, 20.0]
    assert run.wall_time_s == 20.0, "summary.json has the last start alone"


def test_run_that_goes_on_is_read_from_its_curves(tmp_path: Path) -> None:
    points = [
        point(1000, 0.0, 3.0),
        point(2000, 9.0, 4.0, more={"faults/restarts": 2.0, "faults/oldest_heartbeat": 9.0}),
    ]
    (run,) = read_run(write_run(tmp_path / "run", points, ended=False))
    assert (run.score, run.frames, run.wall_time_s, run.fps) == (4.0, 2000, 9.0, 1000.0)
    assert run.end == "killed"
    assert run.faults == {"restarts": 2.0}
    assert run.total("lag/histogram").tolist() == [2, 4, 6, 8]


def test_faults_of_all_starts_are_added(tmp_path: Path) -> None:
    restarts = [0.0, 2.0, 3.0, 0.0, 1.0]
    points = [point(1000 * i, float(i), 1.0, more={"faults/restarts": each}) for i, each in enumerate(restarts, 1)]
    (run,) = read_run(write_run(tmp_path / "going", points, ended=False, starts=(0.0, 3.5)))
    assert run.faults == {"restarts": 4.0}
    (run,) = read_run(write_run(tmp_path / "ended", points, faults={"faults/restarts": 2.0}, starts=(0.0, 3.5)))
    assert run.faults == {"restarts": 5.0}, "the summary has one more than the last point"


def test_run_that_has_ended_is_read_from_its_summary(tmp_path: Path) -> None:
    (run,) = read_run(write_run(tmp_path / "run", faults={"faults/failed_saves": 2.0, "slots/learned": 7.0}))
    assert (run.score, run.frames, run.wall_time_s, run.fps) == (100.0, 50_000, 51.5, 970.9)
    assert run.faults == {"failed_saves": 2.0}, "trajectories that were complete at the end are no fault"
    assert run.starts == [BEGAN.timestamp()]


def test_each_policy_of_a_run_is_its_own(tmp_path: Path) -> None:
    points = rising(80.0, policy_id=1) + rising(60.0)
    first, second = read_run(write_run(tmp_path / "run", points, num_policies=2))
    assert [first.policy_id, second.policy_id] == [0, 1]
    assert [first.score, second.score] == [60.0, 80.0]
    assert [len(each.points) for each in (first, second)] == [50, 50]
    assert [each.curve("reward/reward").values[-1] for each in (first, second)] == [60.0, 80.0]


def test_files_that_another_program_has_spoiled_are_like_missing_ones(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    (path / "config.json").write_text('{"run": {"env"')
    (path / "summary.json").write_text(json.dumps([1]))
    (path / ".sf-experiment").write_text("no start\n")
    (run,) = read_run(path)
    assert run.flags == {}
    assert run.score is not None
    assert math.isclose(run.score, 100.0)
    assert run.starts == []


@pytest.mark.parametrize("wrong", [None, 7, "much", [1], [None], {"faults/restarts": "two"}, {"learner-0": 3}])
@pytest.mark.parametrize("name", ["policies", "faults", "versions", "fps", "wall_time_s", "seconds"])
def test_fields_of_the_summary_of_a_wrong_type_are_like_missing_ones(name: str, wrong: Any, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    path = write_run(tmp_path / "run")
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps(summary | {name: wrong}))
    runs = read_run(path)
    groups = make_groups(runs)
    page = make_page(groups, make_figures(groups), BEGAN)
    assert "train_for_env_steps reached" in page
    number = name in ("fps", "wall_time_s") and wrong == 7
    assert (runs[0].score, runs[0].frames) == (100.0, 50_000)
    assert runs[0].fps == (7 if number and name == "fps" else 1000.0 if name == "fps" else 970.9)
    assert runs[0].wall_time_s == (7 if number and name == "wall_time_s" else 49.0 if name == "wall_time_s" else 51.5)


def test_policies_keep_their_places_in_a_damaged_summary(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", rising(80.0) + rising(60.0, policy_id=1), num_policies=2)
    policies = ["damaged", {"frames": "many", "reward": 55.0}]
    (path / "summary.json").write_text(json.dumps({"policies": policies}))
    first, second = read_run(path)
    assert [(each.score, each.frames) for each in (first, second)] == [(80.0, 50_000), (55.0, 50_000)]


@pytest.mark.parametrize("damaged", [[None], [[1]], ["a"], [-1], [1.5], [True], [10**400]])
def test_a_damaged_histogram_is_passed_over(tmp_path: Path, damaged: list[Any]) -> None:
    points = [point(1000, 0.0, 3.0), point(2000, 9.0, 4.0, more={"lag/histogram": damaged})]
    (run,) = read_run(write_run(tmp_path / "run", points))
    (good,) = read_run(write_run(tmp_path / "good", points[:1]))
    assert run.total("lag/histogram").tolist() == good.total("lag/histogram").tolist() != []
