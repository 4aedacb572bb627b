"""A rollout worker: steps its groups of environments in turn.

In: actions, written in place by inference workers, and free slots. Out: requests, full slots, finished episodes. It
owns its environments and the slots of its groups, and imports no torch. It stops between the calls of two environments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from sf.config import Config, RolloutConfig
from sf.envs import EnvSource
from sf.envs.batches import make_env_batch
from sf.envs.generators import seed_globals, seed_torch
from sf.envs.stepping import EnvBatch, Host
from sf.envs.vector_stepping import VectorBatch
from sf.processes.process import Stopped
from sf.rollout.bells import RolloutBells
from sf.rollout.group import Group, Listeners
from sf.shared.context import RunContext
from sf.shared.episodes import EpisodeRing
from sf.shared.matches import MatchRing
from sf.shared.records import rollout_record

GLOBALS = 0x676C6F62
"""The last word of the entropy of the global generators: no environment has the same."""


def _make_envs(
    context: RunContext,
    config: RolloutConfig,
    source: EnvSource,
    group: int,
    sequence: np.random.SeedSequence,
    host: Host,
) -> EnvBatch:
    """Those of one group, which step as one or one by one.

    Args:
        context: of all roles.
        config: of all rollout workers.
        source: makes the environments.
        group: that they belong to.
        sequence: from which their seeds follow.
        host: this process.
    """
    slots, as_one = context.slots(), config.vectorization in ("native", "envpool")
    return (VectorBatch if as_one else make_env_batch)(
        source,
        context.info,
        [int(word) for word in sequence.generate_state(context.topology.envs_per_group) % 2**31],
        {key: array[group] for key, array in slots.final_observations.items()},
        slots.has_final_observation[group],
        config.action_bounds,
        host,
    )


class RolloutWorker:
    """One role object: `step` until nothing can be done, then `wait`."""

    tell: Callable[[Any], None]

    def __init__(
        self,
        context: RunContext,
        index: int,
        config: Config,
        source: EnvSource,
        bells: RolloutBells,
        incarnation: int = 0,
    ):
        """Makes the environments.

        Args:
            context: of all roles.
            index: of this worker.
            config: of the run, resolved. In a serial run environments keep a history, for a resume in the middle of
                their episodes, and those that end have one order.
            source: makes the environments.
            bells: that it hears or rings.
            incarnation: how many workers have had this place before; a successor gets random streams of its own.

        Raises:
            EnvError: an environment cannot be made.
            Stopped: the run ends.
        """
        self.bells, is_serial = bells, config.run.serial_mode
        self.record = rollout_record(context.arena, index)
        # One for all of a serial run, in the order in which episodes end and not in that in which rings are read.
        episodes = EpisodeRing(context.arena, 0 if is_serial else index)
        listeners = Listeners(self._ring_inference, self._ring_learners, episodes.append)
        if config.self_play.self_play:
            listeners = replace(listeners, on_match=MatchRing(context.arena, index).append)
        entropy = [context.sampling_seed, index, incarnation, GLOBALS]
        seed_globals(entropy, with_torch=not is_serial)
        self.groups: list[Group] = []
        for number, group in enumerate(context.topology.groups_of_worker(index)):
            sequence = np.random.SeedSequence([context.sampling_seed, group, incarnation])
            host = Host(
                self.record.progress,
                first_index=number * context.topology.envs_per_group,
                repeatable=is_serial,
                stop=context.arena["run_state"].data,
            )
            envs = _make_envs(context, config.rollout, replace(source, worker=index), group, sequence, host)
            random = np.random.default_rng(sequence)
            self.groups.append(Group(group, config, context, envs, random, self.record, listeners))
        if not is_serial:  # else it is that of the learner
            seed_torch(entropy)  # which environments may have loaded just now

    def step(self) -> bool:
        """Advances every group that can go on; False if all of them wait.

        Raises:
            Stopped: the run ends.
        """
        progressed = False
        try:
            for group in self.groups:
                if group.advance():
                    progressed = True
        except Stopped:
            self.record.lap("step")
            self.record.publish()
            raise
        if progressed:
            self.record.lap("write")
            self.record.publish()
        return progressed

    def wait(self, timeout_s: float) -> None:
        """Sleeps until actions or slots arrive."""
        self.bells.own.wait(timeout_s)
        self.record.lap("wait")

    def close(self) -> None:
        for group in self.groups:
            group.close()

    def state(self) -> dict[str, Any] | None:
        """The state that a resumed run needs beside shared memory; None if that would not be enough."""
        states = [group.state() for group in self.groups]
        return None if None in states else {"groups": states}

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was taken.

        Raises:
            EnvError: the environments do not repeat what they did.
        """
        for group, own in zip(self.groups, state["groups"], strict=True):
            group.load_state(own)

    def _ring_inference(self) -> None:
        for doorbell in self.bells.inference:
            doorbell.ring()

    def _ring_learners(self) -> None:
        for doorbell in self.bells.learners:
            doorbell.ring()
