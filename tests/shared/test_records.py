"""Records: consistent while they are written, and readable when their writer was killed."""

from __future__ import annotations

import time

import numpy as np
import pytest

from sf.shared.arena import Arena
from sf.shared.episodes import Episode, EpisodeRing
from sf.shared.records import EPISODES_KEPT, METRICS_KEPT, MOST_METRICS, learner_record, record_fields, rollout_record


def test_a_writer_killed_inside_a_write_leaves_the_last_good_values() -> None:
    arena = Arena(record_fields(1, 1, 1))
    writer, reader = learner_record(arena, 0), learner_record(arena, 0)
    writer["version"] = 7
    writer.publish()
    assert reader.read()["version"] == 7
    arena["records/learner/sequence"][0] += 1  # as a kill inside publish leaves it
    arena["records/learner"][0, 0] = 99
    assert reader.read()["version"] == 7


def test_episodes_are_read_once_and_only_the_newest_if_there_are_too_many() -> None:
    arena = Arena(record_fields(1, 1, 1))
    writer, reader = EpisodeRing(arena, 0), EpisodeRing(arena, 0)
    writer.append(Episode(0, 1.5, 10, 2.5, row=7))
    assert reader.new_episodes() == [Episode(0, 1.5, 10, 2.5, row=7)]
    assert reader.new_episodes() == []
    for index in range(2 * EPISODES_KEPT):
        writer.append(Episode(0, float(index), 1, 0.0))
    assert reader.unread == 0
    newest = reader.new_episodes()
    assert newest[-1].reward == 2 * EPISODES_KEPT - 1
    assert len(newest) + reader.unread == 2 * EPISODES_KEPT


@pytest.mark.parametrize("names", [[], ["fuel", "keys"]])
@pytest.mark.parametrize("number", [0, 3, METRICS_KEPT + 5, EPISODES_KEPT + 7])
def test_many_episodes_at_once_are_those_one_by_one(number: int, names: list[str]) -> None:
    arena, random = Arena(record_fields(2, 1, 1)), np.random.default_rng(0)
    one, many, readers = EpisodeRing(arena, 0), EpisodeRing(arena, 1), [EpisodeRing(arena, i) for i in (0, 1)]
    for _ in range(2):
        columns = random.integers(0, 9, (number, 3 + len(names))).astype(float)
        columns[:, 3:][random.random(columns[:, 3:].shape) < 0.3] = np.nan
        many.append_many(0, columns, names)
        for row, total, length, *numbers in columns.tolist():
            metrics = {name: value for name, value in zip(names, numbers, strict=True) if value == value}
            one.append(Episode(0, total, int(length), total, metrics, int(row)))
        assert [reader.new_episodes() for reader in readers[:1]] == [reader.new_episodes() for reader in readers[1:]]
        assert readers[0].unread == readers[1].unread


def test_metrics_of_episodes_have_columns_in_the_order_in_which_their_names_come_up() -> None:
    arena = Arena(record_fields(2, 1, 1))
    writer, reader, other = (EpisodeRing(arena, worker) for worker in (0, 0, 1))
    writer.append(Episode(0, 1.0, 1, 1.0))
    writer.append(Episode(0, 2.0, 1, 2.0, {"fuel": 0.25}))
    writer.append(Episode(0, 3.0, 1, 3.0, {"keys": 3.0, "fuel": 0.5}))
    writer.append(Episode(0, 4.0, 1, 4.0))
    writer.append(Episode(0, 5.0, 1, 5.0, {"Schlüssel": -1.0}))
    other.append(Episode(0, 6.0, 1, 6.0, {"keys": 7.0}))
    found = [dict(episode.metrics) for episode in reader.new_episodes()]
    assert found == [{}, {"fuel": 0.25}, {"keys": 3.0, "fuel": 0.5}, {}, {"Schlüssel": -1.0}]
    assert [dict(episode.metrics) for episode in EpisodeRing(arena, 1).new_episodes()] == [{"keys": 7.0}]
    successor = EpisodeRing(arena, 0)
    successor.append(Episode(0, 7.0, 1, 7.0, {"more": 1.0, "keys": 2.0}))
    assert [dict(episode.metrics) for episode in reader.new_episodes()] == [{"more": 1.0, "keys": 2.0}]


def test_workers_of_a_serial_run_share_the_columns_of_a_ring() -> None:
    arena = Arena(record_fields(1, 1, 1))
    first, second, reader = (EpisodeRing(arena, 0) for _ in range(3))
    for value in (1.0, 2.0):
        first.append(Episode(0, 0.0, 1, 0.0, {"small": value}))
        second.append(Episode(0, 0.0, 1, 0.0, {"large": 1000 * value}))
    found = [dict(episode.metrics) for episode in reader.new_episodes()]
    assert found == [{"small": 1.0}, {"large": 1000.0}, {"small": 2.0}, {"large": 2000.0}]


def test_a_metric_of_one_episode_in_a_hundred_is_not_lost() -> None:
    arena = Arena(record_fields(1, 1, 1))
    writer, reader = EpisodeRing(arena, 0), EpisodeRing(arena, 0)
    for index in range(EPISODES_KEPT):
        writer.append(Episode(0, 0.0, 1, 0.0, {"rare": float(index)} if index % 100 == 50 else {}))
    found = {episode.metrics["rare"] for episode in reader.new_episodes() if episode.metrics}
    newest = range(EPISODES_KEPT - METRICS_KEPT // 2, EPISODES_KEPT)
    assert found == {float(index) for index in newest if index % 100 == 50} != set()


def test_more_metrics_than_there_are_columns_are_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    arena = Arena(record_fields(1, 1, 1))
    writer, reader = EpisodeRing(arena, 0), EpisodeRing(arena, 0)
    metrics = {f"metric {index}": float(index) for index in range(MOST_METRICS + 2)}
    for _ in range(2):
        writer.append(Episode(0, 0.0, 1, 0.0, metrics))
    for episode in reader.new_episodes():
        assert dict(episode.metrics) == {f"metric {index}": float(index) for index in range(MOST_METRICS)}
    told = capsys.readouterr().out
    assert told.count("more than 32 metrics; 'metric 32' and others that come later are left out") == 1


def test_time_counts_from_the_first_step_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments that are made before it are no time of any process, nor are those of a worker that comes later."""
    clock = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    arena = Arena(record_fields(2, 1, 1))
    worker, learner = rollout_record(arena, 0), learner_record(arena, 0)
    clock[0] = 140.0
    worker.begin()
    for record in (worker, learner):
        record.lap("wait")
    clock[0] = 150.0
    worker.lap("write")
    clock[0] = 151.0
    worker.begin_steps()
    clock[0] = 153.0
    worker.begin_steps()
    worker.lap("step")
    learner.lap("wait")
    late = rollout_record(arena, 1)
    clock[0] = 200.0
    late.begin()
    clock[0] = 201.0
    late.lap("write")
    assert (worker["write"], worker["wait"], worker["step"]) == (0.0, 0.0, 2.0)
    assert learner["wait"] == 2.0
    assert late["write"] == 1.0
