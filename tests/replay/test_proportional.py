"""Draws in proportion to shares that lie in blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sf.replay.proportional import PLACES_OF_A_BLOCK, ProportionalSampler


@pytest.mark.parametrize("capacity", [1, 63, 64, 65, 5_000])
def test_places_are_those_of_a_sum_over_all_shares(capacity: int) -> None:
    random = np.random.default_rng(capacity)
    shares = random.random(capacity) * (random.random(capacity) < 0.7)
    shares[capacity // 2] = 1.0
    sampler = ProportionalSampler(capacity)
    for places in np.array_split(random.permutation(capacity), 3):
        sampler.set(places, shares[places])
    points = random.random(2_000)
    wanted = np.searchsorted(shares.cumsum() / shares.sum(), points, side="right")
    assert sampler.at(points).tolist() == wanted.tolist()
    np.testing.assert_equal(sampler.shares(wanted), shares[wanted])
    assert sampler.smallest == shares[shares > 0].min()


@pytest.mark.parametrize("only", [0, 63, 64, 200])
def test_only_what_has_a_share_is_drawn_also_at_the_ends(only: int) -> None:
    """Also where other blocks, before and behind, have none."""
    sampler = ProportionalSampler(4 * PLACES_OF_A_BLOCK)
    sampler.set(np.array([only, 3]), np.array([0.3, 0.1]))
    sampler.set(np.array([3]), np.array([0.0]))
    points = np.array([0.0, 0.1, 0.5, np.nextafter(1.0, 0.0)])
    assert set(sampler.at(points).tolist()) == {only}


def test_rounding_meets_no_place_without_a_share() -> None:
    shares = np.zeros(2_000)
    shares[1::3] = np.random.default_rng(1).random(len(shares[1::3])) ** 30
    sampler = ProportionalSampler(len(shares))
    sampler.set(np.arange(len(shares)), shares)
    edges = shares.cumsum() / shares.sum()
    points = np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, 2)]).clip(0, np.nextafter(1.0, 0.0))
    assert (sampler.shares(sampler.at(points)) > 0).all()


@pytest.mark.parametrize("shares", [[1.0, np.nan], [np.inf, 1.0], [1.0, -0.5], [1.0], [[1.0, 1.0]]])
def test_what_would_spoil_every_later_draw_is_refused_and_changes_nothing(shares: list[Any]) -> None:
    sampler = ProportionalSampler(4)
    sampler.set(np.array([3]), np.array([2.0]))
    with pytest.raises(ValueError, match="Expected a finite priority of 0 or more for each of 2 places, found"):
        sampler.set(np.array([0, 1]), np.array(shares))
    assert sampler.at(np.array([0.0, 0.9])).tolist() == [3, 3]


def test_shares_of_which_none_is_above_0_are_told() -> None:
    sampler = ProportionalSampler(3)
    sampler.set(np.arange(3), np.zeros(3))
    with pytest.raises(ValueError, match="All priorities are 0"):
        sampler.at(np.array([0.5]))
