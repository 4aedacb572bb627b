"""The top of the page: what came out."""

from __future__ import annotations

import html
import statistics
from collections.abc import Iterator, Sequence

from sf.tools.report.figures import MOST_GROUPS
from sf.tools.report.groups import RunGroup
from sf.tools.report.markup import duration, mean_of, rounded, section, table
from sf.tools.report.runs import REWARD

COLUMNS = "Group", "Runs", "Score", "95 % interval", "Frames", "Wall time", "Frames/s", "End"

LEAST_TO_TELL = 3
"""Runs of a group; the interval of two lies between them and has their mean half of the time."""


def title_of(groups: Sequence[RunGroup]) -> str:
    envs = ", ".join(dict.fromkeys(group.env for group in groups))
    return f"{envs}: {groups[0].label}" if len(groups) == 1 else f"{envs}: {len(groups)} configurations"


def verdict(groups: Sequence[RunGroup]) -> str:
    """HTML: tiles for one group; for several ones a sentence for each environment, and a table."""
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in _broken_off(groups))
    if len(groups) == 1:
        return _tiles(groups[0]) + notes
    sentences = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in _sentences(groups)) + notes
    one_env = len({group.env for group in groups}) == 1
    rows = [[group.label if one_env else f"{group.label} ({group.env})", *_row(group)] for group in groups]
    head, flags = list(COLUMNS), tuple[int, ...]()
    if any(group.flags and group.flags not in group.label for group in groups):  # the labels do not say them
        flags = (len(head),)
        head.append("Flags that differ")
        rows = [[*row, group.flags] for row, group in zip(rows, groups, strict=True)]
    about = "Scores are interquartile means over the runs of a group, frames and times their means."
    if len(groups) > MOST_GROUPS:
        about += f" Curves show the best {MOST_GROUPS} groups."
    body = f'<p class="soft">{about}</p>{table(head, rows, range(1, 7), flags)}'
    return f"{sentences}{section('Scores', body, 'first')}"


def _tiles(group: RunGroup) -> str:
    """The verdict about one group."""
    one = len(group.runs) == 1
    _, score, _, frames, wall_time, fps, end = _row(group)
    about = "" if one else "mean of the runs"
    tiles = {
        "Score": (score, _about_score(group)),
        "Frames": (frames, about),
        "Wall time": (wall_time, about),
        "Frames per second": (fps, about),
        "End": (end, ""),
    }
    boxes = [
        f'<div class="tile"><span class="soft">{name}</span><b{" class=words" * (name == "End")}>{html.escape(value)}'
        f'</b><span class="soft">{html.escape(more)}</span></div>'
        for name, (value, more) in tiles.items()
    ]
    return f'<div class="tiles">{"".join(boxes)}</div>'


def _row(group: RunGroup) -> tuple[str, ...]:
    """The columns behind the name."""
    return (
        str(len(group.runs)),
        rounded(group.score.iqm) if group.score else "none",
        _interval(group) or "needs 2 runs",
        mean_of(run.frames for run in group.runs),
        duration(statistics.fmean(run.wall_time_s for run in group.runs)),
        mean_of(run.fps for run in group.runs),
        "; ".join(dict.fromkeys(run.end for run in group.runs)),
    )


def _interval(group: RunGroup) -> str:
    return f"{rounded(group.score.low)} to {rounded(group.score.high)}" if group.score and len(group.scores) > 1 else ""


def _about_score(group: RunGroup) -> str:
    if group.score is None:
        return "no episode has ended"
    if len(group.runs) > 1:
        return f"interquartile mean of {len(group.scores)} runs, 95 % interval {_interval(group)}"
    lowest, highest = (group.runs[0].last(f"{REWARD}_{end}") for end in ("min", "max"))
    text = f"mean return of the last {group.runs[0].flags.get('stats_avg', '')} episodes"
    return text if lowest is None or highest is None else f"{text}, from {rounded(lowest)} to {rounded(highest)}"


def _broken_off(groups: Sequence[RunGroup]) -> Iterator[str]:
    """A sentence for each group with runs that failed or were killed, because these count in its score."""
    for group in groups:
        early = [run for run in group.runs if run.state in ("failed", "killed") and run.score is not None]
        if early and len(group.runs) > 1:
            frames = ", ".join(f"{run.frames:,}" for run in early)
            counts = "has broken off and counts" if len(early) == 1 else "have broken off and count"
            yield (
                f"{len(early)} of {len(group.runs)} runs of {group.label} {counts} with the score of its last frames "
                f"({frames}). Let them go on, or leave them out."
            )


def _sentences(groups: Sequence[RunGroup]) -> Iterator[str]:
    """The best group of each environment, and whether the next one can be told from it."""
    for env in dict.fromkeys(group.env for group in groups):
        best = [group for group in groups if group.env == env and group.score][:2]
        if len(best) < 2:
            continue
        first, second = (group.score for group in best)
        assert first is not None
        assert second is not None
        text = f"{env}: {best[0].label} has {rounded(first.iqm)}, {best[1].label} has {rounded(second.iqm)}."
        fewest = min(len(group.scores) for group in best)
        if fewest >= LEAST_TO_TELL:
            overlap = first.low <= second.high
            text += " Their intervals overlap: more seeds may tell." if overlap else " Their intervals do not overlap."
        elif fewest > 1:
            text += f" {fewest} seeds are too few to tell them apart: {LEAST_TO_TELL} or more may."
        yield text
