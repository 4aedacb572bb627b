"""The picture and the importance of flags, for objectives that are known."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sf.errors import ExperimentError
from sf.tools.sweep.description import Description
from sf.tools.sweep.execution import ended_before
from sf.tools.sweep.importance import importance
from sf.tools.sweep.record import SweepRecord
from sf.tools.sweep.results import best_command, table
from sf.tools.sweep.trials import Interval, Trial, TrialRun
from tests.helpers.sweeps import carried_out, described

TABLES = """
[values]
gamma = [0.9, 0.99]
rnn_type = ["gru", "lstm"]
encoder_mlp_layers = [[64, 64], [32]]
[ranges]
learning_rate = { low = 1e-4, high = 1e-2, log = true }
"""


def known(flags: dict[str, Any], seed: int) -> float:
    """The learning rate explains most of it, gamma some, the rest nothing."""
    return 10 * math.log10(float(flags["learning_rate"])) + 5 * float(flags["gamma"] == 0.99) + 0.01 * seed


def swept(path: Path, trials: int = 25) -> tuple[Description, SweepRecord]:
    description = described(path, TABLES, f"trials = {trials}\nseeds = [1, 2]")
    carried_out(description, known)
    return description, SweepRecord(description, read_only=True)


@pytest.mark.more
@pytest.mark.parametrize("has_optuna", [True, False])
def test_importance_is_the_share_of_the_variance(
    has_optuna: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_optuna:
        pytest.importorskip("optuna")
        pytest.importorskip("sklearn")
    else:
        monkeypatch.setitem(sys.modules, "optuna", None)
    description, record = swept(tmp_path, 60)
    shares, measure = importance(description, record.ranked())
    assert measure == ("functional ANOVA" if has_optuna else "main effects")
    # Uniform over two decades, the rate has a variance of 33; gamma has one of 6.
    assert shares["learning_rate"] == pytest.approx(0.84, abs=0.12)
    assert shares["gamma"] == pytest.approx(0.16, abs=0.12)
    assert shares["rnn_type"] < 0.1 > shares["encoder_mlp_layers"]


@pytest.mark.more
def test_seeds_that_are_not_in_the_file_do_not_count_and_trials_without_some_come_last(tmp_path: Path) -> None:
    description, record = swept(tmp_path, 3)
    best, *others = (trial.number for trial, _ in record.ranked())
    record.outcomes[best, 3] = replace(record.outcomes[best, 1], value=1e6)
    assert record.score(record.trials[best]) == record.ranked()[0][1], "the file has seeds 1 and 2"
    assert record.ranked()[0][1].mean < 1e6
    del record.outcomes[best, 2]
    assert [trial.number for trial, _ in record.ranked()] == [*others, best]
    assert description.settings.seeds == (1, 2)


@pytest.mark.parametrize(
    ("objective", "hint", "remedy"),
    [
        ("reward", "no episode has ended", "longer runs"),
        ("fps", "it has no fps to compare", "longer runs"),
        ("env/nope", "it has no env/nope to compare, only env/fuel, env/keys", "an objective that is there"),
        ("eval/reward", "it has no eval/reward to compare", "flags that make curves of eval/, or another objective"),
    ],
)
def test_a_run_without_its_objective_has_failed_and_says_why(
    objective: str, hint: str, remedy: str, tmp_path: Path
) -> None:
    run = TrialRun(0, 1, (), str(tmp_path), ".", objective, None)
    assert ended_before(run) is None, "it has not begun"
    run.directory.mkdir()
    summary = {"exit_code": 0, "exit_reason": "train_for_seconds reached", "frames": 5, "wall_time_s": 2.5}
    (run.directory / "summary.json").write_text(json.dumps(summary | {"policies": [{"reward": None}]}))
    (run.directory / "metrics.jsonl").write_text('{"env/keys": 1, "lr": 2}\n{"env/fuel": 3}\n{"env/cut')
    outcome = ended_before(run)
    assert outcome is not None
    assert (outcome.state, outcome.value, outcome.frames, outcome.seconds) == ("failed", None, 5, 2.5)
    assert outcome.message == (
        f"The run ended in order, but {hint} (train_for_seconds reached). Use another name for the sweep, with "
        f"{remedy}."
    )


@pytest.mark.more
def test_few_trials_say_nothing_of_importance(tmp_path: Path) -> None:
    description, record = swept(tmp_path, 3)
    assert importance(description, record.ranked()) == ({}, "needs 4 trials")


@pytest.mark.more
def test_equal_scores_say_that_no_flag_matters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    description = described(tmp_path, TABLES, "trials = 5")
    carried_out(description, lambda flags, seed: 3.0)
    shares, _ = importance(description, SweepRecord(description, read_only=True).ranked())
    assert shares == dict.fromkeys(description.varied, 0.0)


def test_picture_has_a_line_for_each_trial_over_an_axis_for_each_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    from sf.tools.sweep.picture import draw_sweep

    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: drawn.append(figure))
    ranges = "[ranges]\nlearning_rate = { low = 1e-4, high = 1e-2, log = true }"
    description = described(tmp_path, f"[values]\ngamma = [0.9, 0.99]\n{ranges}\n")
    rows = ((0, 0.99, 1e-3, 4.0), (1, 0.9, 1e-2, 1.0), (2, 0.9, 1e-4, 0.0))
    ranked = [
        (Trial(number, {"gamma": gamma, "learning_rate": rate}), Interval(score, score, score, 1))
        for number, gamma, rate, score in rows
    ]
    draw_sweep(description, ranked, tmp_path / "sweep.png", pruned={1})
    (figure,) = drawn
    assert figure.get_suptitle() == "known: 3 trials by reward"
    bars, lines = figure.axes
    assert bars.get_title() == "Importance (needs 4 trials)"
    assert lines.get_title() == "All trials; darker is better, dotted ones were pruned"
    assert [label.get_text() for label in lines.get_xticklabels()] == ["gamma", "learning_rate", "reward"]
    curves: list[Any] = list(lines.lines)
    worst, middle, best, *upright = curves
    assert list(worst.get_ydata()) == [0, 0, 0]
    assert list(middle.get_ydata()) == [0, 1, 0.25]
    assert list(best.get_ydata()) == [1, pytest.approx(0.5), 1], "the rate on a logarithmic axis"
    assert [worst.get_color(), best.get_color()] == [colormaps["viridis_r"](shade) for shade in (0.0, 1.0)]
    assert [line.get_linestyle() for line in (worst, middle, best)] == ["-", ":", "-"]
    assert [line.get_xdata()[0] for line in upright] == [0, 1, 2]
    labels = [(round(text.get_position()[0]), text.get_position()[1], text.get_text()) for text in lines.texts]
    assert labels == [
        (0, 0, "0.9"), (0, 1, "0.99"), (1, 0, "0.0001"), (1, 1, "0.01"), (2, 0, "0"), (2, 1, "4")
    ]  # fmt: skip
    left, right = lines.get_xlim()
    assert left < 0
    assert right > 2, "the last axis with its labels is in the picture"
    bottom, top = lines.get_ylim()
    assert bottom < 0 < 1 < top


def test_a_sweep_that_cannot_be_written_says_where(tmp_path: Path) -> None:
    record = SweepRecord(described(tmp_path, "[values]\ngamma = [0.9]\n"))
    (record.path / ".results.json.tmp").mkdir()
    with pytest.raises(ExperimentError, match=f"^The directory {record.path} cannot be used: Is a directory"):
        record.write()
    record.close()


@pytest.mark.slow
def test_picture_has_bars_and_lines(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib import image

    from sf.tools.sweep.picture import draw_sweep

    for trials, name in ((8, "many.png"), (9, "more.png")):
        description, record = swept(tmp_path, trials)
        draw_sweep(description, record.ranked(), tmp_path / name)
    many, more = (image.imread(tmp_path / name) for name in ("many.png", "more.png"))
    assert many.std() > 0.1, "something is drawn"
    assert (many != more).any(), "a trial more is a line more"


@pytest.mark.more
def test_table_has_the_best_trials_and_the_command_those_flags(tmp_path: Path) -> None:
    description, record = swept(tmp_path)
    lines = table(description, record).splitlines()
    assert lines[0].split() == ["trial", "reward", "low", "high", "seeds", *description.varied]
    assert len(lines) == 22
    assert lines[-1] == "5 others are in results.csv."
    best, _ = record.ranked()[0]
    assert lines[1].split()[0] == str(best.number)
    assert f"--learning_rate={best.flags['learning_rate']}" in best_command(description, record)
    assert f"--encoder_mlp_layers {best.flags['encoder_mlp_layers'][0]}" in best_command(description, record)


def test_single_seed_has_no_interval(tmp_path: Path) -> None:
    description = described(tmp_path, "[values]\ngamma = [0.9]\n")
    carried_out(description, lambda flags, seed: 3.0)
    *_, row = table(description, SweepRecord(description, read_only=True)).splitlines()
    assert row.split() == ["0", "3.00", "-", "-", "1/1", "0.9"]
