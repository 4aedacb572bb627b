"""Records: consistent while they are written, and readable when their writer was killed."""

from __future__ import annotations

from sf.shared.arena import Arena
from sf.shared.records import EPISODES_KEPT, Episode, EpisodeRing, learner_record, record_fields


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
