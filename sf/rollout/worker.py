"""A rollout worker: steps its groups of environments in turn.

In: actions, written in place by inference workers, and free slots. Out: requests, full slots, finished episodes. It
owns its environments and the slots of its groups, and imports no torch. It stops between the calls of two environments.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sf.config import RolloutConfig
from sf.envs import EnvSource
from sf.envs.stepping import EnvBatch, make_env_batch
from sf.envs.vector_stepping import VectorBatch
from sf.processes.process import Stopped
from sf.rollout.group import Group
from sf.shared.commons import Commons
from sf.shared.doorbell import Doorbell
from sf.shared.records import EpisodeRing, rollout_record

GLOBALS = 0x676C6F62
"""The last word of the entropy of the global generators: no environment has the same."""


def _seed_globals(entropy: Sequence[int]) -> None:
    """For environments that draw from the global generators of Python and NumPy."""
    word = int(np.random.SeedSequence(entropy).generate_state(1)[0])
    random.seed(word)
    np.random.seed(word)


def _make_envs(
    config: RolloutConfig,
    commons: Commons,
    source: EnvSource,
    sequence: np.random.SeedSequence,
    repeatable: bool,
    place: dict[str, Any],
) -> EnvBatch:
    """Those of one group, which step as one or one by one.

    Args:
        config: of all rollout workers.
        commons: of all roles.
        source: makes the environments.
        sequence: from which their seeds follow.
        repeatable: whether they keep a history.
        place: where they are, leave final observations and say what they do, as both kinds take it.
    """
    size = commons.topology.envs_per_group
    seeds = [int(word) for word in sequence.generate_state(size) % 2**31]
    if config.vectorization in ("native", "envpool"):
        return VectorBatch(source, commons.info, size, seeds[0], **place)
    stop = commons.arena["run_state"].data
    return make_env_batch(source, commons.info, seeds, **place, repeatable=repeatable, stop=stop)


class RolloutWorker:
    """One role object: `step` until nothing can be done, then `wait`."""

    tell: Callable[[Any], None]

    def __init__(
        self,
        index: int,
        config: RolloutConfig,
        drop_nonfinite: bool,
        commons: Commons,
        source: EnvSource,
        doorbell: Doorbell,
        inference: Sequence[Doorbell],
        learners: Sequence[Doorbell],
        incarnation: int = 0,
        repeatable: bool = False,
    ):
        """Makes the environments.

        Args:
            index: of this worker.
            config: of all rollout workers.
            drop_nonfinite: whether trajectories with a NaN or an infinity are dropped instead of raising an error.
            commons: of all roles.
            source: makes the environments.
            doorbell: wakes this worker.
            inference: doorbells of the inference workers that serve it, one per policy.
            learners: doorbells of the learners.
            incarnation: how many workers have had this place before; a successor gets random streams of its own.
            repeatable: whether this is a serial run: the environments keep a history, for a resume in the middle of
                their episodes, and those that end have one order.

        Raises:
            EnvError: an environment cannot be made.
            Stopped: the run ends.
        """
        self.doorbell = doorbell
        self.inference, self.learners = list(inference), list(learners)
        self.record = rollout_record(commons.arena, index)
        # One for all of a serial run, in the order in which episodes end and not in that in which rings are read.
        episodes = EpisodeRing(commons.arena, 0 if repeatable else index)
        slots, requests = commons.slots(), commons.requests()
        _seed_globals([commons.seed, index, incarnation, GLOBALS])
        self.groups: list[Group] = []
        source = replace(source, worker=index)
        for number, group in enumerate(commons.topology.groups_of_worker(index)):
            sequence = np.random.SeedSequence([commons.seed, group, incarnation])
            place = {
                "final_observations": {key: array[group] for key, array in slots.final_observations.items()},
                "has_final_observation": slots.has_final_observation[group],
                "action_bounds": config.action_bounds,
                "progress": self.record.progress,
                "first_index": number * commons.topology.envs_per_group,
            }
            self.groups.append(
                Group(
                    group,
                    config,
                    drop_nonfinite,
                    slots,
                    requests,
                    _make_envs(config, commons, source, sequence, repeatable, place),
                    random=np.random.default_rng(sequence),
                    record=self.record,
                    on_request=self._ring_inference,
                    on_full=self._ring_learners,
                    on_episode=episodes.append,
                )
            )

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
        self.doorbell.wait(timeout_s)
        self.record.lap("wait")

    def close(self) -> None:
        for group in self.groups:
            group.close()

    def state(self) -> dict[str, Any] | None:
        """What a resumed run needs beside shared memory; None if that would not be enough."""
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
        for doorbell in self.inference:
            doorbell.ring()

    def _ring_learners(self) -> None:
        for doorbell in self.learners:
            doorbell.ring()
