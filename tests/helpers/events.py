"""Reads TensorBoard event files back."""

from __future__ import annotations

import struct
from collections import defaultdict
from pathlib import Path

from sf.monitor.scalars import torch_hidden


def read_events(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """Tag to (step, value) in the order of writing, over all event files of a directory."""
    with torch_hidden():
        from tensorboardX.proto import event_pb2
    curves: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for path in sorted(directory.glob("events*")):
        data, start = path.read_bytes(), 0
        while start < len(data):
            (length,) = struct.unpack_from("<Q", data, start)
            event = event_pb2.Event.FromString(data[start + 12 : start + 12 + length])
            start += 12 + length + 4
            for value in event.summary.value:
                curves[value.tag].append((event.step, value.simple_value))
    return dict(curves)
