"""The cost of one sample in isolation, and the limit that follows from it.

    limit = cores / (t_env + t_inference + t_update)

The real parts of a configuration take turns in one process. The environments of one group step and write into their
slot. The policy acts on the batch of an inference worker, and the update trains on one dataset. A block is one slot and
one dataset. Blocks repeat and medians of CPU time are taken, because a shared machine is noisy for seconds at a time.
The time for communication, copies and waits is left out, because the limit is meant to be without it.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sf.config import Config
from sf.envs import EnvSource
from sf.envs.stepping import EnvBatch
from sf.inference.actors import ActingCopy, Answers
from sf.inference.small_worker import SmallInference
from sf.inference.worker import InferenceWorker
from sf.learner.batch import Batch
from sf.learner.worker import Learner
from sf.machine.cores import usable_cores
from sf.plugins import Sent, receive_plugins
from sf.rollout.worker import RolloutWorker
from sf.run.probes import Fields
from sf.run.wiring import wire
from sf.shared.arena import Array
from sf.shared.role import RoleSpec
from sf.shared.slots import Slots
from sf.shared.topology import Topology
from sf.spaces import EnvInfo
from sf.storage.experiment import Experiment

LEAST_BLOCKS = 3


class Block(NamedTuple):
    """Seconds of CPU time per sample."""

    env: float
    inference: float
    update: float


@dataclass(frozen=True)
class Costs:
    """Medians over blocks, in microseconds of CPU time per sample."""

    env_us: float
    inference_us: float
    update_us: float
    cores: int

    @property
    def limit(self) -> float:
        """Samples per second, if every core did nothing else."""
        return self.cores / (1e-6 * (self.env_us + self.inference_us + self.update_us))


def costs(blocks: Sequence[Block], cores: int) -> Costs:
    """The medians of all blocks."""
    env_us, inference_us, update_us = (1e6 * statistics.median(seconds) for seconds in zip(*blocks, strict=True))
    return Costs(env_us, inference_us, update_us, cores)


def cores_of(config: Config) -> int:
    """Cores that a run of this configuration can use; in serial mode everything happens in one process."""
    return 1 if config.run.serial_mode else usable_cores()


def measure(
    config: Config, source: EnvSource, info: EnvInfo, plugins: Sent, seconds: float, fields: Fields | None = None
) -> list[Block]:
    """Blocks for about so many seconds, and a few in any case.

    Args:
        config: resolved.
        source: makes the environments.
        info: their spaces.
        plugins: encoders and algorithms that the user has registered.
        seconds: of wall time.
        fields: further columns of a batch.
    """
    receive_plugins(plugins)
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(_for_one_process(config), source, info, directory, fields)
        try:
            bench.block()  # the first one pays for what is done once
            blocks: list[Block] = []
            end_s = time.monotonic() + seconds
            while len(blocks) < LEAST_BLOCKS or time.monotonic() < end_s:
                blocks.append(bench.block())
        finally:
            bench.close()
    return blocks


def _for_one_process(config: Config) -> Config:
    """The same work with one learner, which waits for no other, and unchecked, since steps are repeated."""
    learner = replace(config.learner, num_learners=1, strict=False)
    return replace(config, run=replace(config.run, serial_mode=True), learner=learner)


class Bench:
    """One group of environments, one policy and one learner of a configuration, over its real shared memory."""

    def __init__(self, config: Config, source: EnvSource, info: EnvInfo, directory: str, fields: Fields | None = None):
        shared, specs = wire(config, info, source, Experiment(directory, "bench", "resume"), fields)
        learner, worker, inference = one_of_each(specs)
        self.worker, self.update = worker, learner.update
        self.start = {name: tensor.clone() for name, tensor in self.update.state_dict().items()}
        self.slots = Slots(shared.topology, shared.arena)
        weights = learner.network.flat.cpu().numpy()
        act: Act
        if isinstance(inference, SmallInference):
            for policy in range(shared.topology.num_policies):
                inference.take_weights(policy, weights)
            act = ActingInPlace(inference, self.slots)
        else:
            inference.actor.take_weights(weights)
            act = ActingElsewhere(inference.actor, self.slots)
        self.player = Player(worker.groups[0].envs, act, self.slots)
        self.player.play()
        self.batch = self._dataset(learner)

    def block(self) -> Block:
        """Collects one slot and trains on one dataset."""
        env_s, inference_s = self.player.play()
        self.update.load_state_dict(self.start)  # every block does the same
        started = time.process_time()
        for _ in self.update.steps(self.batch):
            pass
        return Block(env_s, inference_s, (time.process_time() - started) / self.batch.rewards.numel())

    def close(self) -> None:
        self.worker.close()

    def _dataset(self, learner: Learner) -> Batch:
        """A dataset of the configured size, all of it copies of the slot that has been played."""
        slots, played = self.slots, self.player.slot
        slots.final_values[played] = slots.policy_version[played] = slots.policy_id[played] = 0
        for name in slots.fields:
            slots[name][:] = slots[name][played]
        for slot in range(slots.topology.num_slots):
            slots.start_filling(slot)
            slots.finish_filling(slot)
        batch = learner.source.next()
        assert batch is not None, "the slots of all groups hold a dataset"
        return batch


def one_of_each(specs: Sequence[RoleSpec]) -> tuple[Learner, RolloutWorker, InferenceWorker | SmallInference]:
    """The first learner, the first rollout worker, and who acts for it."""
    first = [spec for spec in specs if spec.name in ("learner-0", "inference-0-0", "rollout-0")]
    alone = [replace(spec, companions=()) for spec in first] + [one for spec in first for one in spec.companions]
    built = {spec.name.partition("-")[0]: spec.build() for spec in alone}
    learner, inference, worker = built["learner"], built["inference"], built["rollout"]
    assert isinstance(learner, Learner)
    assert isinstance(inference, (InferenceWorker, SmallInference))
    assert isinstance(worker, RolloutWorker)
    return learner, worker, inference


Act = Callable[[int, int], tuple[float, int]]
"""Acts in a step of a slot; returns CPU seconds, and for how many samples."""


class ActingInPlace:
    """Acts as a rollout worker that acts for itself."""

    def __init__(self, inference: SmallInference, slots: Slots) -> None:
        self._inference, self._rows, self._policy_id = inference, slots.topology.rows, slots.policy_id
        self._policies = np.arange(self._rows) % slots.topology.num_policies

    def __call__(self, slot: int, step: int) -> tuple[float, int]:
        """See `Act`."""
        self._policy_id[slot, step] = self._policies
        started = time.process_time()
        self._inference.act(slot, step, self._inference.draw(self._rows))
        return time.process_time() - started, self._rows


class ActingElsewhere:
    """Acts as an inference worker that serves several rollout workers."""

    def __init__(self, actor: ActingCopy, slots: Slots) -> None:
        self._actor, self._slots = actor, slots
        self._rows, self._batch_rows = slots.topology.rows, inference_batch(slots.topology)

    def __call__(self, slot: int, step: int) -> tuple[float, int]:
        """See `Act`."""
        started = time.process_time()
        chosen = self._act(slot, step, self._batch_rows)
        seconds = time.process_time() - started
        if self._batch_rows < self._rows:  # the rest belongs to other policies
            chosen = self._act(slot, step, self._rows)
        self._slots.actions[slot, step] = chosen.actions[: self._rows]
        self._slots.log_probs[slot, step] = chosen.log_probs[: self._rows]
        self._slots.values[slot, step] = chosen.values[: self._rows]
        heads = {name: head[: self._rows] for name, head in chosen.heads.items()}
        self._slots.write_heads(slot, step, slice(None), heads)
        return seconds, self._batch_rows

    def _act(self, slot: int, step: int, count: int) -> Answers:
        stored, size = self._slots.observations, self._slots.topology.memory_size
        observations = {name: [_repeated(array[slot, step], count)] for name, array in stored.items()}
        return self._actor.act(observations, [np.zeros((count, size), np.float32)] if size else [], None)


class Player:
    """Plays in the first slot, again and again."""

    def __init__(self, envs: EnvBatch, act: Act, slots: Slots):
        self.envs, self.act, self.slots, self.slot = envs, act, slots, slots.topology.slots_of_group(0)[0]
        envs.reset(self._observations(0))

    def play(self) -> tuple[float, float]:
        """Fills the slot; returns CPU seconds per sample of the environments and of acting."""
        env_s = acting_s = 0.0
        samples, slots, steps = 0, self.slots, range(self.slots.topology.rollout)
        for t in steps:
            seconds, count = self.act(self.slot, t)
            acting_s += seconds
            samples += count
            started = time.process_time()
            ended = self.envs.step(slots.actions[self.slot, t], self._observations(t + 1), slots.rewards[self.slot, t])
            slots.terminated[self.slot, t] = slots.truncated[self.slot, t] = False
            for end in ended:
                slots.terminated[self.slot, t, end.row] = end.terminated
                slots.truncated[self.slot, t, end.row] = end.truncated and not end.terminated
            env_s += time.process_time() - started
        slots.values[self.slot, len(steps)] = slots.values[self.slot, len(steps) - 1]
        for array in slots.observations.values():
            array[self.slot, 0] = array[self.slot, len(steps)]
        return env_s / (len(steps) * slots.topology.rows), acting_s / samples

    def _observations(self, t: int) -> dict[str, Array]:
        return {name: array[self.slot, t] for name, array in self.slots.observations.items()}


def inference_batch(topology: Topology) -> int:
    """Rows of one forward pass when every rollout worker waits for one group and steps the others."""
    return max(1, len(topology.workers_of_inference(0)) * topology.rows // topology.num_policies)


def _repeated(array: Array, count: int) -> Array:
    """[count, ...] rows, from the beginning again when they are used up."""
    if count <= len(array):
        return array[:count]
    return np.concatenate([array] * -(-count // len(array)))[:count]


def cost_lines(found: Costs, num_blocks: int) -> list[str]:
    """The lines for the user."""
    costs_us = found.env_us, found.inference_us, found.update_us
    names = "environment step and write", "forward", "update, all epochs"
    terms = " + ".join(f"{cost:.2f}" for cost in costs_us)
    return [
        f"CPU time per sample, medians of {num_blocks} blocks:",
        *(f"  {name:<27} {cost:10.2f} us" for name, cost in zip(names, costs_us, strict=True)),
        f"limit = cores / (t_env + t_inference + t_update) = {found.cores} / ({terms}) us = "
        f"{found.limit:,.0f} samples/s",
    ]
