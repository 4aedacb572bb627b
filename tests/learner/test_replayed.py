"""`--replay=staleness` in training: what enters the buffer, what is drawn, what is told (rows E19 and E20)."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch

from sf.config import LearnerConfig
from sf.learner.replayed import ReplayedMinibatches, weight_function
from tests.helpers.replayed import REPLAY, Seen, fingerprints, make_update
from tests.helpers.updates import act, learner_config, make_policy, one_thread_and_seed


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    one_thread_and_seed()


@pytest.mark.parametrize("model", [{}, {"use_rnn": True, "rnn_size": 8}])
def test_e20_staleness_is_that_of_the_drawn_rows_and_is_logged(model: dict[str, Any]) -> None:
    """Each row is known by its observation, so the versions that acted on what was drawn can be looked up."""
    update = make_update(make_policy(**model))
    seen, acted = Seen(update), dict[tuple[float, ...], int]()
    update.want_summary = True
    for dataset in range(4):
        batch = act(update.policy, version=update.version - min(dataset, 2))
        acted |= dict(
            zip(fingerprints(batch.observations["obs"][:-1]), batch.policy_version.flatten().tolist(), strict=True)
        )
        reports = seen.train(batch)
        assert len(reports) == 4
    drawn_again = False
    for minibatch, version in zip(seen.minibatches, seen.versions, strict=True):
        rows = minibatch.transitions
        lags = [version - acted[row] for row in fingerprints(rows.observations["obs"])]
        assert minibatch.lags == pytest.approx((min(lags), sum(lags) / len(lags), max(lags)))
        drawn_again |= max(lags) >= 6
    assert drawn_again, "some came from earlier datasets"
    summary = update.summary()
    last = seen.minibatches[-1].lags
    assert summary["staleness/batch_min"] == last.min == reports[-1].lag_min
    assert summary["staleness/batch_mean"] == pytest.approx(last.mean)
    assert summary["staleness/batch_max"] == last.max == reports[-1].lag_max
    assert summary["max_ratio"] >= summary["mean_ratio"] > 0
    assert 0 < summary["ESS"] <= 1
    assert summary["kl_approx"] == pytest.approx(summary["old_approx_kl"])


def test_e20_effective_sample_size_and_ratios() -> None:
    """The last minibatch counts, under the weights before the last step."""
    update = make_update()
    update.want_summary = True
    seen, evaluate = Seen(update), update._network.evaluate
    evaluations: list[Any] = []

    def kept(*arguments: Any) -> Any:
        evaluations.append(evaluate(*arguments))
        return evaluations[-1]

    update._network.evaluate = kept  # type: ignore[method-assign,assignment]
    seen.train(act(update.policy))
    rows = seen.minibatches[-1].transitions
    ratios = (evaluations[-1].log_probs - rows.behavior_log_probs).exp().double()
    summary = update.summary()
    assert summary["ESS"] == pytest.approx((ratios.sum() ** 2 / (len(ratios) * (ratios**2).sum())).item(), rel=1e-5)
    assert summary["max_ratio"] == pytest.approx(ratios.max().item(), rel=1e-5)
    assert summary["mean_ratio"] == pytest.approx(ratios.mean().item(), rel=1e-5)
    assert summary["kl_approx"] == pytest.approx(-ratios.log().mean().item(), abs=1e-5)


def test_only_own_and_young_transitions_enter() -> None:
    update = make_update(max_policy_lag=5)
    update.version = 7
    batch = act(update.policy, num_steps=4, num_trajectories=6)
    valid, versions = torch.ones(4, 6, dtype=torch.bool), torch.full((4, 6), 7)
    valid[:, 0] = False
    versions[:, 1], versions[:, 2] = 2, 3  # 5 and 4 steps old
    batch = batch.with_columns(valid=valid, policy_version=versions)
    list(update.steps(batch))
    source = update._minibatches
    assert isinstance(source, ReplayedMinibatches)
    assert source._buffer is not None
    assert len(source._buffer) == 4 * 4
    assert set(source._buffer.storage.column("policy_version").tolist()) == {3, 7}


def test_both_limits_at_five() -> None:
    """Lag 4 passes both, lag 5 is refused by `max_policy_lag` alone, lag 6 by both."""
    for limit, lags_taken in (("max_policy_lag", {4}), ("max_staleness", {4, 5})):
        replay = replace(REPLAY, max_staleness=5 if limit == "max_staleness" else -1)
        update = make_update(replay=replay, max_policy_lag=5 if limit == "max_policy_lag" else 1000)
        update.version, seen = 6, Seen(update)
        versions = torch.tensor([[2, 1, 0] * 2] * 8)
        next(iter(update.steps(act(update.policy).with_columns(policy_version=versions))))
        (first,) = seen.minibatches
        assert {first.lags.min, first.lags.max} == {min(lags_taken), max(lags_taken)}


@pytest.mark.parametrize(("staleness", "bound", "limit"), [(-1, None, -1), (-1, 6, 6), (9, 6, 6), (5, 6, 5), (0, 9, 0)])
def test_a_bound_of_the_lag_holds_for_what_is_drawn(staleness: int, bound: int | None, limit: int) -> None:
    config = learner_config(bound_policy_lag=bound)
    made = ReplayedMinibatches(make_policy(), config, replace(REPLAY, max_staleness=staleness), lambda: 0)
    assert made._sampler.max_staleness == limit


def test_values_follow_the_scale_of_the_value_head() -> None:
    """What is drawn has the values and targets that the scale of now gives, not those of the time when it came in."""
    update = make_update()
    normalizer = update.policy.return_normalizer
    assert normalizer is not None
    with torch.no_grad():
        normalizer.mean.fill_(-2.0)
        normalizer.std.fill_(4.0)
    batch, seen = act(update.policy), Seen(update)
    values = dict(zip(fingerprints(batch.observations["obs"][:-1]), batch.values.flatten().tolist(), strict=True))
    seen.train(batch)
    with torch.no_grad():
        normalizer.mean.fill_(3.0)
        normalizer.std.fill_(0.5)
    source = update._minibatches
    assert isinstance(source, ReplayedMinibatches)
    drawn = next(source.epoch()).transitions
    own = [values[row] for row in fingerprints(drawn.observations["obs"])]
    torch.testing.assert_close(drawn.old_values, update.policy.normalize(torch.tensor(own)), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(drawn.value_targets, update.policy.normalize(drawn.returns))


def test_steps_that_would_be_too_old_are_passed_over_and_statistics_take_the_dataset_in(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They change with the last step that is possible, before that version is published."""
    update = make_update(replay=replace(REPLAY, max_staleness=3))
    update.version = 7
    counts = []
    with caplog.at_level(logging.ERROR):
        for report in update.steps(act(update.policy, version=5)):
            counts.append((report.version, report.lag_max, update.statistics.moments["returns"].count.item()))
    assert counts == [(8, 2.0, 0.0), (9, 3.0, 48.0)]
    assert "Passed over 2 of the 4 optimizer steps on a dataset: its newest transition would have been" in caplog.text


def test_another_error_of_a_draw_ends_the_run() -> None:
    update = make_update()

    def broken(staleness: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no memory")

    source = update._minibatches
    assert isinstance(source, ReplayedMinibatches)
    source._sampler._weight_fn = broken
    with pytest.raises(RuntimeError, match="no memory"):
        list(update.steps(act(update.policy)))


def test_everything_too_old_passes_over_a_dataset(caplog: pytest.LogCaptureFixture) -> None:
    update = make_update(replay=replace(REPLAY, max_staleness=3))
    update.version = 50
    with caplog.at_level(logging.ERROR):
        assert list(update.steps(act(update.policy, version=10))) == []
    assert "All 48 entries are older than max_staleness=3 at consumer version 50" in caplog.text
    assert update.summary() == {}


@pytest.mark.parametrize(("name", "weights"), [("inverse", [1, 0.5, 0.2]), ("uniform", [1, 1, 1])])
def test_weights_by_name(name: str, weights: list[float]) -> None:
    weigh = weight_function(replace(REPLAY, staleness_weight=name), LearnerConfig(num_batches_per_epoch=4))  # type: ignore[arg-type]
    assert weigh(torch.tensor([0, 1, 4])).tolist() == pytest.approx(weights)


def test_exponential_weights_fall_by_e_for_each_dataset() -> None:
    weigh = weight_function(
        replace(REPLAY, staleness_weight="exponential"), LearnerConfig(num_batches_per_epoch=4, num_epochs=2)
    )
    found = weigh(torch.tensor([0, 8, 16])).double()
    assert (found[:-1] / found[1:]).tolist() == pytest.approx([2.718281828] * 2, rel=1e-5)


def test_exponential_weights_of_old_rows_alone_are_not_zero() -> None:
    weigh = weight_function(replace(REPLAY, staleness_weight="exponential"), LearnerConfig(num_batches_per_epoch=4))
    found = weigh(torch.tensor([1_000_008, 1_000_000]))
    assert (found[1] / found[0]).item() == pytest.approx(2.718281828, rel=1e-5)
