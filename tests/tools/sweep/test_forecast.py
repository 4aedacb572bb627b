"""How long the rest takes, with the time pushed in."""

from __future__ import annotations

from sf.tools.sweep.forecast import Forecast
from sf.tools.sweep.trials import TrialRun


def run(seed: int) -> TrialRun:
    return TrialRun(0, seed, (), "train_dir", ".", "reward", None)


def test_nothing_is_known_before_a_run_has_ended() -> None:
    forecast = Forecast(jobs=1)
    forecast.began(run(1), 0.0)
    assert forecast.left_s(4, 5.0) is None
    forecast.ended(run(1), 10.0, counts=False)
    assert forecast.left_s(4, 10.0) is None, "it has failed"


def test_runs_that_wait_take_the_mean_and_those_that_go_on_the_rest_of_it() -> None:
    forecast = Forecast(jobs=2, earlier_s=[20.0])
    forecast.began(run(1), 0.0)
    forecast.ended(run(1), 40.0, counts=True)
    assert forecast.left_s(4, 40.0) == 4 * 30 / 2
    forecast.began(run(2), 40.0)
    assert forecast.num_running == 1
    assert forecast.left_s(4, 50.0) == (3 * 30 + 20) / 2
    assert forecast.left_s(4, 500.0) == 3 * 30 / 2, "one that takes longer than the mean may end at any time"
    assert forecast.left_s(1, 50.0) == 20, "a single one has no use for two places"
    forecast.began(run(3), 50.0)
    assert forecast.left_s(2, 50.0) == 30, "not before the last one"
