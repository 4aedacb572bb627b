"""A learner: trains one policy on full slots and publishes it after every optimizer step.

In: full slots, save requests. Out: published weights, free slots, checkpoints, summaries. It owns the policy under
training, the optimizer and the statistics. It stops between two iterations and saves before it ends.

A policy can have several learners, each with slots of its own. They take every step together, see `sf.learner.peers`,
and end after the same iteration. The first one speaks for all of them: only it publishes, saves and reports.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from sf.config import Config, limit_of_drawn_lag, samples_per_iteration, trajectories_per_dataset
from sf.console import Console
from sf.errors import InternalError
from sf.learner.admission import Admission
from sf.learner.algorithm_state import take_state_from_first
from sf.learner.batch import Batch
from sf.learner.batcher import Batcher
from sf.learner.exchange_share import ExchangeShare
from sf.learner.lag_target import LagTarget
from sf.learner.metrics import train_summary_interval_s
from sf.learner.off_policy import OffPolicy
from sf.learner.off_policy_update import OffPolicyUpdate
from sf.learner.peers import PeerLost, Peers, peers_of
from sf.learner.saving import Saver
from sf.learner.source import BatchSource, ReleasedAtOnce
from sf.learner.training import NonFiniteGradient, StepReport, Training
from sf.learner.trial import algorithm_of
from sf.learner.update import Update
from sf.machine.cores import ONE_THREAD, Compute
from sf.machine.memory import keep_freed_memory
from sf.nets.device import note_memory, pin, to_host, use_device
from sf.nets.fast.acting import compare_with_numpy
from sf.policy import ActorCritic, CollectPolicy, GreedyPolicy, TrainedPolicy
from sf.shared.cadence import Thinning
from sf.shared.context import LearnerLinks, RunContext
from sf.shared.messages import Order, PeersLost, SaveRequest, TrainSummary
from sf.shared.progress import Phase
from sf.shared.records import BEGAN_S, LAG_COUNTS, learner_record
from sf.storage.experiment import Owner

LOOK_AT_OTHERS_S = 0.05
"""Between two looks of a late rank whether most others have their share of a dataset; a look takes some 0.2 ms."""
LATEST = 1 - 1e-3
"""Largest progress of a time-limited run. It stays below 1, so that learning rates and clip ranges never reach zero."""


def seed_of_policy(seed: int, policy_id: int) -> int:
    """The seed of the first weights: that of the run for policy 0, one that no other policy and run has for others."""
    if policy_id == 0:
        return seed
    return int(np.random.SeedSequence(seed, spawn_key=(policy_id,)).generate_state(1)[0])


def _prepare_torch(seed: int, num_threads: int) -> None:
    torch.set_default_dtype(torch.float32)  # a module of the user's may have chosen another one
    torch.manual_seed(seed)
    torch.set_num_threads(num_threads)
    keep_freed_memory()


class Learner:
    """A learner of a policy, one of several or the only one. `step` runs one training iteration if there is a batch."""

    tell: Callable[[Any], None]

    def __init__(
        self,
        policy_id: int,
        index: int,
        config: Config,
        context: RunContext,
        links: LearnerLinks,
        owner: Owner,
        compute: Compute = ONE_THREAD,
    ):
        """Builds the policy, or loads it from the newest checkpoint, and publishes it.

        Args:
            policy_id: the policy it trains.
            index: of this learner among those of the policy.
            config: the whole configuration, because checkpoints carry it.
            context: of all roles.
            links: to the other roles.
            owner: of the directory of the experiment, where checkpoints are.
            compute: the cores and device for training.

        Raises:
            CheckpointError: there are checkpoints and none can be used.
            ResourceError: there is no accelerator.
        """
        topology, info, arena = context.topology, context.info, context.arena
        self.config = config
        self.policy_id, self.index, self.links, self.doorbell = policy_id, index, links, links.learners[index]
        self.is_first = index == 0
        """It publishes and reports for all learners of the policy in this run."""
        self.leads = self.is_first and context.rank.is_first
        """It loads, saves and decides for the learners of all ranks."""
        self.frames_per_step = config.rollout.frames_per_step
        self.num_trained = topology.num_policies - len(config.acting_only)
        """Policies that share the frames of the run."""
        self.frames_wanted, self.time_limit_s = config.run.frame_limit, config.run.time_limit_s
        self.began_s = arena[BEGAN_S].data
        self.rings_always = config.run.serial_mode and (
            config.run.stop_at_reward is not None or config.self_play.self_play
        )
        """The session decides after each iteration then, so that a run does what it did before."""
        self.frames_per_iteration = samples_per_iteration(config) * self.frames_per_step * context.rank.world_size
        _prepare_torch(seed_of_policy(context.seed, policy_id), compute.num_threads)
        self.device = use_device(compute.accelerator, arena)
        self.network = ActorCritic(info, config.model, self.device, config.run.bf16)
        self.collect_policy = CollectPolicy(self.network, emit_log_probability=True)
        """Acts as the inference workers do."""
        self.policy = GreedyPolicy(TrainedPolicy(self.network, config.rollout.action_bounds))
        """For use outside of the training."""
        self.record = learner_record(arena, policy_id + index * topology.num_policies)
        share = trajectories_per_dataset(config) // topology.num_learners
        self._least = math.ceil(share / 4) if config.run.async_rl and not context.rank.is_alone else 0
        """Trajectories that this rank contributes if others wait for it; 0 if they do not go on before it is ready."""
        self.peers = self._peers(context, config)
        self.update = self._update(config, context)
        self.saver = Saver(owner, policy_id, config, info, self.update, context.rank.world_size)
        self.frames = self._resume()
        self._batcher, self._is_cut_short = self._make_batcher(context, share), False
        self.source = self._source(config.run.async_rl)
        self._batch: Batch | None = None
        self._exchange_share = ExchangeShare()
        self._lag_target, self._admission = self._limits(config, context)
        self._begin_record()
        self.summaries = Thinning()
        self.weights = links.weights
        self._write_weights = to_host(self.network.flat)
        if self.is_first:
            self._publish_first(topology.workers_act)

    def _make_batcher(self, context: RunContext, share: int) -> Batcher:
        """What makes datasets of `share` trajectories, out of slots in shared memory or on the device."""
        tensors = None if context.tensors is None else context.tensors.on(self.device)
        return Batcher(self.policy_id, context.slots(), share, self.index, self.device, tensors)

    def _peers(self, context: RunContext, config: Config) -> Peers:
        """The other learners of the policy: of other ranks, or of this run."""
        arena, progress = context.arena, self.record.progress
        if context.rank.is_alone:
            return peers_of(self.policy_id, self.index, arena, self.links.learners, progress)
        from sf.learner.ranks import Ranks  # with torch.distributed, which most runs do without

        enough = math.ceil(config.learner.ranks_to_wait_for * context.rank.world_size)
        return Ranks(context.rank, self.policy_id, arena, self.doorbell, progress, enough if self._least else None)

    def _update(self, config: Config, context: RunContext) -> Training:
        """The training of the network, at version 0; it counts lags in shared memory."""
        num_streams = context.topology.num_groups * context.topology.rows
        algorithm = algorithm_of(config.learner)
        update: Training
        if isinstance(algorithm, OffPolicy):
            update = OffPolicyUpdate(self.network, config.learner, algorithm, num_streams, self.peers, config.replay)
        else:
            update = Update(self.network, config.learner, num_streams, self.peers, algorithm, config.replay)
        update.lag_counts = context.arena[LAG_COUNTS][self.index, self.policy_id]
        return update

    def _source(self, async_rl: bool) -> BatchSource:
        """The datasets of the batcher, whose slots a learner that copies them into a buffer gives back at once."""
        if self.update.replays and self.saver.has_resumed:
            Console().line(f"The replay buffer of policy {self.policy_id} begins empty: checkpoints do not hold it.")
        # In synchronous mode nothing is sampled meanwhile.
        early = self.update.replays and async_rl
        return ReleasedAtOnce(self._batcher, self._wake_workers) if early else self._batcher

    def _begin_record(self) -> None:
        self.record["first_env_steps"] = self.record["env_steps"] = self.frames
        self.record["version"] = self.update.version
        self.record["lag_min"] = self.record["lag_avg"] = self.record["lag_max"] = -1.0
        self.record.publish()

    def _tell_lost(self, lost: PeerLost) -> None:
        """Has the supervisor end the run; the policy of the last whole step is saved then."""
        self.tell(PeersLost(str(lost)))
        self.links.supervisor.ring()

    def _limits(self, config: Config, context: RunContext) -> tuple[LagTarget | None, Admission | None]:
        """The limits of the policy lag that the flags ask for."""
        learner, topology = config.learner, context.topology
        bound, steps = learner.lag_bound, learner.steps_per_batch
        if config.run.async_rl and config.run.num_policies == 1:
            bound = limit_of_drawn_lag(learner, config.replay)
        trajectories = trajectories_per_dataset(config)
        target = None
        if learner.target_policy_lag is not None:
            held = topology.num_slots * topology.rows / trajectories
            target = LagTarget(learner.target_policy_lag, steps, held)
        if bound is None and target is None:
            return None, None
        share, version = trajectories // topology.num_learners, self.update.version
        return target, Admission(context.slots(), self.index, share, steps, bound, version, target)

    def step(self) -> bool:
        """Trains on one dataset; False while there is none or all frames are learned."""
        self._obey()
        self._admit()
        if self._batch is None and self.frames < self.frames_wanted:
            self._batch = self._next_batch()
        if self._batch is None:
            return False
        self.record.lap("batch")
        try:
            if self.peers.are_ready():
                self._train(self._batch)
                self._batch = None
                self.record.publish()
                return True
        except PeerLost as lost:
            if not lost.ends_run:  # the supervisor does, and the policy so far is saved
                return False
            self._tell_lost(lost)
        return False

    def _next_batch(self) -> Batch | None:
        """A dataset, or a part of one where most other ranks have theirs (DD-PPO, arXiv:1911.00357, section 3)."""
        batch = self.source.next()
        self._is_cut_short = False
        if batch is None and self._may_cut_short() and self.peers.others_wait():
            batch = self.source.next(self._least)
            self._is_cut_short = batch is not None
        return batch

    def _may_cut_short(self) -> bool:
        """Whether there is enough to go on with as soon as most other ranks have their share."""
        return 0 < self._least <= self.source.rows_waiting

    def wait(self, timeout_s: float) -> None:
        """Sleeps until a slot is full or the supervisor wants something, or most other ranks may wait for this one."""
        looks = self._batch is None and self._may_cut_short()  # they ring no bell of this rank
        self.doorbell.wait(min(timeout_s, LOOK_AT_OTHERS_S) if looks else timeout_s)
        self.record.lap("wait")

    def close(self) -> None:
        """Saves the newest state, after an iteration that others have begun as well."""
        try:
            while self.peers.leave():
                assert self._batch is not None
                self._train(self._batch)
                self._batch = None
        except PeerLost as lost:
            if lost.ends_run:
                self._tell_lost(lost)
        self._obey()
        if self.is_first:
            self._save(SaveRequest("periodic", None))
        self.record.publish()

    def state(self) -> dict[str, Any]:
        """The state beside shared memory and a checkpoint that a run needs to resume in the middle of episodes."""
        scaling = self.update.reward_scaling
        return {"slots": self.source.state(), "sums": [] if scaling is None else scaling.sums}

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was taken."""
        self.source.load_state(state["slots"])
        if self.update.reward_scaling is not None:
            self.update.reward_scaling.sums = state["sums"]
        if self._admission is not None:
            self._admission.batch_is_over(self.update.version, self.source.num_used)

    def _train(self, batch: Batch) -> None:
        now = time.monotonic()
        (self.update.want_summary,) = map(bool, self.peers.sum(self.leads and self._wants_summary(now)))
        self.update.set_progress(self._progress(now))
        lags, exchanged_s = [], self.peers.exchange_s
        self.record.progress.enter(Phase.STEP)  # the end of the run waits for it from here on
        try:
            for step in self.update.steps(batch):
                lags.append(step.lag_avg)
                self.record.lap("update")
                self.record.progress.enter(Phase.STEP)
                if self.is_first:
                    self._publish(step)
                self._admit()
        except NonFiniteGradient as error:
            self.record["skipped_steps"] = self.update.num_skipped
            self.record.publish()
            where = self.saver.keep_for_a_look(error.minibatch) if self.leads else "Rank 0 keeps its minibatch."
            raise InternalError(f"{error} {where}") from None
        was_trained_on = bool(lags)
        took_s, exchange_s = time.monotonic() - now, self.peers.exchange_s - exchanged_s
        if (told := self._exchange_share.add(len(lags), took_s, exchange_s)) and self.leads:
            Console().line(told)
        self._steer(lags)
        # Learners go on from here when the first one has published its last step. A slot that was free before could
        # be filled by an older policy, and synchronous mode promises that it is not.
        num_learned, num_cut_short = self.peers.sum(int(batch.valid.sum()), self._is_cut_short)
        self._note_cut_short(int(num_cut_short))
        self.frames += int(num_learned) * self.frames_per_step
        self.record["env_steps"] = self.frames
        self.record["iterations"] += 1
        self.record["skipped_steps"], self.record["left_out"] = self.update.num_skipped, self.update.num_left_out
        if self.source.release(was_trained_on or self.update.learns_later):
            self._wake_workers()
        if self._admission is not None:
            self._admission.batch_is_over(self.update.version, self.source.num_used)
            self._admit()
        if self.update.want_summary and was_trained_on:  # nothing of a dataset that was skipped
            scalars = self.update.summary()  # of all learners, so all take part
            if self.leads:
                self._summarize(now, scalars)
        if self.rings_always or self.frames >= self.frames_wanted:
            self.links.supervisor.ring()
        self.record.lap("batch")

    def _note_cut_short(self, num_ranks: int) -> None:
        """Counts ranks that have contributed a part of their share, and says so the first time."""
        if num_ranks and not self.record["cut_short"] and self.leads:
            Console().line(
                "A rank has contributed the part of its batch that it had, because most others had theirs. "
                "--ranks_to_wait_for=1 waits for all; summary.json counts such batches as cut_short."
            )
        self.record["cut_short"] += num_ranks

    def _steer(self, lags: list[float]) -> None:
        """Moves the limit of admission after a batch with these mean lags."""
        if self._lag_target is None or not lags:
            return
        self._lag_target.observe(sum(lags) / len(lags))
        if self.leads and (sentence := self._lag_target.sentence()):
            Console().line(sentence)

    def _admit(self) -> None:
        """Lets groups begin trajectories that can still be used in time."""
        if self._admission is not None and self._admission.deal(self.update.version):
            self._wake_workers()

    def _wake_workers(self) -> None:
        for worker in self.links.workers:
            worker.ring()

    def _resume(self) -> int:
        """Continues from the newest checkpoint and has the other learners do the same; returns the frames so far."""
        if self.leads:
            self.saver.ensure_room()
        frames = torch.tensor(self.saver.resume() if self.leads else 0)
        first = dict(self.peers.take_from_first({"frames": frames} | self.update.state_dict()))
        frames = first.pop("frames")
        self.update.load_state_dict(first)
        take_state_from_first(self.update.algorithm, self.peers, self.leads)
        return int(frames)

    def _progress(self, now: float) -> float:
        """The part of the run, 0 to 1, that lies before this iteration, by the limit that ends it first.

        By frames it is (u - 1) / U for iteration u of U, and later iterations count as the U-th. By time it is
        counted from the moment when all roles were ready, by the first learner, because all learners must agree.
        """
        by_frames = 0.0
        if self.frames_wanted < math.inf:
            num_iterations = max(1.0, self.frames_wanted // (self.frames_per_iteration * self.num_trained))
            by_frames = min(self.frames / self.frames_per_iteration, num_iterations - 1) / num_iterations
        if self.time_limit_s == math.inf:
            return by_frames
        passed_s = now - self.began_s[0]
        has_begun = math.isfinite(passed_s) and self.leads
        (by_time,) = self.peers.sum(min(LATEST, passed_s / self.time_limit_s) if has_begun else 0.0)
        return max(by_frames, by_time)

    def _publish_first(self, workers_act: bool) -> None:
        """Makes room for the weights where they are published, and shows the first ones."""
        if workers_act:
            compare_with_numpy(self.network)
        self.weights.allocate(self.network.flat.numel())
        pin(self.weights, self.device)
        self.weights.publish(self.update.version, self._write_weights)
        for bell in self.links.inference:
            bell.ring()

    def _obey(self) -> None:
        """Does what the supervisor has asked for since the last call."""
        if self.is_first:
            for order in self.links.control.poll():
                self._carry_out(order)

    def _carry_out(self, order: Order) -> None:
        assert isinstance(order, SaveRequest), f"this learner does not know the order {order}"
        self._save(order)

    def _publish(self, step: StepReport) -> None:
        self.weights.publish(step.version, self._write_weights)
        record = self.record
        record["version"] = step.version
        record["lag_min"], record["lag_avg"], record["lag_max"] = step.lag_min, step.lag_avg, step.lag_max
        record["steps"] += 1
        record["lag_sum"] += step.lag_avg
        record["lag_acting"] += step.lag_while_acting
        record["lag_queued"] += step.lag_avg - step.lag_while_acting - step.lag_since_begun
        record["lag_most"] = max(record["lag_most"], step.lag_max)
        record.lap("publish")
        record.publish()

    def _summarize(self, now: float, scalars: Mapping[str, float]) -> None:
        self.summaries.made(now)
        note_memory(self.device, self.record)
        for message in TrainSummary.of(self.policy_id, self.update.version, self.frames, scalars):
            self.tell(message)

    def _wants_summary(self, now: float) -> bool:
        return self.summaries.is_due(now, train_summary_interval_s(self.update.version))

    def _save(self, request: SaveRequest) -> None:
        if not self.leads:
            return
        self.record.lap("wait")
        self.record.progress.enter(Phase.SAVE)
        saved = self.saver.save(self.policy_id, request, self.frames)
        self.record.progress.enter(Phase.STEP)
        if saved:
            self.tell(saved)
            self.links.supervisor.ring()
        self.record.lap("save")
