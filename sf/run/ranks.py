"""A run that is one of several ranks: what it is refused, and what it takes over from rank 0.

Rank 0 decides on sizes and seed, takes the directory of the experiment, and says so in the store of ``torchrun``. The
other ranks wait for it, compare their flags with those of rank 0, and write into a directory of their own, which is
removed at the end.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from sf.config import Config
from sf.console import Console
from sf.errors import ConfigError, ResourceError
from sf.machine.rank import Rank
from sf.processes.disposable import in_disposable_child
from sf.storage.experiment import NOT_COMPARED

WAIT_FOR_FIRST_S = 600.0
"""Longest wait of the other ranks for rank 0."""
MORE_S = 60.0
"""For a process that talks to the store to begin and end."""
DECIDED = "vectorization", *NOT_COMPARED
"""Flags that rank 0 may have changed, or that say nothing of the training."""


class Start(NamedTuple):
    """The facts of a start that are the same for all ranks."""

    config: Config
    """Of rank 0, resolved."""
    num_earlier_starts: int
    """Runs that this one continues."""


def refuse_with_ranks(config: Config, rank: Rank) -> None:
    """Refuses flags that do not go together with several ranks.

    Raises:
        ConfigError: with all of them.
    """
    if rank.is_alone:
        return
    reasons = {
        "serial_mode=True": (config.run.serial_mode, "ranks wait for each other, so a learner needs its own process"),
        f"num_learners={config.learner.num_learners}": (
            config.learner.num_learners > 1,
            "each rank has one learner of each policy; start more ranks",
        ),
        f"replay={config.replay.replay}": (config.replay.replay != "none", "a buffer belongs to one learner"),
        "restart_learner=True": (config.faults.restart_learner, "torchrun --max-restarts starts all ranks again"),
    }
    if problems := [
        f"{flag} with the {rank.world_size} ranks of torchrun: {why}. Leave it out, or start without torchrun."
        for flag, (is_set, why) in reasons.items()
        if is_set
    ]:
        raise ConfigError(problems)


def say_start(rank: Rank, start: Start) -> None:
    """Tells the other ranks what rank 0 has decided.

    Raises:
        WorkerCrashed: there is no store of ``torchrun``.
    """
    if not rank.is_alone and rank.is_first:
        text = json.dumps([start.config.to_json(), start.num_earlier_starts])
        in_disposable_child(_write, rank, text, timeout_s=MORE_S, what="Telling the other ranks")


def hear_start(rank: Rank, own: Config) -> Start:
    """What rank 0 has decided, for a rank that was given the same flags.

    Raises:
        ConfigError: its flags differ.
        ResourceError: rank 0 does not begin.
    """
    text = in_disposable_child(_read, rank, timeout_s=WAIT_FOR_FIRST_S + MORE_S, what="Waiting for rank 0")
    data, starts = json.loads(text)
    if differences := list(_differences(own.to_json(), data)):
        raise ConfigError(
            [f"Rank {rank.rank} was started with {', '.join(differences)}. Start all ranks with the same flags."]
        )
    return Start(Config.from_json(data), starts)


@contextmanager
def own_directory(config: Config, rank: Rank) -> Iterator[Config]:
    """The configuration of this rank; all ranks but the first write into a directory that is removed at the end.

    They evaluate nothing and save nothing. A reward that is high enough ends the run where rank 0 has seen it.
    """
    if rank.is_first:
        yield config
        return
    with tempfile.TemporaryDirectory(prefix="sf-rank-", ignore_cleanup_errors=True) as directory:
        run = replace(config.run, train_dir=directory, restart_behavior="resume", stop_at_reward=None)
        yield replace(config, run=run, evaluation=replace(config.evaluation, eval_every_steps=0))


class WarningsOnly(Console):
    """For the reports of ranks but the first: of their lines only warnings are printed."""

    def line(self, message: str) -> None:
        if message.startswith("Warning"):
            super().line(message)

    def plain(self, text: str) -> None:
        if "Warning" in text:
            super().plain(text)


def _differences(own: dict[str, Any], first: dict[str, Any]) -> Iterator[str]:
    """Flags that this rank was given and that rank 0 has not; None was left open."""
    for role, flags in own.items():
        for name, value in flags.items():
            theirs = first.get(role, {}).get(name)
            if value is not None and value != theirs and name not in DECIDED:
                yield f"{name}={value!r} ({theirs!r} for rank 0)"


def _write(rank: Rank, text: str) -> None:
    from sf.learner.meeting import open_store

    open_store(rank).set("run", text)


def _read(rank: Rank) -> str:
    from sf.learner.meeting import open_store

    store, deadline_s = open_store(rank), time.monotonic() + WAIT_FOR_FIRST_S
    while not store.check(["run"]):
        if time.monotonic() > deadline_s:
            raise ResourceError(
                f"Rank {rank.rank} has waited {WAIT_FOR_FIRST_S:.0f} s for rank 0, which did not begin. Look at what "
                "rank 0 has printed."
            )
        time.sleep(0.1)
    text: str = store.get("run").decode()
    return text
