"""The records of all processes of one run, as the main process reads them."""

from __future__ import annotations

from sf.monitor.lag_sight import LagCounted
from sf.monitor.time_shares import ACT, WAIT
from sf.run.specifications import learner_name
from sf.run.wiring import Shared
from sf.shared.records import (
    ASKED,
    EVALUATION_ACTIVITIES,
    INFERENCE_ACTIVITIES,
    LAG_COUNTS,
    LEARNER_ACTIVITIES,
    ROLLOUT_ACTIVITIES,
    Record,
    evaluation_record,
    inference_record,
    learner_record,
    rollout_record,
)


class RunRecords:
    """Records by the name of their process."""

    def __init__(self, shared: Shared, has_evaluator: bool):
        topology, arena = shared.topology, shared.arena
        policies, per_policy = range(topology.num_policies), topology.inference_per_policy
        self.rollouts = {f"rollout-{i}": rollout_record(arena, i) for i in range(topology.num_workers)}
        self.inferences = [
            {f"inference-{p}-{j}": inference_record(arena, p * per_policy + j) for j in range(per_policy)}
            for p in policies
        ]
        """One dict for each policy."""
        self.learners = {
            learner_name(p, k): learner_record(arena, p + k * topology.num_policies)
            for p in policies
            for k in range(topology.num_learners)
        }
        self.first_learners = [self.learners[learner_name(p, 0)] for p in policies]
        """The one of each policy that speaks for all."""
        self.evaluators = {"eval-0": evaluation_record(arena)} if has_evaluator else {}
        self._lag_counts = arena[LAG_COUNTS]
        self._workers_act = topology.workers_act

    def lag_counted(self, policy_id: int) -> LagCounted:
        """The policy lag of all transitions that one policy has trained on since this start."""
        learner = self.first_learners[policy_id].read()
        return LagCounted(
            steps=int(learner["steps"]),
            total=learner["lag_sum"],
            acting=learner["lag_acting"],
            queued=learner["lag_queued"],
            largest=learner["lag_most"],
            counts=self._lag_counts[:, policy_id].sum(0),
        )

    def asked_seconds(self) -> float:
        """For which processes wanted a core, of those that have ended in order."""
        groups = [self.rollouts, *self.inferences, self.learners, self.evaluators]
        return sum(record.read()[ASKED] for records in groups for record in records.values())

    def seconds(self) -> dict[str, dict[str, float]]:
        """Seconds by activity, for every process."""
        shares = {name: _seconds(record, ROLLOUT_ACTIVITIES) for name, record in self.rollouts.items()}
        for records in self.inferences:
            of_inference = {name: _seconds(record, INFERENCE_ACTIVITIES) for name, record in records.items()}
            if self._workers_act:
                for own, acting in zip(shares.values(), of_inference.values(), strict=True):
                    _add_acting(own, acting)
            else:
                shares |= of_inference
        shares |= {name: _seconds(record, LEARNER_ACTIVITIES) for name, record in self.learners.items()}
        return shares | {name: _seconds(record, EVALUATION_ACTIVITIES) for name, record in self.evaluators.items()}


def _add_acting(own: dict[str, float], acting: dict[str, float]) -> None:
    """The work of its own inference worker counts as a wait of the rollout worker; here it becomes an activity."""
    seconds = sum(acting.values()) - acting[WAIT]
    own[ACT] = own.get(ACT, 0.0) + seconds
    own[WAIT] = max(0.0, own[WAIT] - seconds)


def _seconds(record: Record, activities: tuple[str, ...]) -> dict[str, float]:
    counters = record.read()
    return {activity: counters[activity] for activity in activities}
