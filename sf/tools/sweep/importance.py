"""How much each flag of a sweep matters: functional ANOVA (Hutter et al. 2014), or its first order without Optuna."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sf.tools.sweep.description import Description
from sf.tools.sweep.trials import Interval, Trial

BINS = 4
"""Groups into which values of a range are sorted, by quantiles."""
FEWEST = 4
"""Trials; with fewer, nothing can be said."""


def importance(description: Description, ranked: Sequence[tuple[Trial, Interval]]) -> tuple[dict[str, float], str]:
    """Share of the variance of the objective that each flag explains, and the name of the measure."""
    if len(ranked) < FEWEST:
        return {}, f"needs {FEWEST} trials"
    trials = [trial.flags for trial, _ in ranked]
    scores = [score.mean for _, score in ranked]
    try:
        return _fanova(description, trials, scores), "functional ANOVA"
    except (ImportError, ValueError, RuntimeError):  # of Optuna, or of scikit-learn, which it needs for this
        return {name: _main_effect(description, name, trials, scores) for name in description.varied}, "main effects"


def _main_effect(
    description: Description, name: str, trials: Sequence[Mapping[str, Any]], scores: Sequence[float]
) -> float:
    """Variance of the means of groups of trials, over the variance of all: the first order of functional ANOVA."""
    groups = defaultdict(list)
    for key, score in zip(_groups(description, name, [flags[name] for flags in trials]), scores, strict=True):
        groups[key].append(score)
    total = np.var(scores) * len(scores)
    between = sum(len(group) * (np.mean(group) - np.mean(scores)) ** 2 for group in groups.values())
    return float(between / total) if total > 0 else 0.0


def _groups(description: Description, name: str, values: Sequence[Any]) -> list[Any]:
    """The group of each trial: its value, or a quarter of a range."""
    if name in description.values:
        return [json.dumps(value) for value in values]
    edges = np.quantile(values, np.linspace(0, 1, BINS + 1)[1:-1])
    return [int(group) for group in np.searchsorted(edges, values)]


def _fanova(description: Description, trials: Sequence[Mapping[str, Any]], scores: Sequence[float]) -> dict[str, float]:
    import optuna

    from sf.tools.sweep.search import distributions, params

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study()
    known = distributions(description)
    for flags, score in zip(trials, scores, strict=True):
        trial = optuna.trial.create_trial(params=params(description, flags), distributions=known, value=score)
        study.add_trial(trial)
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {name: float(shares[name]) for name in description.varied}
