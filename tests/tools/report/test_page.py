"""The page of a report: one file with everything in it."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import shlex
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from sf.tools.report.figures import Figure, make_figures
from sf.tools.report.groups import make_groups
from sf.tools.report.markup import duration, rounded
from sf.tools.report.page import make_page
from sf.tools.report.runs import read_run
from sf.tools.report.sections import LARGEST_VIDEO
from tests.helpers.reported import point, rising, write_run

pytest.importorskip("plotly")
VOID = {"meta", "img", "br", "link"}


class Reader(HTMLParser):
    """Texts by element, and what is wrong with the nesting."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.scripts: dict[str, str] = {}
        self.attributes: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._script = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        self._script = dict(attrs).get("id") or "" if tag == "script" else ""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            self.scripts[self._script] = self.scripts.get(self._script, "") + data
        elif self.open[-1:] != ["style"]:
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def page_of(*paths: Path) -> str:
    groups = make_groups([policy for path in paths for policy in read_run(path)])
    return make_page(groups, make_figures(groups), datetime(2026, 11, 26, 9, 0))


def read(*paths: Path) -> Reader:
    reader = Reader(page_of(*paths))
    assert reader.open == [], "every element is closed"
    return reader


def test_page_holds_its_plots_and_the_library(tmp_path: Path) -> None:
    reader = read(write_run(tmp_path / "run"))
    plots: dict[str, Any] = json.loads(reader.scripts["plots"])
    assert len(plots) == 8
    places = [found["data-plot"] for tag, found in reader.attributes if tag == "div" and "data-plot" in found]
    assert places == [name for name in plots if name != "reward-by-time"]
    assert b"plotly.js" in gzip.decompress(base64.b64decode(reader.scripts["plotly"]))[:400]
    buttons = [found for tag, found in reader.attributes if tag == "button"]
    assert [button["data-plot"] for button in buttons] == ["reward", "reward-by-time"]
    assert {button["data-place"] for button in buttons} == {"plot-reward"}


def test_page_needs_no_network(tmp_path: Path) -> None:
    reader = read(write_run(tmp_path / "run"))
    for tag, found in reader.attributes:
        assert "href" not in found, tag
        assert str(found.get("src", "data:")).startswith("data:"), tag
    (policy,) = (found["content"] for _, found in reader.attributes if found.get("http-equiv"))
    assert str(policy).startswith("default-src 'none';")


def test_verdict_about_one_run(tmp_path: Path) -> None:
    text = read(write_run(tmp_path / "run")).text
    for told in (
        "CartPole-v1: run",
        "Score 100.0 mean return of the last 100 episodes, from 90.0 to 110.0",
        "Frames 50,000",
        "Wall time 51.5 s",
        "Frames per second 971",
        "End train_for_env_steps reached",
        "Faults and restarts None.",
        "Made by sf",
    ):
        assert told in text, told


def test_two_seeds_of_a_group_tell_nothing(tmp_path: Path) -> None:
    paths = [
        write_run(tmp_path / f"{rate}-{seed}", rising(score + seed), seed=seed, learning_rate=rate)
        for rate, score in ((0.001, 50.0), (0.01, 90.0))
        for seed in (1, 2)
    ]
    text = read(*paths).text
    assert "2 seeds are too few to tell them apart: 3 or more may." in text
    assert "overlap" not in text


def test_verdict_about_one_group_has_an_interval(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / f"run-{seed}", rising(50.0 + seed), seed=seed) for seed in (1, 2, 3)]
    assert "Score 52.0 interquartile mean of 3 runs, 95 % interval 51.0 to 53.0" in read(*paths).text


@pytest.mark.parametrize(("second", "told"), [(51.5, "overlap: more seeds may tell."), (90.0, "do not overlap.")])
def test_verdict_about_two_groups_says_whether_they_differ(second: float, told: str, tmp_path: Path) -> None:
    paths = [
        write_run(tmp_path / f"{rate}-{seed}", rising(score + seed), seed=seed, learning_rate=rate)
        for rate, score in ((0.001, 50.0), (0.01, second))
        for seed in (1, 2, 3)
    ]
    text = read(*paths).text
    assert (
        f"CartPole-v1: learning_rate=0.01 has {second + 2:.1f}, learning_rate=0.001 has 52.0. Their intervals" in text
    )
    assert told in text
    assert f"learning_rate=0.01 3 {second + 2:.1f} {second + 1:.1f} to {second + 3:.1f} 50,000 51.5 s 971 train" in text
    assert "Differences between the groups Flag learning_rate=0.01 learning_rate=0.001 learning_rate 0.01 0.001" in text


def test_single_runs_are_not_said_to_overlap(tmp_path: Path) -> None:
    reader = read(write_run(tmp_path / "one", learning_rate=0.1), write_run(tmp_path / "two", learning_rate=0.2))
    assert "needs 2 runs" in reader.text
    assert "overlap" not in reader.text
    assert "Band" not in reader.text
    assert "scores-1" not in json.loads(reader.scripts["plots"]), "the table says it all"


def test_faults_and_damage_are_told(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", faults={"faults/restarts_hang": 2.0}, starts=(0.0, 20.0))
    with (path / "metrics.jsonl").open("a") as metrics:
        metrics.write("damaged\n")
    text = read(path).text
    assert "Faults and restarts Run What Count run restarts hang 2" in text
    assert "run starts of the command 2" in text
    assert "run damaged lines of metrics.jsonl, left out 1" in text


def test_faults_of_a_run_with_two_policies_are_told_once(tmp_path: Path) -> None:
    points = rising(policy_id=1) + rising()
    path = write_run(tmp_path / "run", points, num_policies=2, faults={"faults/restarts": 2.0})
    text = read(path).text
    assert text.count("run restarts 2") == 1
    assert text.count("run, seed 1: sf") == 1


def test_run_that_has_not_ended_says_what_is_missing(tmp_path: Path) -> None:
    text = read(write_run(tmp_path / "run", ended=False)).text
    assert "Not shown are where the time went: this comes with the end of a run." in text
    assert "End killed" in text


def test_run_without_any_reward_or_step_has_a_page(tmp_path: Path) -> None:
    points = [{"time_s": 1.0, "policy_id": 0, "frames": 10, "perf/_fps": 3.0}]
    text = read(write_run(tmp_path / "run", points, ended=False)).text
    assert "Score none no episode has ended" in text
    assert "policy lag: no optimizer step has been counted yet" in text


def test_several_environments_without_a_score_have_a_page(tmp_path: Path) -> None:
    points = [{"time_s": 1.0, "policy_id": 0, "frames": 10}]
    paths = [write_run(tmp_path / env, points, env=env, ended=False) for env in ("A-v0", "B-v0")]
    assert "A-v0, B-v0: 2 configurations" in read(*paths).text


def test_command_seed_and_versions_of_each_run(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / f"run {seed}", seed=seed, learning_rate=3e-4) for seed in (1, 2)]
    reader = read(*paths)
    assert "run 1, seed 1: sf 0.1.0, torch 2.13.0" in reader.text
    commands = [shlex.split(word) for word in reader.words if word.startswith("sf-train")]
    assert len(commands) == 2
    assert commands[1][:2] == ["sf-train", "--env=CartPole-v1"]
    assert {"--learning_rate=0.0003", "--seed=2", "--experiment=run 2-again"} <= set(commands[1])


def test_differences_from_the_defaults(tmp_path: Path) -> None:
    text = read(write_run(tmp_path / "run", learning_rate=0.5)).text
    assert re.search(r"Differences from the defaults Flag Value Default .*learning_rate 0\.5 None", text)


def test_many_groups_are_below_each_other(tmp_path: Path) -> None:
    paths = [
        write_run(tmp_path / f"run{rate}", rising(100 * rate), learning_rate=rate) for rate in (0.1, 0.2, 0.3, 0.4)
    ]
    text = read(*paths).text
    assert (
        "between the groups Group learning_rate learning_rate=0.4 0.4 learning_rate=0.3 0.3 learning_rate=0.2" in text
    )


def test_more_than_four_commands_are_folded(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / f"run-{seed}", seed=seed) for seed in range(6)]
    reader = read(*paths)
    assert "2 more" in reader.words
    assert ("section", {"class": "wide"}) in reader.attributes
    assert len([word for word in reader.words if word.startswith("sf-train")]) == 6


@pytest.mark.parametrize(("suffix", "tag"), [(".gif", "img"), (".mp4", "video")])
def test_newest_video_is_in_the_page(suffix: str, tag: str, tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    for age, name in enumerate(("new", "old")):
        (path / f"{name}{suffix}").write_bytes(f"the {name} film".encode())
        os.utime(path / f"{name}{suffix}", (2000 - age, 2000 - age))
    reader = read(path)
    (source,) = (found["src"] for name, found in reader.attributes if name == tag)
    assert base64.b64decode(str(source).partition(",")[2]) == b"the new film"
    assert f"The last video run/new{suffix}" in reader.text


def test_large_video_is_named_and_left_out(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    (path / "long.mp4").write_bytes(bytes(LARGEST_VIDEO + 1))
    reader = read(path)
    assert "run/long.mp4 has 0.5 MB, more than the 0.5 MB that this page takes" in reader.text
    assert not [tag for tag, _ in reader.attributes if tag == "video"]


@pytest.mark.more
def test_page_with_everything_is_smaller_than_3_mb(tmp_path: Path) -> None:
    """Eight configurations with five seeds each, long curves, and the largest video."""
    paths = [
        write_run(tmp_path / f"{rate}-{seed}", rising(seed, 600), seed=seed, learning_rate=rate)
        for rate in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
        for seed in range(5)
    ]
    (paths[0] / "film.gif").write_bytes(bytes(LARGEST_VIDEO))
    assert len(page_of(*paths).encode()) < 3_000_000


def test_names_are_text_and_never_markup(tmp_path: Path) -> None:
    bad = "</script><script>alert(1)</script>"
    reader = read(*[write_run(tmp_path / f"<b>{seed}", env=f"{bad}{seed}") for seed in "ab"])
    assert set(reader.scripts) == {"plots", "plotly", ""}
    assert not [tag for tag, _ in reader.attributes if tag == "b"]
    assert bad + "a" in reader.text
    plots = json.loads(reader.scripts["plots"])
    assert [trace["name"] for trace in plots["lag"]["data"]] == ["&lt;b&gt;a", "&lt;b&gt;b"], "plotly reads some markup"


def test_text_in_a_plot_does_not_end_its_script(tmp_path: Path) -> None:
    groups = make_groups(read_run(write_run(tmp_path / "run")))
    plot = {"data": [{"name": "</script><b>"}], "layout": {"height": 1}}
    reader = Reader(make_page(groups, [Figure("lag", "Lag", "", plot)], datetime(2026, 11, 26)))
    assert json.loads(reader.scripts["plots"]) == {"lag": plot}


def test_damaged_configuration_is_told(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", [point(1000, 1.0, 1.0)])
    (path / "config.json").write_text("{")
    text = read(path).text
    assert "?: run" in text
    assert "config.json is missing or damaged." in text


@pytest.mark.parametrize(
    ("seconds", "text"), [(3.46, "3.5 s"), (60.0, "1 min 0 s"), (3599.6, "1 h 0 min"), (7860.0, "2 h 11 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("value", "text"), [(-109.54, "-109.5"), (0.01234, "0.0123"), (1234567.8, "1,234,567.8")])
def test_scores_as_text(value: float, text: str) -> None:
    assert rounded(value) == text


def test_a_plot_over_frames_alone_has_no_switch_and_a_run_without_a_preset_names_none(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "run"))
    switches = re.findall(r'<span class="switch">(.*?)</span>', page)
    assert "" in switches
    assert all(not each or each.startswith("<button") for each in switches)
    assert "of --preset" not in page
