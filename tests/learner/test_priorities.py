"""Draws by the error of each transition."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sf.learner.experience import ExperienceRing
from sf.learner.priorities import Priorities
from tests.helpers.updates import act, make_policy, one_thread_and_seed

ALL = torch.ones(4, dtype=torch.bool)


def test_shares_and_weights_are_those_of_the_paper() -> None:
    priorities = Priorities(alpha=0.5, beta=0.4)
    priorities.take_in(ALL, torch.arange(4))
    priorities.update(
        torch.tensor([0, 1, 3]), torch.tensor([4.0, -9.0, 0.25])
    )  # the third one keeps its first priority
    places, weights = priorities.draw(70_000, torch.Generator().manual_seed(1))
    likely = [2.0, 3.0, 1.0, 0.5]
    shares = torch.bincount(places, minlength=4) / len(places)
    torch.testing.assert_close(shares, torch.tensor(likely) / sum(likely), rtol=0, atol=1e-3)
    by_hand = [(4 * one / sum(likely)) ** -0.4 for one in likely]
    expected = torch.tensor([one / max(by_hand) for one in by_hand])
    torch.testing.assert_close(weights, expected[places], rtol=1e-4, atol=1e-6)


def test_new_transitions_are_as_likely_as_the_likeliest_so_far() -> None:
    priorities = Priorities(alpha=1.0)
    priorities.take_in(ALL, torch.tensor([0, 1]))
    priorities.update(torch.tensor([0]), torch.tensor([7.0]))
    priorities.take_in(ALL, torch.tensor([2]))
    places, _ = priorities.draw(15_000, torch.Generator().manual_seed(1))
    assert (torch.bincount(places, minlength=4) / 1000).tolist() == pytest.approx([7, 1, 7, 0], abs=0.1)


@pytest.mark.parametrize("errors", [[1.0, float("nan")], [float("inf"), 1.0], [1.0], [[1.0, 1.0]]])
def test_errors_that_would_spoil_the_draw_are_refused_where_they_are_given(errors: list[Any]) -> None:
    priorities = Priorities()
    priorities.take_in(ALL, torch.arange(4))
    with pytest.raises(ValueError, match="Expected a finite priority of 0 or more for each of 2 places, found"):
        priorities.update(torch.tensor([0, 1]), torch.tensor(errors))
    assert len(priorities.draw(8, None)[0]) == 8


def test_each_part_of_the_probability_gives_one() -> None:
    priorities = Priorities(alpha=1.0)
    priorities.take_in(ALL, torch.arange(4))
    places, weights = priorities.draw(4, None)
    assert places.tolist() == [0, 1, 2, 3]
    assert weights.tolist() == [1.0] * 4


def test_a_ring_draws_nothing_that_may_not_be_drawn_and_forgets_what_was_overwritten() -> None:
    one_thread_and_seed()
    policy, priorities = make_policy(), Priorities(alpha=1.0)
    ring = ExperienceRing(48, 0.99, priorities=priorities)
    first = act(policy)
    ring.add(first)
    cut = first.truncated.t().flatten()  # trajectory after trajectory
    drawn = ring.draw(5000)
    assert not cut[drawn.places].any()
    priorities.update(drawn.places, torch.full((5000,), 1000.0))
    second = act(policy)
    ring.add(second)  # of the same size
    drawn = ring.draw(48 - int(second.truncated.sum()))
    assert drawn.weights.eq(1.0).all()  # all have the priority of new ones
    assert sorted(drawn.places.tolist()) == (~second.truncated.t().flatten()).nonzero()[:, 0].tolist()
    rewards = second.rewards.t().flatten()
    torch.testing.assert_close(drawn.rewards, rewards[drawn.places])
