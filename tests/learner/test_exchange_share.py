"""When the exchange between learners is worth a sentence (row C-X2)."""

from __future__ import annotations

from sf.learner.exchange_share import LEAST_STEPS, ExchangeShare


def test_cx2_an_exchange_of_more_than_a_fifth_of_a_step_is_told_once() -> None:
    share = ExchangeShare()
    assert share.add(LEAST_STEPS - 1, 1.0, 0.5) == "", "too few steps"
    told = share.add(1, 1.0, 0.1)
    assert "takes 30 % of an optimizer step (3 ms)" in told
    assert share.add(LEAST_STEPS, 1.0, 1.0) == ""


def test_cx2_an_exchange_of_a_fifth_is_not_told() -> None:
    assert ExchangeShare().add(LEAST_STEPS, 1.0, 0.2) == ""
