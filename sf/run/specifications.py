"""The specification of each role: its class, and the part of what is shared that it gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sf.config import Config
from sf.envs import EnvSource
from sf.inference.bells import InferenceBells
from sf.machine.cores import Compute
from sf.plugins import NOTHING, Sent
from sf.rollout.bells import RolloutBells
from sf.run.topology import Sizes
from sf.shared.context import EvaluatorLinks, LearnerLinks, RunContext
from sf.shared.control import ControlEnd
from sf.shared.doorbell import Doorbell
from sf.shared.progress import Phase
from sf.shared.role import RoleSpec
from sf.shared.topology import Topology
from sf.shared.weights import PublishedWeights
from sf.storage.experiment import Experiment

START_S = 120.0
"""Longest start of a role, imports and compilation included; that of environments can be set."""
FORWARD_S = 120.0
"""Longest forward pass of an inference worker."""
LEARN_S = 600.0
"""Longest optimizer step of a learner, and longest saving of a checkpoint."""
COMPILE_S = 3600.0
"""Longest optimizer step of a learner that compiles what it needs for it."""
WAIT_S = 60.0
"""A process that waits looks around every second; one that does not for so long has been stopped."""


def learner_name(policy_id: int, index: int) -> str:
    """The first learner of a policy speaks for all of them and bears the name of the policy alone."""
    return f"learner-{policy_id}-{index}" if index else f"learner-{policy_id}"


@dataclass(frozen=True)
class Wiring:
    """Everything that is shared, and the part that each role gets."""

    config: Config
    source: EnvSource
    experiment: Experiment
    context: RunContext
    sizes: Sizes
    weights: list[PublishedWeights]
    """Weights of each policy."""
    rollout_bells: list[Doorbell]
    inference_bells: list[list[Doorbell]]
    """By policy, then worker."""
    learner_bells: list[list[Doorbell]]
    """By policy, then learner."""
    supervisor_bell: Doorbell
    eval_bell: Doorbell
    learner_ends: list[ControlEnd]
    """Connections of the first learner of each policy."""
    plugins: Sent
    """Encoders and algorithms that the user has registered."""

    @property
    def topology(self) -> Topology:
        """Sizes of the shared memory."""
        return self.context.topology

    def learner(self, policy_id: int, index: int) -> RoleSpec:
        """One of the learners of a policy."""
        place = policy_id + index * self.topology.num_policies
        kind, further = self._kind_of_learner(policy_id)
        return RoleSpec(
            learner_name(policy_id, index),
            kind,
            further
            | {
                "context": self.context,
                "policy_id": policy_id,
                "index": index,
                "config": self.config,
                "links": LearnerLinks(
                    self.learner_bells[policy_id],
                    self.rollout_bells,
                    self.inference_bells[policy_id],
                    self.supervisor_bell,
                    self.weights[policy_id],
                    self.learner_ends[policy_id],
                ),
                "owner": self.experiment.owner,
                "compute": self._compute(place),
            },
            "learner",
            place,
            self.plugins,
            {
                Phase.START: START_S,
                Phase.STEP: COMPILE_S if self.config.learner.torch_compile else LEARN_S,
                Phase.WAIT: WAIT_S,
            },
        )

    def _kind_of_learner(self, policy_id: int) -> tuple[str, dict[str, Any]]:
        """The class of the learner of a policy, and what it takes beside the arguments of all."""
        if policy_id in self.config.run.frozen:
            return "sf.learner.frozen:FrozenLearner", {}
        if policy_id in self.config.seats:
            return "sf.learner.seat:SeatLearner", {}
        if self.config.population.with_pbt:
            return "sf.learner.evolving:EvolvingLearner", {"population": self.weights}
        return "sf.learner.worker:Learner", {}

    def inference(self, policy_id: int, index: int) -> RoleSpec:
        """One of the inference workers of a policy."""
        topology = self.topology
        place = policy_id * topology.inference_per_policy + index
        return RoleSpec(
            f"inference-{policy_id}-{index}",
            "sf.inference.worker:InferenceWorker",
            {
                "context": self.context,
                "policy_id": policy_id,
                "index": index,
                "config": self.config,
                "weights": self.weights[policy_id],
                "bells": InferenceBells(self.inference_bells[policy_id][index], self.rollout_bells),
            },
            "inference",
            place,
            self.plugins,
            {Phase.START: START_S, Phase.STEP: FORWARD_S, Phase.WAIT: WAIT_S},
            can_be_replaced=True,
        )

    def small_inference(self, index: int) -> RoleSpec:
        """The part of a rollout worker that acts for all policies; without plugins, which would bring torch along."""
        return RoleSpec(
            f"inference-{index}",
            "sf.inference.small_worker:SmallInference",
            {
                "context": self.context,
                "index": index,
                "config": self.config,
                "weights": self.weights,
                "bells": InferenceBells(self.rollout_bells[index], ()),
            },
            "inference",
            index,
        )

    def rollout(self, index: int) -> RoleSpec:
        """One of the rollout workers, with all that it needs if it acts for itself."""
        topology, policies = self.topology, range(self.topology.num_policies)
        inference = [self.inference_bells[p][index % topology.inference_per_policy] for p in policies]
        return RoleSpec(
            f"rollout-{index}",
            "sf.rollout.worker:RolloutWorker",
            {
                "context": self.context,
                "index": index,
                "config": self.config,
                "source": self.source,
                "bells": RolloutBells(
                    self.rollout_bells[index],
                    inference=[] if topology.workers_act else inference,
                    learners=[self.learner_bells[p][k] for p in policies for k in topology.learners_of_worker(index)],
                ),
            },
            "rollout",
            index,
            NOTHING,
            self._env_deadlines_s() | {Phase.WAIT: WAIT_S},
            has_environments=True,
            can_be_replaced=True,
            companions=(self.small_inference(index),) if topology.workers_act else (),
        )

    def tensor_worker(self) -> RoleSpec:
        """The one that steps a simulator in tensors and acts in it, beside the learner in one process."""
        return RoleSpec(
            "rollout-0",
            "sf.tensors.worker:TensorWorker",
            {
                "context": self.context,
                "config": self.config,
                "source": self.source,
                "weights": self.weights[0],
                "compute": self._compute(0),
                "overlaps": self.config.overlaps,
            },
            "rollout",
            0,
            self.plugins,
            self._env_deadlines_s() | {Phase.WAIT: WAIT_S},
            has_environments=True,
            has_thread=self.config.overlaps,
        )

    def _compute(self, place: int) -> Compute:
        """The threads and the device of a learner; devices are dealt in turn."""
        accelerator = place + self.context.rank.local_rank if self.config.run.device == "gpu" else None
        return Compute(self.sizes.learner_threads, accelerator)

    def evaluator(self) -> RoleSpec:
        """The one that plays the evaluations."""
        return RoleSpec(
            "eval-0",
            "sf.evaluator.worker:Evaluator",
            {
                "context": self.context,
                "config": self.config,
                "source": self.source,
                "links": EvaluatorLinks(self.weights, self.eval_bell, self.supervisor_bell),
                "owner": self.experiment.owner,
            },
            "eval",
            0,
            self.plugins,
            self._env_deadlines_s() | {Phase.WAIT: WAIT_S},
            has_environments=True,
            can_be_replaced=True,
        )

    def _env_deadlines_s(self) -> dict[Phase, float]:
        faults = self.config.faults
        return {
            Phase.START: START_S,
            Phase.INIT: faults.env_init_timeout,
            Phase.RESET: faults.env_reset_timeout,
            Phase.STEP: faults.env_step_timeout,
        }
