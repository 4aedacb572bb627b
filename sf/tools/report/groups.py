"""Runs sorted into groups: those of one group differ in nothing but their seed."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from sf.shared.arena import Array
from sf.tools.report.runs import RunFiles
from sf.tools.report.statistics import Estimate, estimate, thinned

LONGEST_LABEL = 30
NOT_SET = "(none)"
"""A field that the configuration of another version of sf has."""


@dataclass(frozen=True)
class RunGroup:
    """Runs with the same configuration, and one policy of each."""

    label: str
    runs: Sequence[RunFiles]
    index: int
    """That of its colour."""
    flags: str = ""
    """Those that differ between the groups, with its values."""

    @property
    def env(self) -> str:
        return str(self.runs[0].flags.get("env", "?"))

    @property
    def scores(self) -> Array:
        """Scores of the runs that have one [n]."""
        return np.array([run.score for run in self.runs if run.score is not None], float)

    @cached_property
    def score(self) -> Estimate | None:
        """None if no episode has ended."""
        return estimate([self.scores]) if len(self.scores) else None

    def curves(self, tag: str, by: str = "frames", reduce: Callable[[Array], float] = np.mean) -> list[Array]:
        """Curves of the runs that have the tag, each [2, n], thinned to what a screen can show."""
        found = [run.curve(tag) for run in self.runs]
        return [thinned(getattr(curve, by), curve.values, reduce) for curve in found if len(curve.values)]

    def mean(self, tag: str) -> float | None:
        """Over all points of all runs."""
        values = np.concatenate([run.curve(tag).values for run in self.runs])
        return float(values.mean()) if len(values) else None


def make_groups(runs: Sequence[RunFiles]) -> list[RunGroup]:
    """The groups, the best score first; environments by name."""
    members: dict[str, list[RunFiles]] = {}
    for run in runs:
        # A run without a configuration is like no other one.
        key = json.dumps([run.policy_id, run.compared or str(run.path)], sort_keys=True)
        members.setdefault(key, []).append(run)
    differing = differences([group[0].compared for group in members.values()])
    labels, flags = list[str](), list[str]()
    for index, group in enumerate(members.values()):
        flags.append(", ".join(f"{name}={shown(values[index])}" for name, values in differing.items()))
        label = _label(group, flags[-1])
        if group[0].flags.get("num_policies", 1) > 1:
            label += f", policy {group[0].policy_id}"
        labels.append(label if label not in labels else f"{label} ({index + 1})")
    groups = [RunGroup(label, group, 0, own) for label, group, own in zip(labels, members.values(), flags, strict=True)]
    groups.sort(key=lambda group: (group.env, -(group.score.iqm if group.score else -np.inf)))
    return [replace(group, index=index) for index, group in enumerate(groups)]


def foremost(groups: Sequence[RunGroup], most: int) -> list[RunGroup]:
    """So many groups at most, the best ones of every environment."""
    places = {group.label: sum(other.env == group.env for other in groups[: group.index]) for group in groups}
    return sorted(sorted(groups, key=lambda group: places[group.label])[:most], key=lambda group: group.index)


def differences(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Fields that are not the same everywhere, with the value of each configuration."""
    names = dict.fromkeys(name for config in configs for name in config)
    values = {name: [config.get(name, NOT_SET) for config in configs] for name in names}
    return {name: each for name, each in values.items() if any(value != each[0] for value in each)}


def variants(groups: Sequence[RunGroup]) -> dict[str, dict[str, RunGroup]]:
    """Label to environment to group, for configurations that were run in several environments."""
    found: dict[str, dict[str, RunGroup]] = {}
    for group in groups:
        run = group.runs[0]
        key = json.dumps([run.policy_id, {**run.compared, "env": ""}], sort_keys=True)
        found.setdefault(key, {})[group.env] = group
    several = [by_env for by_env in found.values() if len(by_env) > 1]
    differing = differences([next(iter(by_env.values())).runs[0].compared | {"env": ""} for by_env in several])
    labels = [", ".join(f"{name}={shown(each[i])}" for name, each in differing.items()) for i in range(len(several))]
    return {label or "all runs": by_env for label, by_env in zip(labels, several, strict=True)}


def rescaled(by_env: Mapping[str, RunGroup], groups: Sequence[RunGroup]) -> list[Array]:
    """Scores of each environment [n], so that the lowest run of any group there has 0 and the highest one 1."""
    strata = []
    for env, group in by_env.items():
        everywhere = np.concatenate([other.scores for other in groups if other.env == env])
        if len(group.scores) and np.ptp(everywhere) > 0:
            strata.append((group.scores - everywhere.min()) / np.ptp(everywhere))
    return strata


def shown(value: Any) -> str:
    """A value as text, short."""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _label(group: Sequence[RunFiles], flags: str) -> str:
    """The flags that set a group apart, or the name that its runs have in common where that is shorter."""
    if flags and len(flags) <= LONGEST_LABEL:
        return flags
    first, last = min(run.name for run in group), max(run.name for run in group)
    name = "".join(a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False)))
    if len(group) > 1:
        name = re.sub(r"[-_. ]*(seed)?[-_. ]*$", "", name)
    return name or group[0].name
