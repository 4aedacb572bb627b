"""The programs that take curves: Weights & Biases, and trackio, which keeps them on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sf.errors import ResourceError
from sf.run.trackers import Tracker

MOST_OF_A_REASON = 300
"""Characters."""


@dataclass(frozen=True)
class Label:
    """The place of a run among others."""

    directory: Path
    id: str
    """The same whenever the run goes on."""
    project: str
    entity: str | None = None
    group: str | None = None
    tags: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """That of the experiment."""
        return self.directory.resolve().name


class Client(Protocol):
    """A run at a tracker."""

    def log(self, frames: int, values: Mapping[str, Any]) -> None:
        """Sends numbers, and histograms as lists of counts; `frames` is their place on the x axis."""

    def show(self, frames: int, film: Path) -> None:
        """Sends a film."""

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Waits until everything is sent."""


class Wandb:
    """Weights & Biases; its variables, such as WANDB_MODE=offline, hold as always."""

    def __init__(self, label: Label, config: Mapping[str, Any]) -> None:
        import wandb

        self._wandb: Any = wandb
        settings = wandb.Settings(console="off", disable_git=True, quiet=True)  # the run itself has written its output
        self._run: Any = wandb.init(
            project=label.project, entity=label.entity, group=label.group, name=label.name, id=label.id,
            resume="allow", tags=label.tags, config=dict(config), dir=str(label.directory), settings=settings,
        )  # fmt: skip
        self._run.define_metric("frames")
        self._run.define_metric("*", step_metric="frames")

    def log(self, frames: int, values: Mapping[str, Any]) -> None:
        """See `Client`."""
        shown = {
            tag: self._wandb.Histogram(np_histogram=(np.array(value), np.arange(len(value) + 1) - 0.5))
            if isinstance(value, list)
            else value
            for tag, value in values.items()
        }
        self._run.log({"frames": frames, **shown})

    def show(self, frames: int, film: Path) -> None:
        """See `Client`."""
        self._run.log({"frames": frames, "film": self._wandb.Video(str(film), format="mp4")})

    def finish(self, summary: Mapping[str, Any]) -> None:
        """See `Client`."""
        self._run.summary.update(dict(summary))
        self._run.finish()


class Trackio:
    """Its variables, such as TRACKIO_DIR and TRACKIO_SPACE_ID, hold as always. It has no histograms of counts."""

    def __init__(self, label: Label, config: Mapping[str, Any]) -> None:
        import trackio

        self._trackio: Any = trackio
        trackio.init(
            project=label.project, name=f"{label.name}-{label.id}", group=label.group, config=dict(config),
            resume="allow", embed=False, auto_log_gpu=False, auto_log_cpu=False,
        )  # fmt: skip

    def log(self, frames: int, values: Mapping[str, Any]) -> None:
        """See `Client`."""
        self._trackio.log({tag: value for tag, value in values.items() if not isinstance(value, list)}, step=frames)

    def show(self, frames: int, film: Path) -> None:
        """See `Client`."""
        self._trackio.log({"film": self._trackio.Video(str(film), format="mp4")}, step=frames)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """See `Client`."""
        self._trackio.finish()


CLIENTS: dict[Tracker, Callable[[Label, Mapping[str, Any]], Client]] = {"wandb": Wandb, "trackio": Trackio}


def begin(tracker: Tracker, label: Label, config: Mapping[str, Any]) -> Client:
    """A run at a tracker.

    Raises:
        ResourceError: the tracker refuses it.
    """
    try:
        return CLIENTS[tracker](label, config)
    except Exception as error:  # of any kind that the package has
        reason = " ".join(str(error).split()).rstrip(".")[:MOST_OF_A_REASON]
        advice = "Run wandb login, or set WANDB_MODE=offline" if tracker == "wandb" else "Look at TRACKIO_DIR"
        raise ResourceError(f"{tracker} takes no curves ({type(error).__name__}: {reason}). {advice}.") from None
