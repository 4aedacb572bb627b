"""What the plots of a report hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sf.tools.report.figures import Figure, make_figures
from sf.tools.report.groups import make_groups
from sf.tools.report.pictures import HEAD, WIDTH, _order
from sf.tools.report.runs import read_run
from sf.tools.report.statistics import GRID, MOST_POINTS
from tests.helpers.reported import point, rising, write_run

ONE_RUN = [
    "reward", "reward-by-time", "lag", "lag-histogram", "lag-sources", "lag-effects", "throughput", "time-shares"
]  # fmt: skip


def figures_of(*paths: Path) -> dict[str, Figure]:
    groups = make_groups([policy for path in paths for policy in read_run(path)])
    return {figure.name: figure for figure in make_figures(groups)}


def two_groups(path: Path) -> list[Path]:
    rates = {0.001: 50.0, 0.01: 90.0}
    return [
        write_run(path / f"{rate}-{seed}", rising(score + seed), seed=seed, learning_rate=rate)
        for rate, score in rates.items()
        for seed in (1, 2, 3)
    ]


def traces(figure: Figure) -> dict[str, Any]:
    """By name; those without one are bands."""
    return {trace["name"]: trace for trace in figure.plot["data"] if "name" in trace}


def test_figures_of_one_run(tmp_path: Path) -> None:
    figures = figures_of(write_run(tmp_path / "run"))
    assert list(figures) == ONE_RUN
    around, curve = figures["reward"].plot["data"]
    assert curve["x"] == [1000 * place for place in range(1, 51)]
    assert curve["y"][-1] == 100.0
    assert (around["y"][49], around["y"][50]) == (110.0, 90.0), "from the lowest to the highest episode"
    assert around["fill"] == "toself"
    assert figures["reward-by-time"].plot["data"][1]["x"][-1] == 49.0
    assert figures["reward-by-time"].plot["layout"]["xaxis"]["title"]["text"] == "wall time, seconds"
    lag = traces(figures["lag"])
    assert [lag[end]["y"][0] for end in ("min", "avg", "max")] == [1.0, 2.0, 4.0]
    assert traces(figures["throughput"])["run"]["y"][0] == 1000.0


def test_curves_are_seen_from_frame_0_on(tmp_path: Path) -> None:
    figures = figures_of(write_run(tmp_path / "run"))
    for name in ("reward", "reward-by-time", "lag", "lag-sources", "throughput"):
        assert figures[name].plot["layout"]["xaxis"]["rangemode"] == "tozero", name


def test_what_says_how_learning_goes_is_there_as_far_as_runs_have_it(tmp_path: Path) -> None:
    own = {"env/keys": 3.0, "env/keys_min": 1.0, "env/keys_max": 5.0, "env/fuel_min": 0.5, "train/entropy": 0.6}
    run = write_run(tmp_path / "run", [each | own for each in rising()])
    figures = figures_of(run)
    assert [name for name in figures if name not in ONE_RUN] == ["env-1", "env-2", "train-entropy"]
    assert [figures[name].title for name in ("env-1", "env-2")] == ["env/fuel_min", "env/keys"]
    _, curve = figures["env-2"].plot["data"]
    assert set(curve["y"]) == {3.0}
    assert traces(figures["train-entropy"])["run"]["y"][0] == 0.6
    several = figures_of(run, write_run(tmp_path / "other", rising(), learning_rate=0.5))
    assert list(traces(several["env-2"])) != [], "of the group that has it"


def test_band_needs_both_of_its_ends(tmp_path: Path) -> None:
    points = rising()
    points[7]["reward/reward_max"] = None
    (curve,) = figures_of(write_run(tmp_path / "run", points))["reward"].plot["data"]
    assert len(curve["x"]) == 50


def test_figures_of_several_groups(tmp_path: Path) -> None:
    figures = figures_of(*two_groups(tmp_path))
    assert list(figures) == [*ONE_RUN[:2], "scores-1", *ONE_RUN[2:]]
    for name in ("reward", "lag", "throughput"):
        assert traces(figures[name]).keys() == {"learning_rate=0.001", "learning_rate=0.01"}, name
    best = traces(figures["reward"])["learning_rate=0.01"]
    assert len(best["x"]) == GRID
    assert best["y"][-1] == 92.0
    low, high = (figures["reward"].plot["data"][0]["y"][place] for place in (GRID, GRID - 1))
    assert (low, high) == (91.0, 93.0), "three runs: the bootstrap reaches from the lowest to the highest one"


def test_intervals_have_their_ends(tmp_path: Path) -> None:
    runs, best = figures_of(*two_groups(tmp_path))["scores-1"].plot["data"][:2]
    assert sorted(runs["x"]) == [91.0, 92.0, 93.0]
    assert best["x"] == [92.0]
    assert (best["error_x"]["arrayminus"], best["error_x"]["array"]) == ([1.0], [1.0])


def test_lag_histogram_is_that_of_all_transitions(tmp_path: Path) -> None:
    points = [
        point(1000, 1.0, 1.0, more={"lag/histogram": [5, 0, 5]}),
        point(2000, 2.0, 1.0, more={"lag/histogram": [30, 10]}),
    ]
    (bars,) = figures_of(write_run(tmp_path / "run", points))["lag-histogram"].plot["data"]
    assert bars["x"] == [0, 1, 2]
    assert bars["y"] == [70.0, 20.0, 10.0]


def test_a_few_old_transitions_do_not_squeeze_the_histogram(tmp_path: Path) -> None:
    points = [point(1000, 1.0, 1.0, more={"lag/histogram": [5000, 5000] + [0] * 500 + [1]})]
    figure = figures_of(write_run(tmp_path / "run", points))["lag-histogram"]
    assert len(figure.plot["data"][0]["x"]) == 2
    assert figure.plot["layout"]["annotations"][0]["text"] == "mean 0.6"


def test_lag_by_source_adds_up(tmp_path: Path) -> None:
    figures = figures_of(write_run(tmp_path / "one"))
    found = traces(figures["lag-sources"])
    assert {name.partition(",")[0]: trace["y"][0] for name, trace in found.items()} == {
        "acting": 0.5, "queued": 0.25, "epochs": 1.25
    }  # fmt: skip
    assert {trace["stackgroup"] for trace in found.values()} == {"lag"}
    short = figures_of(write_run(tmp_path / "short", [point(1000, 1.0, 1.0)]))
    assert [trace["type"] for trace in short["lag-sources"].plot["data"]] == ["bar"] * 3, "a point has no area"


def test_time_shares_are_those_of_roles_and_sum_to_100(tmp_path: Path) -> None:
    plot = figures_of(write_run(tmp_path / "run"))["time-shares"].plot
    data = plot["data"]
    assert plot["layout"]["barmode"] == "stack"
    rows = {trace["name"]: dict(zip(trace["y"], trace["x"], strict=True)) for trace in data}
    assert rows["step"] == {"rollout": 50.0, "learner": 0.0}
    assert rows["wait"] == {"rollout": 20.0, "learner": 20.0}
    assert list(rows)[-1] == "wait"
    assert rows["other"] == {"rollout": 10.0, "learner": 10.0}, "write, publish and save"
    for role in ("rollout", "learner"):
        assert sum(row[role] for row in rows.values()) == pytest.approx(100.0)


def test_effects_of_lag_are_in_the_order_of_lag(tmp_path: Path) -> None:
    more = {f"train/ESS_at_lag/{bucket}": 0.5 for bucket in ("16-31", "4-7", "128+", "1")}
    figure = figures_of(write_run(tmp_path / "run", [point(1000, 1.0, 1.0, more=more)]))["lag-effects"]
    assert figure.plot["layout"]["xaxis"]["categoryarray"] == ["0", "1", "2-3", "4-7", "16-31", "128+"]
    assert traces(figure)["effective sample size"]["x"] == ["0", "1", "2-3", "4-7", "16-31", "128+"]
    assert traces(figure)["clipped share"]["x"] == ["0"]


def test_each_environment_has_rewards_of_its_own(tmp_path: Path) -> None:
    figures = figures_of(write_run(tmp_path / "a", env="A-v0"), write_run(tmp_path / "b", env="B-v0"))
    titles = {name: figure.title for name, figure in figures.items() if name.startswith("reward")}
    assert titles["reward-1"] == titles["reward-1-by-time"] == "Reward in A-v0"
    assert titles["reward-2"] == "Reward in B-v0"
    colours = [
        traces(figures[name])[label]["line"]["color"]
        for name, label in (("reward-1", "env=A-v0"), ("reward-2", "env=B-v0"))
    ]
    assert colours == [traces(figures["lag"])[label]["line"]["color"] for label in ("env=A-v0", "env=B-v0")]
    assert colours[0] != colours[1]


def test_plot_with_many_names_has_room_for_them(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / str(rate), learning_rate=rate / 10) for rate in range(1, 9)]
    few, many = figures_of(*paths[:2]), figures_of(*paths)
    assert few["lag"].plot["layout"]["height"] == 360
    assert many["lag"].plot["layout"]["height"] == 360 + 4 * 16
    assert few["time-shares"].plot["layout"]["height"] == 130 + 38 * 4


def test_long_runs_are_thinned(tmp_path: Path) -> None:
    figures = figures_of(write_run(tmp_path / "run", rising(number=3000)))
    assert len(traces(figures["reward"])["run"]["x"]) == MOST_POINTS
    assert max(len(trace["x"]) for figure in figures.values() for trace in figure.plot["data"]) == 2 * MOST_POINTS


@pytest.mark.parametrize("several", [False, True])
def test_plotly_takes_every_figure(several: bool, tmp_path: Path) -> None:
    graph_objects = pytest.importorskip("plotly.graph_objects")
    figures = figures_of(*two_groups(tmp_path)) if several else figures_of(write_run(tmp_path / "run"))
    for figure in figures.values():
        graph_objects.Figure(figure.plot)  # which knows every attribute and refuses others
        assert json.loads(json.dumps(figure.plot, allow_nan=False)) == figure.plot


def test_a_picture_is_as_high_as_its_plot_and_its_title() -> None:
    figure = Figure("x", "A title", "about", {"data": [], "layout": {"height": 300}})
    order = _order(figure, Path("x.png"))
    sizes = [{name: each[name] for name in ("width", "height")} for each in (order["opts"], order["fig"]["layout"])]
    assert sizes == [{"width": WIDTH, "height": 300 + HEAD}] * 2
