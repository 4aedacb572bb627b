"""The memory of a sweep: ``results.json`` in its directory, written after every run, and the lock."""

from __future__ import annotations

import csv
import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sf.errors import ExperimentError, UsageError
from sf.storage.experiment import errors_told
from sf.storage.objects import write_object
from sf.tools.sweep.description import Description
from sf.tools.sweep.trials import Interval, Trial, TrialOutcome, interval, run_name

MARKER = ".sf-sweep"


class SweepRecord:
    """Trials and outcomes so far. The sweep that writes them holds the lock until it closes the record."""

    def __init__(self, description: Description, read_only: bool = False) -> None:
        """Reads what an earlier start has left.

        Raises:
            ExperimentError: the directory is something else, or in use, or cannot be used.
            UsageError: the earlier start was of another sweep.
        """
        self._description = description
        self._lock: int | None = None
        self.path = description.directory
        self.trials: list[Trial] = []
        self.outcomes: dict[tuple[int, int], TrialOutcome] = {}
        """By trial and seed."""
        try:
            with errors_told(self.path):
                if not read_only:
                    self._take()
                self._read()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Gives the lock back."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def trial(self, flags: Mapping[str, Any]) -> Trial:
        """The trial of a combination, a new one if there is none."""
        known = next((trial for trial in self.trials if trial.flags == flags), None)
        if known is None:
            known = Trial(len(self.trials), dict(flags))
            self.trials.append(known)
        return known

    def is_pruned(self, trial: Trial) -> bool:
        """Whether one of its runs was hopeless."""
        return any(each.state == "pruned" for (number, _), each in self.outcomes.items() if number == trial.number)

    def open_seeds(self, trial: Trial) -> list[int]:
        """The seeds that a trial has no objective for; runs that have failed are tried again by the next start.

        A trial that was pruned has none.
        """
        if self.is_pruned(trial):
            return []
        done = [seed for (number, seed), outcome in self.outcomes.items() if number == trial.number and outcome.counts]
        return [seed for seed in self._description.settings.seeds if seed not in done]

    def score(self, trial: Trial) -> Interval | None:
        """The objective of a trial over the seeds of the file; None if no run has one."""
        found = (self.outcomes.get((trial.number, seed)) for seed in self._description.settings.seeds)
        values = [outcome.value for outcome in found if outcome is not None and outcome.value is not None]
        return interval(values) if values else None

    def ranked(self) -> list[tuple[Trial, Interval]]:
        """The trials that have a score, best first; those that lack seeds come later, those that were pruned last."""
        scored = [(trial, score) for trial in self.trials if (score := self.score(trial)) is not None]

        def place(pair: tuple[Trial, Interval]) -> tuple[bool, int, float]:
            return self.is_pruned(pair[0]), -pair[1].count, -self._description.better(pair[1].mean)

        return sorted(scored, key=place)

    def write(self) -> None:
        """Writes results.json in one step, and results.csv with a line for each run.

        Raises:
            ExperimentError: the directory cannot be written.
        """
        with errors_told(self.path):
            write_object(self.path / "results.json", self._header() | {"trials": self._rows()})
            self._write_csv()

    def _header(self) -> dict[str, Any]:
        """What every start must have alike, else its runs could not be compared with those before."""
        return {
            "flags": dict(self._description.flags),
            "varied": self._description.varied,
            "objective": self._description.settings.objective,
        }

    def _rows(self) -> list[dict[str, Any]]:
        runs: dict[int, list[dict[str, Any]]] = {trial.number: [] for trial in self.trials}
        for (number, seed), outcome in sorted(self.outcomes.items()):
            runs[number].append({"seed": seed, **asdict(outcome)})
        return [{"trial": trial.number, "flags": trial.flags, "runs": runs[trial.number]} for trial in self.trials]

    def _write_csv(self) -> None:
        varied = self._description.varied
        with (self.path / "results.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("trial", "seed", *varied, "objective", "state", "exit_code", "frames", "seconds", "run"))
            for (number, seed), outcome in sorted(self.outcomes.items()):
                values = [self.trials[number].flags[name] for name in varied]
                ended = outcome.state, outcome.exit_code, outcome.frames, outcome.seconds
                writer.writerow((number, seed, *values, outcome.value, *ended, run_name(number, seed)))

    def _read(self) -> None:
        path = self.path / "results.json"
        if not path.is_file():
            return
        try:
            data = json.loads(path.read_bytes())
            header = {name: data[name] for name in self._header()}
            for row in data["trials"]:
                self.trials.append(Trial(row["trial"], row["flags"]))
                for run in row["runs"]:
                    seed = run.pop("seed")
                    self.outcomes[row["trial"], seed] = TrialOutcome(**run)
        except (ValueError, KeyError, TypeError) as error:
            raise ExperimentError(
                f"{path} is damaged ({error!r}). Move it away: trials of a grid find their runs again. Those of other "
                "searches are drawn anew, so give the sweep another name as well."
            ) from None
        self._expect_same(header)

    def _expect_same(self, header: Mapping[str, Any]) -> None:
        for name, now in self._header().items():
            if header[name] != now:
                raise UsageError(
                    f"{self.path} was begun with {name} = {json.dumps(header[name])}, and the file has "
                    f"{json.dumps(now)}. Their runs cannot be compared: give the sweep another name."
                )

    def _take(self) -> None:
        if self.path.is_dir() and any(self.path.iterdir()) and not (self.path / MARKER).is_file():
            raise ExperimentError(f"{self.path} exists and is no sweep. Give the sweep another name.")
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.path / MARKER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ExperimentError(f"Another sf-sweep works in {self.path}. Wait for it, or stop it.") from None
