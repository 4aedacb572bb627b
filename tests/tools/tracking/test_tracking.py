"""Curves for Weights & Biases and trackio: the real packages without a network, and what happens where they fail."""

from __future__ import annotations

import importlib.util
import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sf.cli.track import main
from sf.config import RunConfig
from sf.errors import UsageError
from sf.evaluator.film import Film
from sf.processes.signals import Signals
from sf.run import trackers
from sf.run.trackers import wanted_trackers
from sf.tools.tracking.points import SENT, Points
from tests.helpers.commands import EXPERIMENT, NAME, ROOT, run, started, wait_for_training

SMALL = (
    "--env=CartPole-v1", NAME, "--num_workers=1", "--num_envs_per_worker=8", "--seed=1", "--train_for_env_steps=20000",
)  # fmt: skip
READ_OFFLINE_RUN = """
import json, struct, sys
from wandb.proto.wandb_internal_pb2 import Record
BLOCK, HEADER = 32768, 7  # the log of LevelDB, after a mark of seven bytes
data, start, texts, text = open(sys.argv[1], "rb").read(), 7, [], b""
while start + HEADER <= len(data):
    if BLOCK - start % BLOCK < HEADER:
        start += BLOCK - start % BLOCK
        continue
    _, length, kind = struct.unpack_from("<IHB", data, start)
    text += data[start + HEADER : start + HEADER + length]
    start += HEADER + length
    if kind in (1, 4):  # whole, or the last part
        texts.append(text)
        text = b""
points, config, run_id = [], {}, ""
for text in texts:
    record = Record()
    record.ParseFromString(text)
    kind = record.WhichOneof("record_type")
    if kind == "history":
        items = record.history.item
        points.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    elif kind == "run":
        run_id = record.run.run_id
        config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
print(json.dumps([points, config, run_id]))
"""


def line(time_s: float, frames: int = 1, policy_id: int = 0, **values: Any) -> str:
    return json.dumps({"time_s": time_s, "policy_id": policy_id, "frames": frames, **values}) + "\n"


def expect_package(name: str) -> None:
    """Without importing it, which has side effects."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"the extra {name} is not installed")


def metrics_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in (path / EXPERIMENT / "metrics.jsonl").read_text().splitlines()]


# ------------------------------------------------------------------------------------------------------------- points


def test_points_come_once_and_whole(tmp_path: Path) -> None:
    metrics, points = tmp_path / "metrics.jsonl", Points(tmp_path, "wandb")
    assert points.new() == []
    whole, begun = line(1.0, a=0.5), line(2.0, a=1.5)
    metrics.write_text(whole + "{damaged\n" + '{"time_s": 3}\n' + begun[:20])
    assert [point["time_s"] for point in points.new()] == [1.0]
    with metrics.open("a") as file:
        file.write(begun[20:])
    assert [point["a"] for point in points.new()] == [1.5]
    assert points.new() == []


def test_what_was_sent_is_not_sent_again_also_where_lines_are_forgotten(tmp_path: Path) -> None:
    metrics, first = tmp_path / "metrics.jsonl", Points(tmp_path, "wandb")
    metrics.write_text(line(1.0) + line(2.0) + line(3.0))
    for point in first.new():
        first.note(point)
    forgetting = tmp_path / "new"
    forgetting.write_text(line(1.0) + line(4.0))
    forgetting.replace(metrics)
    assert [point["time_s"] for point in first.new()] == [4.0]
    later, other = Points(tmp_path, "wandb"), Points(tmp_path, "trackio")
    assert later.id == first.id != other.id
    assert [point["time_s"] for point in later.new()] == [4.0]
    other.note(other.new()[-1])
    assert set(json.loads((tmp_path / SENT).read_text())) == {"wandb", "trackio"}


# ------------------------------------------------------------------------------------------------------- real packages


@pytest.mark.more
def test_wandb_has_the_curves_of_a_run_and_of_its_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expect_package("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    flags = *SMALL[:-1], "--num_policies=2", "--with_wandb=True", "--wandb_project=mine", "--wandb_tags=a, b"
    assert run(tmp_path, *flags, "--train_for_env_steps=20000").code == 0
    first = metrics_of(tmp_path)
    assert run(tmp_path, *flags, "--train_for_env_steps=40000").code == 0
    files = list((tmp_path / EXPERIMENT / "wandb").glob("offline-run-*/*.wandb"))
    files.sort(key=lambda file: file.stat().st_mtime)
    assert len(files) == 2
    sent, ids = [], set()
    for file in files:
        command = [sys.executable, "-W", "ignore", "-c", READ_OFFLINE_RUN, str(file)]
        read = subprocess.run(command, capture_output=True, text=True, check=True)
        points, config, run_id = json.loads(read.stdout)
        assert (config["env"], config["num_policies"]) == ("CartPole-v1", 2)
        ids.add(run_id)
        sent.append(points)
    assert len(ids) == 1
    assert len(sent[0]) == len(first)
    wanted = metrics_of(tmp_path)
    assert len(sent[1]) == len([point for point in wanted if point["time_s"] > first[-1]["time_s"]])
    for point, theirs in zip(first, sent[0], strict=True):
        prefix = f"policy{point['policy_id']}/" if point["policy_id"] else ""
        assert theirs["frames"] == point["frames"]
        for tag, value in point.items():
            if isinstance(value, float) and tag != "time_s":
                assert theirs[prefix + tag] == pytest.approx(value)
            if isinstance(value, list):
                assert theirs[f"{prefix}{tag}/values"] == value


@pytest.mark.more
def test_trackio_has_the_curves_of_a_run_that_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that sends them notices, sends the rest and ends."""
    expect_package("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    command = sys.executable, "-m", "sf.cli.train", *SMALL[:-1], "--with_trackio=True", "--wandb_group=g"
    with started(tmp_path, *command, mark=str(tmp_path)) as running:
        wait_for_training(running)
        (main_process,) = running.named("sf-train")
        main_process.send_signal(signal.SIGKILL)
        running.process.wait(30)
        running.expect_nobody(30.0)
    (database,) = (tmp_path / "trackio").glob("sf.db")
    with sqlite3.connect(database) as connection:
        rows = connection.execute("select step, metrics from metrics order by id").fetchall()
        (config,) = connection.execute("select config from configs").fetchone()
    assert json.loads(config)["env"] == "CartPole-v1"
    wanted = [point for point in metrics_of(tmp_path) if len(point) > 3]
    assert len(rows) == len(wanted) > 0
    for (step, theirs), point in zip(rows, wanted, strict=True):
        assert step == point["frames"]
        found = json.loads(theirs)
        numbers = {tag: value for tag, value in point.items() if isinstance(value, float) and tag != "time_s"}
        assert numbers
        assert {tag: found[tag] for tag in numbers} == pytest.approx(numbers)


@pytest.mark.more
def test_a_run_can_be_sent_afterwards_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expect_package("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    directory = tmp_path / "train_dir" / "mine"
    (directory / "checkpoint_p0").mkdir(parents=True)
    (directory / "metrics.jsonl").write_text(line(1.0, 10, a=1.0) + line(2.0, 20, a=2.0))
    command = [sys.executable, "-m", "sf.cli.track", "--experiment=mine", "--to=trackio", "--project=p"]
    told = []
    for _ in range(2):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        told.append(done.stdout.splitlines()[-1])
    run_id = json.loads((directory / SENT).read_text())["trackio"]["id"]
    assert told == [f"Sent {number} points to trackio, project p, run {run_id}" for number in (2, 0)]


@pytest.mark.more
@pytest.mark.parametrize("tracker", ["trackio", "wandb"])
def test_films_are_sent_with_the_points_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: str) -> None:
    expect_package(tracker)
    pytest.importorskip("imageio_ffmpeg")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    directory = tmp_path / "train_dir" / "mine"
    (directory / "checkpoint_p0").mkdir(parents=True)
    film = Film(directory / "films" / "000000000015.mp4")
    for shade in (0, 200):
        film.add(np.full((32, 32, 3), shade, np.uint8), 10.0)
    film.close()
    now = time.time()
    (directory / "metrics.jsonl").write_text(line(now + 10, 10, a=1.0) + line(now + 20, 20, a=2.0))
    command = [sys.executable, "-m", "sf.cli.track", "--experiment=mine", f"--to={tracker}", "--project=p"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert Points(directory, tracker).new_films() == [], "it is noted"
    if tracker == "trackio":
        (database,) = (tmp_path / "trackio").glob("p.db")
        with sqlite3.connect(database) as connection:
            rows = connection.execute("select step, metrics from metrics order by id").fetchall()
        found = [(step, json.loads(metrics)) for step, metrics in rows]
        films = [(step, metrics["film"]) for step, metrics in found if "film" in metrics]
        assert [(step, one["_type"]) for step, one in films] == [(15, "trackio.video")]
        kept = list((tmp_path / "trackio").rglob("*.mp4"))
    else:
        kept = list(directory.rglob("media/videos/*.mp4"))
    (copy,) = kept
    assert copy.read_bytes() == film.path.read_bytes()


# -------------------------------------------------------------------------------------------------------- what fails


@pytest.mark.more
def test_wandb_without_a_login_is_told_in_one_sentence_and_sent_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect_package("wandb")
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    finished = run(tmp_path, *SMALL, "--with_wandb=True")
    assert finished.code == 0
    assert "ResourceError: wandb takes no curves (" in finished.err
    assert "Run wandb login, or set WANDB_MODE=offline." in finished.err
    assert "Traceback" not in finished.err
    assert "Warning: the process that sends curves to wandb ended with code" in finished.out
    assert not (tmp_path / EXPERIMENT / SENT).exists()


def test_a_missing_package_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r'wandb is missing: pip install "sf-rl\[wandb\]"'):
        wanted_trackers(RunConfig(env="Toy-v0", with_wandb=True))
    assert wanted_trackers(RunConfig(env="Toy-v0")) == []
    assert main(["--experiment=a", f"--train_dir={tmp_path}", "--to=trackio"]) == 2
    assert 'trackio is missing: pip install "sf-rl[trackio]"' in capsys.readouterr().err


@pytest.fixture
def signals() -> Iterator[Signals]:
    made = Signals(False, None)
    yield made
    made.close()


def process_that(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, start_new_session=True)


def test_a_tracker_that_hangs_is_left_behind(
    tmp_path: Path, signals: Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trackers, "TOLD_AFTER_S", 0.1)
    monkeypatch.setattr(trackers, "END_S", 0.5)
    process, began_s = process_that("import time; time.sleep(1000)"), time.monotonic()
    trackers._end("wandb", process, tmp_path / "train dir" / "mine", signals)
    told = capsys.readouterr().out
    assert "The last curves are sent to wandb" in told
    assert f"wandb does not have all curves. sf-track --experiment=mine '--train_dir={tmp_path}/train dir'" in told
    assert process.returncode == -signal.SIGKILL
    assert time.monotonic() - began_s < 60


@pytest.mark.more
def test_ctrl_c_leaves_out_what_a_slow_tracker_does_not_have(tmp_path: Path) -> None:
    """The run itself has ended well."""
    (tmp_path / "trackio.py").write_text(
        "import time\ndef init(**_): pass\ndef log(*_, **__): pass\ndef finish(): time.sleep(1000)\n"
    )
    command = sys.executable, "-m", "sf.cli.train", *SMALL, "--with_trackio=True"
    with started(tmp_path, *command, python_path=f"{tmp_path}:{ROOT}", mark=str(tmp_path)) as running:
        running.wait_for_text("The last curves are sent to trackio")
        running.process.send_signal(signal.SIGINT)
        finished = running.finish(30.0)
    assert finished.code == 0
    assert "Warning: trackio does not have all curves. sf-track --experiment=default_experiment" in finished.out
    assert not (tmp_path / EXPERIMENT / SENT).exists()


def test_a_tracker_that_fails_is_told_at_the_end(
    tmp_path: Path, signals: Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    trackers._end("wandb", process_that("raise SystemExit(3)"), tmp_path / "mine", signals)
    assert (
        "Warning: the process that sends curves to wandb ended with code 3. sf-track --exp" in capsys.readouterr().out
    )
