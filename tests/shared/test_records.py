"""Records: consistent while they are written, and readable when their writer was killed."""

from __future__ import annotations

import time

import pytest

from sf.shared.arena import Arena
from sf.shared.records import EPISODES_KEPT, Episode, EpisodeRing, learner_record, record_fields, rollout_record


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
    writer.append(Episode(0, 1.5, 10, 2.5))
    assert reader.new_episodes() == [Episode(0, 1.5, 10, 2.5)]
    assert reader.new_episodes() == []
    for index in range(2 * EPISODES_KEPT):
        writer.append(Episode(0, float(index), 1, 0.0))
    assert reader.unread == 0
    newest = reader.new_episodes()
    assert newest[-1].reward == 2 * EPISODES_KEPT - 1
    assert len(newest) + reader.unread == 2 * EPISODES_KEPT


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
