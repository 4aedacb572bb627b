"""The context and links that the wiring gives to roles; without torch, which not all of them have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sf.machine.rank import ALONE, Rank
from sf.shared.arena import Arena
from sf.shared.control import ControlEnd
from sf.shared.doorbell import Doorbell
from sf.shared.requests import Requests
from sf.shared.slots import Slots
from sf.shared.topology import Topology
from sf.shared.weights import PublishedWeights
from sf.spaces import EnvInfo


class FieldsOnDevice(Protocol):
    """Fields of trajectories as tensors, see `sf.tensors.fields`."""

    def on(self, device: Any) -> Mapping[str, Any]:
        """[slots, ...] tensors on a `torch.device`, by field."""


@dataclass(frozen=True)
class RunContext:
    """Common to all roles of a run."""

    topology: Topology
    """Sizes of the shared memory."""
    info: EnvInfo
    """Spaces and numbers of the environments."""
    seed: int
    """Seed of the run, the same for all ranks."""
    arena: Arena
    """The shared memory."""
    rank: Rank = ALONE
    """Rank of this run among those that train together."""
    tensors: FieldsOnDevice | None = None
    """Where the fields that training reads on its device are, if not in the arena."""

    @property
    def sampling_seed(self) -> int:
        """The seed of environments and actions; those of a role follow from it and from the place of the role."""
        return self.rank.sampling_seed(self.seed)

    def slots(self) -> Slots:
        """Views of the trajectories."""
        return Slots(self.topology, self.arena)

    def requests(self) -> Requests:
        """Views of the words between rollout and inference workers."""
        return Requests(self.topology, self.arena)


@dataclass(frozen=True)
class EvaluatorLinks:
    """How the evaluator reaches the other roles."""

    weights: Sequence[PublishedWeights]
    """Weights of each policy, as its learner publishes them."""
    doorbell: Doorbell
    """Wakes the evaluator at the end of the run."""
    supervisor: Doorbell
    """Rung when there is something to read."""


@dataclass(frozen=True)
class LearnerLinks:
    """How a learner reaches the other roles."""

    learners: Sequence[Doorbell]
    """Doorbells of the learners of its policy, its own among them."""
    workers: Sequence[Doorbell]
    """Doorbells of all rollout workers."""
    inference: Sequence[Doorbell]
    """Doorbells of the inference workers of its policy."""
    supervisor: Doorbell
    """Rung when there is something to read."""
    weights: PublishedWeights
    """Where the policy is published."""
    control: ControlEnd
    """Where the supervisor asks for checkpoints."""
