"""The plots of a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sf.tools.report.groups import RunGroup, foremost, rescaled, variants
from sf.tools.report.lag_figures import lag_effects, lag_histogram, lag_over_time, lag_sources
from sf.tools.report.plots import FROM_0, Plot, band, bars, faint, intervals, line, plot
from sf.tools.report.populations import family_tree, strength_of_snapshots
from sf.tools.report.runs import REWARD
from sf.tools.report.statistics import band_of_runs, estimate, together

MOST_GROUPS = 8
"""In one plot; the table has all."""
MOST_ACTIVITIES = 4
"""With a colour of their own."""
ROLES = "rollout", "inference", "learner", "evaluator"
BY_TIME = "-by-time"
"""Ends the name of a figure that has the same as another one, over wall time."""
LEARNING = {
    "eval/reward": ("Evaluations", "Mean return of --eval_every_steps.", "return"),
    "len/len": ("Length of episodes", "Mean of the last episodes.", "steps"),
    "self_play/elo": ("Rating in self-play", "Elo, 0 at the beginning.", "rating"),
    "self_play/score": ("Score against the pool", "Mean over the snapshots; a draw counts a half.", "score"),
    "train/entropy": ("Entropy of the actions", "Falls as the policy becomes sure.", "nats"),
    "train/stddev": ("Deviation of the actions", "Of numbers, before bounds.", "deviation"),
    "train/kl_divergence": ("Divergence", "From the policy that acted, of the last step on a batch.", "nats"),
    "train/fraction_clipped": ("Clipped share", "Of the transitions in the last step on a batch.", "share"),
    "train/explained_variance": ("Explained variance", "Of the returns, by the values; 1 is all of it.", "share"),
    "train/value_loss": ("Value loss", "Of the last step on a batch.", "loss"),
    "train/lr": ("Learning rate", "Of Adam.", "rate"),
}
"""Tag to the title of its plot, a sentence, and the name of the y axis."""
UNITS = {"hours": 3600.0, "minutes": 60.0, "seconds": 1.0}


@dataclass(frozen=True)
class Figure:
    """A plot with its words."""

    name: str
    """Name of its file."""
    title: str
    about: str
    plot: Plot


def make_figures(groups: Sequence[RunGroup]) -> list[Figure]:
    """All plots that the runs have the numbers for, in the order of the page."""
    best, one = foremost(groups, MOST_GROUPS), len(groups) == 1
    spread = "Band: lowest to highest of these episodes." if one else ""
    if any(len(group.runs) > 1 for group in groups):
        spread = "Line: interquartile mean of the runs of a group. Band: its 95 % bootstrap interval."
    reward = f"Mean return of the last episodes. {spread}"
    lag = "Of minibatches: mean, and range from minimum to maximum." if one else "Mean over minibatches."
    sources = (
        "Acting: until the trajectory was complete. Queued: until its first optimizer step. Epochs: from there on."
    )
    effects = "Near 1, an effective sample size says that data of this age is as good as new."
    shares = "Means over the processes of a role, in runs that have ended."
    figures = [
        *reward_figures(best, reward),
        *score_figures(groups),
        Figure("lag", "Policy lag", lag, lag_over_time(best)),
        Figure("lag-histogram", "How old data is", "All transitions of all optimizer steps.", lag_histogram(best)),
        Figure("lag-sources", "Where lag comes from", sources, lag_sources(best)),
        Figure("lag-effects", "What lag does", effects, lag_effects(best)),
        *learning_figures(best),
        *population_figures(groups),
        Figure("throughput", "Throughput", "Frames per second.", curves(best, "perf/_fps", "frames per second")),
        Figure("time-shares", "Where the time went", shares, time_shares(best)),
    ]
    return [figure for figure in figures if figure.plot["data"]]


def reward_figures(groups: Sequence[RunGroup], about: str) -> list[Figure]:
    """For each environment over frames, and over wall time."""
    figures = []
    for number, env in enumerate(envs := list(dict.fromkeys(group.env for group in groups)), 1):
        own = [group for group in groups if group.env == env]
        name, title = ("reward", "Reward") if len(envs) == 1 else (f"reward-{number}", f"Reward in {env}")
        figures += [
            Figure(name, title, about, curves(own, REWARD, "return")),
            Figure(name + BY_TIME, title, about, curves(own, REWARD, "return", by="seconds")),
        ]
    return figures


def curves(groups: Sequence[RunGroup], tag: str, y: str, by: str = "frames") -> Plot:
    """A tag over frames or wall time: one line for each group, with a band."""
    longest = max(run.wall_time_s for group in groups for run in group.runs)
    unit = next((unit for unit, seconds in UNITS.items() if longest > 2 * seconds), "seconds")
    scale = 1.0 if by == "frames" else UNITS[unit]
    traces: list[Plot] = []
    for group in groups:
        index = group.index
        if not (own := group.curves(tag, by)):
            continue
        x, lines = together(own)
        x, middle = x / scale, lines[0]
        if len(own) > 1:
            middle, low, high = band_of_runs(lines)
            traces.append(band(x, low, high, index))
        ends = [*group.curves(f"{tag}_min", by, np.min), *group.curves(f"{tag}_max", by, np.max)]
        if len(groups) == len(own) == 1 and [end.shape for end in ends] == 2 * [own[0].shape]:
            traces.append(band(x, ends[0][1], ends[1][1], index))
        if len(groups) == 1 < len(own):
            traces += [faint(line(x, each, group.label, index, width=1)) for each in lines]
        traces.append(line(x, middle, group.label, index))
    title = "frames" if by == "frames" else f"wall time, {unit}"
    yaxis = FROM_0 if tag != REWARD else {}
    return plot(traces, title, y, showlegend=len(groups) > 1, xaxis=FROM_0, yaxis=yaxis)


def learning_figures(groups: Sequence[RunGroup]) -> list[Figure]:
    """What says how learning goes, and the numbers of the environment's own."""
    return [
        *_figures_of(groups, "env/", "Mean of the last episodes."),
        *_figures_of(groups, "user/", "Returned by a callback."),
        *_figures_of(groups, "agents/", "Mean of the last episodes of the agent."),
        *_figures_of(groups, "pbt/", "The value with which each policy learns."),
        *(
            Figure(tag.replace("/", "-"), title, about, curves(groups, tag, y))
            for tag, (title, about, y) in LEARNING.items()
        ),
    ]


def population_figures(groups: Sequence[RunGroup]) -> list[Figure]:
    """Runs whose policies meet."""
    runs = [run for group in groups for run in group.runs]
    tree = "A lane for each policy, in the colour of its founder. Diamonds: takeovers. Circles: new values of flags."
    against = "Of policy 0, over all games; a draw counts a half."
    return [
        Figure("family-tree", "Family tree", tree, family_tree(runs)),
        Figure("past-selves", "Score against past selves", against, strength_of_snapshots(runs)),
    ]


def _figures_of(groups: Sequence[RunGroup], prefix: str, about: str) -> Iterator[Figure]:
    """A figure for each tag that begins so, without those of the least and the largest values."""
    own = {name for group in groups for run in group.runs for name in run.tags(prefix)}
    names = sorted(name for name in own if not (name.endswith(("_min", "_max")) and name[:-4] in own))
    for number, name in enumerate(names, 1):
        yield Figure(f"{prefix[:-1]}-{number}", prefix + name, about, curves(groups, prefix + name, name))


def score_figures(groups: Sequence[RunGroup]) -> list[Figure]:
    """Groups of each environment against each other, then configurations over all environments."""
    about = "Large dot: interquartile mean. Line: its 95 % stratified bootstrap interval. Small dots: runs."
    figures: list[Figure] = []
    for env in dict.fromkeys(group.env for group in groups):
        own = [group for group in groups if group.env == env]
        rows = {group.label: (group.score, group.scores, group.index) for group in own if group.score}
        if len(rows) > 1 and any(len(group.scores) > 1 for group in own):
            name = f"scores-{len(figures) + 1}"
            figures.append(Figure(name, f"Scores in {env}", about, intervals(rows, "return")))
    over_all = {label: rescaled(by_env, groups) for label, by_env in variants(groups).items()}
    there = [(label, strata) for label, strata in over_all.items() if strata]
    rows = {label: (estimate(strata), np.concatenate(strata), i) for i, (label, strata) in enumerate(there)}
    if len(rows) > 1:
        about += " In each environment the lowest run has 0 and the highest one 1."
        title = "Scores over all environments"
        figures.append(Figure("scores-over-all", title, about, intervals(rows, "rescaled return")))
    return figures


def time_shares(groups: Sequence[RunGroup]) -> Plot:
    """Shares of the activities in the time of each role, over the runs that have ended."""
    rows: dict[str, dict[str, float]] = {}
    for group in groups:
        for role in ROLES:
            spent: dict[str, float] = {}
            for run in group.runs:
                for process, activities in (run.summary or {}).get("seconds", {}).items():
                    if process.split("-")[0] == role:
                        spent |= {name: spent.get(name, 0.0) + seconds for name, seconds in activities.items()}
            if total := sum(spent.values()):
                label = role if len(groups) == 1 else f"{group.label}\n{role}"
                rows[label] = {name: 100 * seconds / total for name, seconds in spent.items()}
    largest = {name: max(row.get(name, 0.0) for row in rows.values()) for row in rows.values() for name in row}
    names = sorted(largest.keys() - {"wait"}, key=lambda name: -largest[name])
    values = {name: [row.get(name, 0.0) for row in rows.values()] for name in names[:MOST_ACTIVITIES]}
    if others := names[MOST_ACTIVITIES:]:
        values["other"] = [sum(row.get(name, 0.0) for name in others) for row in rows.values()]
    values["wait"] = [row.get("wait", 0.0) for row in rows.values()]
    return bars(list(rows), values, "% of the time", grey="wait")
