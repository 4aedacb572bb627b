"""Reads TensorBoard event files back."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sf.monitor.event_file import OVERVIEW, torch_hidden


def read_events(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """Tag to (step, value) in the order of writing, over all event files of a directory; without the overview."""
    curves: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for event in _events(directory):
        for value in event.summary.value:
            if not value.HasField("histo") and not value.HasField("metadata") and value.tag not in OVERVIEW.values():
                curves[value.tag].append((event.step, value.simple_value))
    return dict(curves)


def read_overview(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """The same of those that are there twice."""
    found: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for event in _events(directory):
        for value in event.summary.value:
            if value.tag in OVERVIEW.values():
                found[value.tag].append((event.step, value.simple_value))
    return dict(found)


def read_layouts(directory: Path) -> list[Any]:
    """Layouts of the tab Custom Scalars, one for each event file."""
    from tensorboardX.proto import layout_pb2

    return [
        layout_pb2.Layout.FromString(value.tensor.string_val[0])
        for event in _events(directory)
        for value in event.summary.value
        if value.metadata.plugin_data.plugin_name == "custom_scalars"
    ]


def read_texts(directory: Path) -> dict[str, str]:
    """Tag to the newest text of the tab Text."""
    return {
        value.tag: value.tensor.string_val[0].decode()
        for event in _events(directory)
        for value in event.summary.value
        if value.metadata.plugin_data.plugin_name == "text"
    }


def read_flags(directory: Path) -> dict[str, str | float | bool]:
    """Flags of the tab HParams, of the newest start."""
    from tensorboardX.proto import plugin_hparams_pb2

    found: dict[str, str | float | bool] = {}
    for event in _events(directory):
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == "hparams":
                told = plugin_hparams_pb2.HParamsPluginData.FromString(value.metadata.plugin_data.content)
                flags = told.session_start_info.hparams
                found = {name: getattr(flags[name], flags[name].WhichOneof("kind")) for name in flags}
    return found


def read_histograms(directory: Path) -> dict[str, list[tuple[int, dict[float, float]]]]:
    """Tag to (step, right end of a bar to its height) in the order of writing."""
    bars: dict[str, list[tuple[int, dict[float, float]]]] = defaultdict(list)
    for event in _events(directory):
        for value in event.summary.value:
            if value.HasField("histo"):
                ends = zip(value.histo.bucket_limit, value.histo.bucket, strict=True)
                bars[value.tag].append((event.step, dict(ends)))
    return dict(bars)


def _events(directory: Path) -> Iterator[Any]:
    with torch_hidden():
        from tensorboardX.proto import event_pb2
    for path in sorted(directory.glob("events*")):
        data, start = path.read_bytes(), 0
        while start < len(data):
            (length,) = struct.unpack_from("<Q", data, start)
            yield event_pb2.Event.FromString(data[start + 12 : start + 12 + length])
            start += 12 + length + 4
