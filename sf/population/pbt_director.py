"""The director of population-based training: facts go to the rules, and decisions to learners and files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sf.config import Config
from sf.config.pbt_space import OF_ENV, space_of
from sf.console import Console
from sf.population.director import NoDirector
from sf.population.pbt import Decision, PopulationRules
from sf.shared.arena import Array
from sf.shared.messages import CheckpointSaved, Evolve, Order
from sf.storage.experiment import errors_told
from sf.storage.objects import damaged
from sf.storage.population import (
    STATE,
    add_decision,
    forget_decisions,
    is_before,
    read_decisions,
    read_population,
    write_population,
)

if TYPE_CHECKING:
    from sf.population.director import RunFacts

STREAM = 0x9B7
"""Keeps the random numbers of the rules apart from those of environments, actions and weights."""


class PbtDirector(NoDirector):
    """Keeps the population in the directory of the run, where learners find their first values."""

    def __init__(self, config: Config, directory: Path, env_values: Array | None = None) -> None:
        """Goes on with the population of an earlier start, or begins one; writes it down.

        Args:
            config: of the run, resolved.
            directory: of the experiment.
            env_values: [policies, names] arguments of environments in shared memory, if there are any.

        Raises:
            ExperimentError: the file is damaged, or cannot be written.
        """
        flags = config.population
        space = space_of(flags.pbt_space)
        values = [first_values(config, tuple(space))] * config.run.num_policies
        self._env_values = env_values
        seed = np.random.SeedSequence(config.run.seed, spawn_key=(STREAM,)).generate_state(1)[0]
        self.rules, self._directory = PopulationRules(flags, space, values, int(seed)), directory
        self._is_at_its_place = False
        with errors_told(directory):
            if (path := directory / STATE).exists():
                try:
                    self.rules.load_json(read_population(directory))
                except (KeyError, TypeError, ValueError, AttributeError) as error:
                    raise damaged(path, "the population") from error
                Console().line("The population goes on with the flags that its policies had.")
            self._write()

    def poll(self, facts: RunFacts) -> Iterator[tuple[int, Order]]:
        """See `Director`; the state is on disk before an order leaves."""
        policies = facts.policies
        frames = [policy.frames for policy in policies]
        if not self._is_at_its_place:
            self._is_at_its_place = True
            yield from self._go_back(frames)
        decisions = self.rules.decide(frames, lambda policy: policies[policy].score())
        if decisions:
            self._write(decisions)
        for decision in decisions:
            if decision.kind == "replaced":
                Console().line(sentence(decision))
            if decision.kind != "kept":
                yield decision.policy_id, Evolve(self._of_learner(decision.after), decision.source)

    def _go_back(self, frames: Sequence[int]) -> Iterator[tuple[int, Order]]:
        """Undoes decisions of a future that is lost, because the run was killed after the checkpoints of its policies.

        Their lines go last: a run that is killed meanwhile undoes them once more.
        """
        decisions = read_decisions(self._directory)
        forgotten = [one for one in decisions if not is_before(one, frames)]
        if not forgotten:
            return
        self.rules.undo(forgotten, [one for one in decisions if is_before(one, frames)])
        self._write()
        with errors_told(self._directory):
            forget_decisions(self._directory, frames)
        Console().line(f"Decisions about the population after the newest checkpoints are undone: {len(forgotten)}.")
        for policy in sorted({one["policy"] for one in forgotten}):
            yield policy, Evolve(self._of_learner(self.rules.values[policy]), None)

    def checkpoint_saved(self, saved: CheckpointSaved) -> None:
        """Takes no note."""

    def scalars(self, policy_id: int) -> Mapping[str, float]:
        """The values of a policy below ``pbt/``."""
        return {f"pbt/{name}": value for name, value in self.rules.values[policy_id].items()}

    def close(self) -> None:
        """Has nothing to close."""

    @staticmethod
    def _of_learner(values: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
        """The values that are no arguments of environments."""
        return tuple((name, value) for name, value in values.items() if not name.startswith(OF_ENV))

    def _write(self, decisions: Sequence[Decision] = ()) -> None:
        with errors_told(self._directory):
            for decision in decisions:  # first, so that a killed run finds what it may have to undo
                add_decision(self._directory, line_of(decision))
            write_population(self._directory, self.rules.to_json())
        if self._env_values is not None:
            self._env_values[:] = [
                [value for name, value in own.items() if name.startswith(OF_ENV)] for own in self.rules.values
            ]


def first_values(config: Config, names: Sequence[str]) -> dict[str, float]:
    """The values of flags that a run has filled in, and of arguments of the environment."""
    learner, given = config.learner, config.run.env_arguments
    return {
        name: float(given[name.removeprefix(OF_ENV)] if name.startswith(OF_ENV) else getattr(learner, name))
        for name in names
    }


def line_of(decision: Decision) -> dict[str, Any]:
    """A line of population.jsonl."""
    return {
        "frames": decision.frames,
        "policy": decision.policy_id,
        "kind": decision.kind,
        "source": decision.source,
        "scores": list(decision.scores),
        "before": dict(decision.before),
        "after": dict(decision.after),
    }


def sentence(decision: Decision) -> str:
    """A replacement for the console."""
    assert decision.source is not None
    own, other = decision.scores[decision.policy_id], decision.scores[decision.source]
    values = ", ".join(f"{name}={value:.3g}" for name, value in decision.after.items())
    return (
        f"Policy {decision.policy_id} (score {own:.4g}) takes over policy {decision.source} (score {other:.4g}) after "
        f"{decision.frames} frames and goes on with {values}."
    )
