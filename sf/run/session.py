"""The decisions of the main process while a run lasts: reports, the schedule of checkpoints, and the end.

It reads the records that the roles keep and talks to the learners. It knows nothing of processes, so the same session
serves a run with many processes and a run with one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from sf.config import Config
from sf.console import Console
from sf.errors import ExperimentError, InternalError, LearnerLost
from sf.monitor import Monitor, Snapshot
from sf.population.director import Director, NoDirector, PolicyFacts, RunFacts
from sf.run.callbacks import Callbacks, Iteration
from sf.run.reasons import REASONS, ExitReason, limit_reached
from sf.run.recent_scores import RecentScores
from sf.run.run_records import RunRecords
from sf.run.saves import SaveSchedule
from sf.run.snapshots import run_snapshot
from sf.run.wiring import Shared
from sf.shared.episodes import Episode, EpisodeRing
from sf.shared.ledger import Ledger
from sf.shared.messages import CheckpointSaved, EvaluationDone, Order, PeersLost, Seated, TrainSummary
from sf.shared.weights import NOTHING_PUBLISHED
from sf.storage.names import next_film

POLL_S = 0.1
"""How often the records are read; nothing on the way of a sample waits for it."""


class Session:
    """Polled by the main loop from the moment when every role is ready."""

    def __init__(
        self,
        config: Config,
        shared: Shared,
        monitor: Monitor,
        callbacks: Callbacks,
        take_messages: Callable[[], Iterable[object]] = tuple,
        director: Director | None = None,
    ):
        """Reads nothing yet.

        Args:
            config: resolved.
            shared: the objects that the supervisor keeps.
            monitor: shows what is going on.
            callbacks: told what happens.
            take_messages: returns what the roles have told since the last call.
            director: decides about the policies.
        """
        self.take_messages, self.director = take_messages, director or NoDirector()
        self.config, self.shared, self.monitor, self.callbacks = config, shared, monitor, callbacks
        monitor.curves.further_scalars = self.director.scalars
        topology = shared.topology
        self.records = RunRecords(shared, has_evaluator=config.evaluation.eval_every_steps > 0)
        self.rings = [EpisodeRing(shared.arena, i) for i in range(topology.num_workers)]
        self.scores = RecentScores(monitor, config.run.score)
        self.saves = SaveSchedule(config, topology.num_policies)
        self.last_saved: dict[int, CheckpointSaved] = {}
        self.failed_saves = 0
        """Checkpoints that could not be written."""
        self.saved_s = [0.0] * topology.num_policies
        """When the checkpoint of each policy that is resumed from was written."""
        self.evaluated = [NOTHING_PUBLISHED] * topology.num_policies
        """Version of each policy that was evaluated last."""
        self.started_s = math.inf
        """When the roles were ready; starting them is not training."""
        self.has_ended = False
        """Whether no role works any more."""
        self.stopped_s = math.inf
        """When all roles had ended; a last evaluation or film is no training."""
        self.peers_lost = ""
        """A sentence about a rank that has died."""
        self.follows: int | None = None
        """The other rank whose end is the reason that this one ends."""
        self._has_directed = False
        self._iterations = [0] * topology.num_policies
        self._news: list[CheckpointSaved] = []
        self._summaries: list[dict[str, float]] = [{} for _ in range(topology.num_policies)]
        """The newest summary of each policy, as far as it has arrived."""

    def poll(self) -> ExitReason | None:
        """Reads everything once and does what is due; returns the reason to stop, if there is one.

        Raises:
            LearnerLost: the learner of another rank cannot be reached any more.
        """
        now = time.monotonic()
        if not self.has_begun:
            self.started_s, self.saved_s = now, [now] * len(self.saved_s)
            self.monitor.begin(self.snapshot(now))
            self.saves.begin(now)
        self.take(self.take_messages())
        self.expect_peers()
        snapshot = self.snapshot(now)
        episodes = self._new_episodes()
        self.monitor.poll(snapshot, episodes)
        has_trained = any(
            policy.iterations > before for policy, before in zip(snapshot.policies, self._iterations, strict=True)
        )
        self._call_back(snapshot, episodes)
        if has_trained or not self.config.run.serial_mode or not self._has_directed:
            self._direct(snapshot)  # in serial mode at the same frames as before
        self._request_saves(now)
        return self._reason_to_stop(snapshot, has_trained)

    def say_why_it_ends(self, reason: ExitReason | None) -> None:
        """Lets the other ranks know; the learners carry it to them. None says that something broke."""
        if self.follows is None:
            self.shared.leaving.own = REASONS.index(reason or ExitReason.BROKEN) + 1

    def expect_peers(self) -> None:
        """Looks at what the learners have told.

        Raises:
            LearnerLost: they have lost those of another rank.
        """
        if self.peers_lost:
            raise LearnerLost(self.peers_lost)

    def reason_of_others(self) -> ExitReason | None:
        """Why another rank ends, and so this one."""
        heard = self.shared.leaving.heard
        if heard is None:
            return None
        self.follows = heard.rank
        return REASONS[heard.reason - 1]

    def told(self, reason: ExitReason) -> str:
        """The reason to end, for the user."""
        return reason.value if self.follows is None else f"another rank stopped: {reason.value}"

    def recall_episodes(self) -> None:
        """Has the episodes that a resumed serial run brings along count for the means; callbacks knew them before."""
        for ring in reversed(self.rings):  # the first one has all that are new, see `RolloutWorker`
            self.monitor.recall(ring.recall())

    def lacks_evaluation(self) -> bool:
        """Whether the last policy is one that should be evaluated and has not been."""
        self.take(self.take_messages())
        policies = self.snapshot(time.monotonic()).policies
        if not self.has_begun or self.config.evaluation.eval_every_steps == 0:
            return False
        return any(policy.iterations for policy in policies) and [one.version for one in policies] != self.evaluated

    def lacks_film(self, run: Path) -> bool:
        """Whether a film of the last policy is due in the directory of the run."""
        every, last = self.config.evaluation.film_every_steps, self.snapshot(time.monotonic())
        return every > 0 and last.has_learned and last.frames >= next_film(run, every)

    def take(self, messages: Iterable[object]) -> None:
        """Shows and remembers what others have to say."""
        for message in messages:
            self._take(message)

    def read_last(self) -> None:
        """Reads what came last, if the run ever began.

        Raises:
            ExperimentError: the final checkpoint could not be written.
        """
        self.has_ended = True
        if not self.has_begun:
            return
        self.take(self.take_messages())
        snapshot, episodes = self.snapshot(min(time.monotonic(), self.stopped_s)), self._new_episodes()
        self.monitor.poll(snapshot, episodes)
        self._call_back(snapshot, episodes)
        if failed := [saved.error for saved in self.last_saved.values() if saved.error]:
            raise ExperimentError(f"The final checkpoint was not written: {'; '.join(failed)}")

    def imbalance(self) -> InternalError | None:
        """The error of a run that has ended and has lost or doubled a trajectory."""
        ledger = self.ledger()
        if not self.has_begun or ledger.is_balanced:
            return None
        return InternalError(f"{ledger.missing} slots are unaccounted for. {ledger.line()}. Please report this.")

    def finish(self, exit_reason: str, exit_code: int, is_in_order: bool = True) -> None:
        """Writes how the run ended, if it ever began; no role works any more.

        Args:
            exit_reason: why, for the user.
            exit_code: of the command.
            is_in_order: False where an error ends the run, which its program tells.
        """
        self.has_ended = True
        self.director.close()
        if not self.has_begun:
            if is_in_order and self.shared.rank.is_first:
                start = "This start has learned and saved nothing."
                Console().line(f"The run has ended before training began: {exit_reason}. {start}")
            self.monitor.close()
        else:
            records = self.records
            self.monitor.finish(exit_reason, exit_code, records.seconds(), self.ledger(), records.asked_seconds())

    def leave(self) -> None:
        """Writes nothing more: the directory is not that of the run any more."""
        self.has_ended = True
        self.monitor.close()

    def faults(self) -> dict[str, float]:
        """For the curves: discarded slots by reason, and failed saves."""
        counted = {
            "dropped_nonfinite": sum(record.read()["dropped"] for record in self.records.rollouts.values()),
            "skipped_steps": sum(record.read()["skipped_steps"] for record in self.records.first_learners),
            "unread_episodes": float(sum(ring.unread for ring in self.rings)),
            "failed_saves": float(self.failed_saves),
            "checkpoint_age": time.monotonic() - min(self.saved_s),
        }
        return self.ledger().scalars() | {f"faults/{name}": number for name, number in counted.items()}

    @property
    def has_begun(self) -> bool:
        """Whether every role was ready at some time."""
        return self.started_s < math.inf

    @property
    def has_saved(self) -> bool:
        """Whether a policy that has learned something is on the disk."""
        return any(saved.version > 0 and not saved.error for saved in self.last_saved.values())

    def ledger(self) -> Ledger:
        """The account of the trajectories so far."""
        return Ledger.of(self.shared.slots, self.has_ended)

    def snapshot(self, now: float) -> Snapshot:
        """The counters of all processes at this moment."""
        return run_snapshot(self.records, now, limits_rewards=self.config.rollout.reward_clip is not None)

    def _new_episodes(self) -> list[Episode]:
        return [episode for ring in self.rings for episode in ring.new_episodes()]

    def _take(self, message: object) -> None:
        match message:
            case TrainSummary():
                self._summaries[message.policy_id] |= message.scalars
                if message.is_last:  # a point has all curves
                    scalars = self._summaries[message.policy_id] | {"num_sgd_steps": message.version}
                    self.monitor.train_summary(message.policy_id, message.frames, scalars)
                    self._summaries[message.policy_id] = {}
            case EvaluationDone():
                self.evaluated[message.policy_id] = message.version
                self.monitor.evaluation_done(message)
            case Seated():
                self.director.seated(message)
            case PeersLost():
                self.peers_lost = message.sentence
            case CheckpointSaved():
                if message.kind == "periodic":  # as the final one is, and none of an evaluator
                    self.last_saved[message.policy_id] = message
                    if not message.error:
                        self.saved_s[message.policy_id] = time.monotonic()
                self.monitor.checkpoint_saved(message)
                self.director.checkpoint_saved(message)
                self.failed_saves += bool(message.error)
                self._news.append(message)
            case _:
                raise AssertionError(message)

    def _call_back(self, snapshot: Snapshot, episodes: list[Episode]) -> None:
        news, self._news = self._news, []
        for saved in news:
            self.callbacks.checkpoint(saved)
        for episode in episodes:
            self.callbacks.episode(episode)
        for policy_id, policy in enumerate(snapshot.policies):
            iterations = policy.iterations
            if iterations > self._iterations[policy_id]:
                self._iterations[policy_id] = iterations
                mean = self.scores.mean_reward(policy_id)
                self.callbacks.iteration(
                    Iteration(policy_id, iterations, policy.frames, policy.version, mean, policy.lag)
                )
        for policy_id, numbers in self.callbacks.take_numbers():
            self.monitor.curves.user_curves.add(policy_id, numbers)

    def _direct(self, snapshot: Snapshot) -> None:
        """Lets the director decide."""
        self._has_directed = True
        policies = [
            PolicyFacts(policy.frames, policy.version, partial(self.scores.mean, policy_id))
            for policy_id, policy in enumerate(snapshot.policies)
        ]
        for policy_id, order in self.director.poll(RunFacts(snapshot.time_s, policies)):
            self._request(policy_id, order)

    def _request_saves(self, now: float) -> None:
        for policy_id, request in self.saves.due(now, self.scores.mean):
            self._request(policy_id, request)

    def request_best(self) -> None:
        """Has every policy saved that is better than when this was asked for before; no learner has ended yet."""
        for policy_id, request in self.saves.best(self.scores.mean):
            self._request(policy_id, request)

    def _request(self, policy_id: int, order: Order) -> None:
        self.shared.controls[policy_id].send(order)
        self.shared.learner_bells[policy_id].ring()

    def _reason_to_stop(self, snapshot: Snapshot, has_trained: bool) -> ExitReason | None:
        """Rewards count after an iteration only: in serial mode the same run stops at the same frame."""
        run = self.config.run
        if self.callbacks.wants_stop:
            return ExitReason.CALLBACK
        policies = range(0 if run.stop_at_reward is None or not has_trained else run.num_policies)
        trained = [policy for policy in policies if policy not in self.config.acting_only]
        means = [self.scores.mean(policy, run.stop_at_reward_episodes) for policy in trained]
        reason = limit_reached(run, snapshot.frames, snapshot.time_s - self.started_s, means)
        if reason is ExitReason.REWARD:
            self.monitor.settled.close()
        return reason
