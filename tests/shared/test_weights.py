"""Published weights: the label never disagrees with the weights (row A14)."""

from __future__ import annotations

import multiprocessing
from functools import partial
from multiprocessing.connection import Connection

import numpy as np

from sf.shared.arena import Array
from sf.shared.doorbell import Doorbell
from sf.shared.weights import NOTHING_PUBLISHED, PublishedWeights

SIZE = 5_000


def test_nothing_published_yet() -> None:
    weights = PublishedWeights()
    assert weights.version == NOTHING_PUBLISHED
    weights.allocate(3)
    assert weights.version == NOTHING_PUBLISHED


def test_reader_gets_the_newest_version() -> None:
    weights = PublishedWeights()
    weights.allocate(3)
    flat = np.zeros(3, np.float32)
    for version in range(5):
        weights.publish(version, lambda buffer, number=version: buffer.fill(number))  # type: ignore[misc]
        assert weights.version == version
        assert weights.read(lambda buffer: np.copyto(flat, buffer)) == version
        assert (flat == version).all()


def test_reader_takes_newer_weights_if_these_change_under_its_hands() -> None:
    weights = PublishedWeights()
    weights.allocate(2)
    weights.publish(0, lambda buffer: buffer.fill(0))
    taken: list[float] = []

    def take(buffer: Array) -> None:
        if not taken:
            for version in (1, 2):
                weights.publish(version, lambda buffer, number=version: buffer.fill(number))  # type: ignore[misc]
        taken.append(float(buffer[0]))

    assert weights.read(take) == 2
    assert taken == [2.0, 2.0]


def test_versions_may_start_anywhere_after_a_resume() -> None:
    weights = PublishedWeights()
    weights.allocate(2)
    weights.publish(926, lambda buffer: buffer.fill(1))
    assert weights.read(lambda buffer: None) == 926


def _publish(weights: PublishedWeights, ready: Doorbell, enough: Doorbell, answer: Connection) -> None:
    import time

    weights.allocate(SIZE)
    end, version = time.monotonic() + 30, 0
    while time.monotonic() < end and not (version % 100 == 0 and enough.wait(0)):
        number = version % 2**24  # float32 counts exactly up to there
        weights.publish(version, lambda buffer, number=number: buffer.fill(number))  # type: ignore[misc]
        if version == 0:
            ready.ring()
        version += 1
    answer.send(version)


def test_a14_weights_and_version_are_read_together_under_stress() -> None:
    """The writer publishes as fast as it can, the reader copies as fast as it can: no copy is mixed or mislabelled."""
    context = multiprocessing.get_context("spawn")
    weights, ready, enough = PublishedWeights(), Doorbell(), Doorbell()
    parent, child = context.Pipe(duplex=False)
    writer = context.Process(target=_publish, args=(weights, ready, enough, child), daemon=True)
    writer.start()
    assert ready.wait(30)
    flat = np.zeros(SIZE, np.float32)
    take = partial(np.copyto, flat)
    reads, versions = 0, set()
    while writer.is_alive():
        version = weights.read(take)
        assert (flat == version).all(), f"label {version}, weights {np.unique(flat)}"
        versions.add(version)
        reads += 1
        if reads > 100_000 and len(versions) > 1_000:
            enough.ring()
    published = parent.recv()
    writer.join()
    assert weights.read(take) == published - 1
    assert reads > 1_000
    assert len(versions) > 100
    assert published > 1_000
