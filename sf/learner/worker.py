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

import torch

from sf.config import Config, samples_per_iteration, trajectories_per_dataset
from sf.console import Console
from sf.errors import InternalError
from sf.learner.algorithm_state import take_state_from_first
from sf.learner.batch import Batch
from sf.learner.batcher import Batcher
from sf.learner.cut_short import LOOK_AT_OTHERS_S, CutShort
from sf.learner.exchange_share import ExchangeShare
from sf.learner.metrics import train_summary_interval_s
from sf.learner.part_of_run import PartOfRun
from sf.learner.parts import limits_of, peers_for, prepare_torch, seed_of_policy, source_of, update_of
from sf.learner.peers import PeerLost
from sf.learner.saving import Saver
from sf.learner.training import NonFiniteGradient, StepReport
from sf.machine.cores import ONE_THREAD, Compute
from sf.nets.device import note_memory, pin, to_host, use_device
from sf.nets.fast.acting import compare_with_numpy
from sf.policy import ActorCritic, CollectPolicy, GreedyPolicy, TrainedPolicy
from sf.shared.cadence import Thinning
from sf.shared.context import LearnerLinks, RunContext
from sf.shared.messages import Order, PeersLost, SaveRequest, TrainSummary
from sf.shared.progress import Phase
from sf.shared.records import LAG_COUNTS, begin_learner, learner_record
from sf.storage.experiment import Owner


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
        self.frames_wanted = config.run.frame_limit
        may_decide = config.run.stop_at_reward is not None or config.self_play.self_play
        self.rings_always = config.run.serial_mode and may_decide
        """The session decides after each iteration then, so that a run does what it did before."""
        self.frames_per_iteration = samples_per_iteration(config) * self.frames_per_step * context.rank.world_size
        self.part_of_run = PartOfRun(config, context, self.frames_per_iteration)
        prepare_torch(seed_of_policy(context.seed, policy_id), compute.num_threads)
        self.device = use_device(compute.accelerator, arena)
        self.network = ActorCritic(info, config.model, self.device, config.run.bf16)
        self.collect_policy = CollectPolicy(self.network, emit_log_probability=True)
        """Acts as the inference workers do."""
        self.policy = GreedyPolicy(TrainedPolicy(self.network, config.rollout.action_bounds))
        """For use outside of the training."""
        self.record = learner_record(arena, policy_id + index * topology.num_policies)
        share = trajectories_per_dataset(config) // topology.num_learners
        self.cuts = CutShort(math.ceil(share / 4) if config.run.async_rl and not context.rank.is_alone else 0)
        self.peers = peers_for(config, context, policy_id, index, links, self.record.progress, self.cuts.least > 0)
        self.update = update_of(self.network, config, context, self.peers)
        self.update.lag_counts = arena[LAG_COUNTS][index, policy_id]
        self.saver = Saver(owner, policy_id, config, info, self.update, context.rank.world_size)
        self.frames = self._resume()
        tensors = None if context.tensors is None else context.tensors.on(self.device)
        self._batcher = Batcher(policy_id, context.slots(), share, index, self.device, tensors)
        self.source = source_of(self._batcher, self.update, config.run.async_rl, self._wake_workers)
        if self.update.replays and self.saver.has_resumed:
            Console().line(f"The replay buffer of policy {policy_id} begins empty: checkpoints do not hold it.")
        self._batch: Batch | None = None
        self._exchange_share = ExchangeShare()
        self._lag_target, self._admission = limits_of(config, context, index, self.update.version)
        begin_learner(self.record, self.frames, self.update.version)
        self.summaries = Thinning()
        self.weights = links.weights
        self._write_weights = to_host(self.network.flat)
        if self.is_first:
            self._publish_first(topology.workers_act)

    def _tell_lost(self, lost: PeerLost) -> None:
        """Has the supervisor end the run; the policy of the last whole step is saved then."""
        self.tell(PeersLost(str(lost)))
        self.links.supervisor.ring()

    def step(self) -> bool:
        """Trains on one dataset; False while there is none or all frames are learned."""
        self._obey()
        self._admit()
        if self._batch is None and self.frames < self.frames_wanted:
            self._batch = self.cuts.next(self.source, self.peers)
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

    def wait(self, timeout_s: float) -> None:
        """Sleeps until a slot is full or the supervisor wants something, or most other ranks may wait for this one."""
        looks = self._batch is None and self.cuts.may_come(self.source)  # they ring no bell of this rank
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
        self.update.set_progress(self.part_of_run.at(now, self.frames, self.peers, self.leads))
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
        if self._lag_target is not None and lags:
            self._lag_target.observe(sum(lags) / len(lags))
            if self.leads and (told := self._lag_target.sentence()):
                Console().line(told)
        # Learners go on from here when the first one has published its last step. A slot that was free before could
        # be filled by an older policy, and synchronous mode promises that it is not.
        num_learned, num_cut_short = self.peers.sum(int(batch.valid.sum()), self.cuts.was_cut)
        if (told := self.cuts.note(self.record, int(num_cut_short))) and self.leads:
            Console().line(told)
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
