"""A run that is one of several ranks: what it is refused, and what it takes over from rank 0.

Rank 0 decides on sizes and seed, takes the directory of the experiment, and says so in the store of ``torchrun``. The
other ranks wait for it, compare their flags with those of rank 0, and write into a directory of their own, which is
removed at the end.

The store outlives a start of the ranks, so nothing that is found in it need be of this one. Its keys:

    starts           how often rank 0 has been started
    taken            present when one of these has taken the directory
    question/<r>     a word that rank r has just made up
    answer/<word>    what rank 0 says to it
    heard/<n>        how many ranks have their answer of start n
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import connection
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from sf.config import Config
from sf.config.frozen_policies import frozen_flag
from sf.console import Console
from sf.errors import ConfigError, ResourceError
from sf.machine.rank import Rank
from sf.processes.disposable import DisposableChild, in_disposable_child
from sf.processes.signals import Signals
from sf.storage.compared import NOT_COMPARED

WAIT_FOR_OTHERS_S = 600.0
"""Longest wait of the other ranks for rank 0, and of rank 0 for them."""
OWN_DIRECTORY = "sf-rank-"
"""The name begins so, and the number of the process follows."""
MORE_S = 60.0
"""For a process that talks to the store to begin and end."""


class Start(NamedTuple):
    """The facts of a start that are the same for all ranks."""

    config: Config
    """Configuration of rank 0, resolved."""
    num_earlier_starts: int
    """Runs that this one continues."""
    number: int
    """See `Rank.start`."""


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
        frozen_flag(config): (
            bool(config.run.frozen),
            "a frozen policy has one learner, which only publishes it",
        ),
        "self_play=True": (config.self_play.self_play, "an opponent has one learner, which only publishes it"),
        "with_pbt=True": (config.population.with_pbt, "each rank would decide about the policies by itself"),
        "restart_learner=True": (config.faults.restart_learner, "torchrun --max-restarts starts all ranks again"),
    }
    if problems := [
        f"{flag} with the {rank.world_size} ranks of torchrun: {why}. Leave it out, or start without torchrun."
        for flag, (is_set, why) in reasons.items()
        if is_set
    ]:
        raise ConfigError(problems)


def numbered(rank: Rank) -> Rank:
    """Rank 0 of the start that this is; see `Rank.start`.

    Raises:
        WorkerCrashed: there is no store of ``torchrun``.
    """
    start, goes_on = in_disposable_child(_count, rank, timeout_s=MORE_S, what="Looking at the store of torchrun")
    return replace(rank, start=start, goes_on=goes_on)


def say_start(rank: Rank, given: Config, resolved: Config, num_earlier_starts: int, signals: Signals) -> None:
    """Tells the other ranks what rank 0 was given and has decided; waits until all have asked or a signal arrives.

    Raises:
        WorkerCrashed: there is no store of ``torchrun``.
        ResourceError: a rank does not ask.
    """
    if not rank.is_alone and rank.is_first:
        text = json.dumps([given.to_json(), resolved.to_json(), num_earlier_starts, rank.start])
        child = DisposableChild("Telling the other ranks", _answer, rank, text)
        try:
            connection.wait([*child.waitables(), signals.fileno()], WAIT_FOR_OTHERS_S + MORE_S)
            if not signals.received:
                child.result(0.0)
        finally:
            child.kill()


def hear_start(rank: Rank, own: Config) -> Start:
    """What rank 0 has decided, for a rank that was given the same flags.

    Raises:
        ConfigError: its flags differ.
        ResourceError: rank 0 does not begin.
    """
    text = in_disposable_child(_ask, rank, timeout_s=WAIT_FOR_OTHERS_S + MORE_S, what="Waiting for rank 0")
    given, resolved, starts, number = json.loads(text)
    if differences := list(_differences(own.to_json(), given)):
        raise ConfigError(
            [f"Rank {rank.rank} was started with {', '.join(differences)}. Start all ranks with the same flags."]
        )
    return Start(Config.from_json(resolved), starts, number)


@contextmanager
def own_directory(config: Config, rank: Rank) -> Iterator[Config]:
    """The configuration of this rank; all ranks but the first write into a directory that is removed at the end.

    What a killed rank has left is removed by the next one on the machine.
    They evaluate nothing and save nothing. A reward that is high enough ends the run where rank 0 has seen it.
    """
    if rank.is_first:
        yield config
        return
    for left in Path(tempfile.gettempdir()).glob(f"{OWN_DIRECTORY}*-*"):
        pid = left.name.removeprefix(OWN_DIRECTORY).split("-")[0]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(left, ignore_errors=True)  # that of another user stays
    prefix = f"{OWN_DIRECTORY}{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as directory:
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
    """Flags that only one of them was given, or that have other values; None was left open."""
    for role, flags in own.items():
        for name, value in flags.items():
            theirs = first.get(role, {}).get(name)
            if value != theirs and name not in NOT_COMPARED:
                yield f"{name}={value!r} ({theirs!r} for rank 0)"


def _count(rank: Rank) -> tuple[int, bool]:
    from sf.learner.meeting import open_store

    store = open_store(replace(rank, start=0))
    return int(store.add("starts", 1)), bool(store.check(["taken"]))


def _answer(rank: Rank, text: str) -> None:
    """Answers every question that is found, because one of an earlier start looks like one of this."""
    from sf.learner.meeting import open_store

    store, deadline_s = open_store(replace(rank, start=0)), time.monotonic() + WAIT_FOR_OTHERS_S
    store.set("taken", "")
    asked = dict.fromkeys(range(1, rank.world_size), b"")
    while store.add(f"heard/{rank.start}", 0) < len(asked):
        for other, known in asked.items():
            if store.check([f"question/{other}"]) and (word := store.get(f"question/{other}")) != known:
                asked[other] = word
                store.set(f"answer/{word.decode()}", text)
        if time.monotonic() > deadline_s:
            raise ResourceError(
                f"Rank 0 has waited {WAIT_FOR_OTHERS_S:.0f} s for the other ranks, and "
                f"{rank.world_size - 1 - store.add(f'heard/{rank.start}', 0)} of {rank.world_size - 1} did not begin. "
                "Look at what they have printed."
            )
        time.sleep(0.05)


def _ask(rank: Rank) -> str:
    from sf.learner.meeting import open_store

    store, deadline_s = open_store(rank), time.monotonic() + WAIT_FOR_OTHERS_S
    word = secrets.token_hex(8)
    store.set(f"question/{rank.rank}", word)
    while not store.check([f"answer/{word}"]):
        if time.monotonic() > deadline_s:
            raise ResourceError(
                f"Rank {rank.rank} has waited {WAIT_FOR_OTHERS_S:.0f} s for rank 0, which did not begin. Look at what "
                "rank 0 has printed."
            )
        time.sleep(0.1)
    text: str = store.get(f"answer/{word}").decode()
    store.add(f"heard/{json.loads(text)[-1]}", 1)
    return text
