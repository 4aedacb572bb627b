"""Sends the points of a run to a tracker, once or as they come."""

from __future__ import annotations

import select
from pathlib import Path
from typing import IO, Any

from sf.run.trackers import Tracker
from sf.storage.objects import json_object
from sf.tools.tracking.clients import Client, Label, begin
from sf.tools.tracking.points import Points

LOOK_S = 2.0
"""Between two looks for new points."""


def send(
    directory: Path, tracker: Tracker, project: str, follow: IO[bytes] | None = None, **label: Any
) -> tuple[str, int]:
    """Sends what the tracker does not have.

    Args:
        directory: of the run.
        tracker: that takes the points.
        project: there.
        follow: the run goes on until this ends; None sends what there is.
        label: entity, group and tags, see `Label`.

    Returns:
        The id of the run there, and the number of points that were sent.
    """
    points, num_sent, is_over = Points(directory, tracker), 0, follow is None
    client: Client | None = None
    newest: dict[str, Any] | None = None
    while True:
        new = points.new()
        if new:  # the configuration is there before the first point
            client = client or begin(tracker, Label(directory, points.id, project, **label), _flags(directory))
            for point in new:
                _log(client, point)
            newest = new[-1]
            num_sent += len(new)
        if client is not None:
            for frames, film in points.new_films():
                client.show(frames, film)
        if is_over:
            break
        assert follow is not None
        is_over = bool(select.select([follow], [], [], LOOK_S)[0])
    if client is not None and newest is not None:
        client.finish(_last_facts(directory))
        points.note(newest)  # not before, because the packages send in the background
    return points.id, num_sent


def _log(client: Client, point: dict[str, Any]) -> None:
    prefix = f"policy{point['policy_id']}/" if point["policy_id"] else ""
    values = {
        f"{prefix}{tag}": value
        for tag, value in point.items()
        if value is not None and tag not in ("time_s", "policy_id", "frames")
    }
    client.log(point["frames"], values)


def _flags(directory: Path) -> dict[str, Any]:
    """The configuration with a name for each flag, as the command line has them."""
    roles = json_object(directory / "config.json")
    return {name: value for flags in roles.values() if isinstance(flags, dict) for name, value in flags.items()}


def _last_facts(directory: Path) -> dict[str, Any]:
    summary = json_object(directory / "summary.json")
    return {
        name: summary[name] for name in ("exit_reason", "exit_code", "frames", "fps", "wall_time_s") if name in summary
    }
