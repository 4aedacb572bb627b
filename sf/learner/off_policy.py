"""The seam for algorithms that learn from transitions of earlier policies.

    batch [T, B] -> ring -> minibatches -> OffPolicy.update -> published policy

An `OffPolicy` owns its networks beside the acting one and takes the optimizer steps of all of them. It may have a ring
of its own; by default minibatches are transitions, each by itself. The loop around it is
`sf.learner.off_policy_update.OffPolicyUpdate`. What else a run has is the same as for PPO: sampling, versions, lag,
supervision, checkpoints, evaluation and curves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from sf.config import LearnerConfig
from sf.errors import ConfigError
from sf.learner.acting_network import ActingNetwork
from sf.learner.algorithm import Algorithm, Losses
from sf.learner.batch import Batch
from sf.learner.dataset import Transitions
from sf.learner.experience import ExperienceRing
from sf.learner.priorities import Priorities
from sf.policy import ActorCritic, Evaluation
from sf.shared.fields import StoredField
from sf.shared.slot_fields import last_observation_fields
from sf.spaces import EnvInfo


class Drawn(Protocol):
    """What every minibatch of a ring has; [...] is any shape."""

    observations: dict[str, Tensor]
    actions: Tensor
    rewards: Tensor
    """[...]."""
    versions: Tensor
    """[...] int64 on the host, of the policies of this learner that chose the actions; those of others are left out."""

    def __len__(self) -> int:
        """Its weight in a mean over minibatches."""


class Ring(Protocol):
    """Holds what came in, and draws from it."""

    num_added: int
    """Transitions that came in so far."""

    def add(self, batch: Batch) -> int:
        """Takes in the transitions of the own policy; returns how many may be drawn."""

    def minibatches(self, number: int, size: int, device: torch.device | None = None) -> Iterator[Any]:
        """So many draws, each a `Drawn` of about `size` transitions, on the device.

        Raises:
            NothingToDraw: there are none.
        """


class OffPolicy(Algorithm):
    """How a policy learns from transitions that any policy has collected; a subclass says what an update is."""

    num_steps: int = 1
    """Rewards that are summed before the value of an observation follows."""

    priorities: Priorities | None = None
    """How likely each transition is drawn; None for all alike."""

    draws_trajectories: bool = False
    """Whether its ring draws what recurrent policies need: steps in their order."""

    def __init__(self, config: LearnerConfig) -> None:
        """See `Algorithm`."""
        super().__init__(config)
        self.is_shown = True
        """Whether the scalars of the next update are shown; those of others may be left out."""
        self.progress = 0.0
        """The part of the run, from 0 to 1, that lies behind."""

    def fields(self, info: EnvInfo) -> Mapping[str, StoredField]:
        """See `Algorithm`: observations after steps that a time limit cut, from which targets go on."""
        return last_observation_fields(info)

    def set_progress(self, fraction: float) -> None:
        """See `Algorithm`; keeps it as `progress`."""
        self.progress = fraction

    def begin(self, acting: ActingNetwork) -> None:
        """See `Algorithm.begin`; one that learns off-policy always has something to make.

        Raises:
            ConfigError: the policy has other actions or parts than the algorithm is made for.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method begin(acting).")

    def ring(self, size: int) -> Ring:
        """What the transitions lie in and are drawn from; called once.

        Args:
            size: transitions that it holds.
        """
        return ExperienceRing(size, self.config.gamma, self.num_steps, self.priorities)

    def expect_order_for(self, policy: ActorCritic) -> None:
        """Looks whether a recurrent policy will get steps in their order.

        Raises:
            ConfigError: it will not.
        """
        if policy.state_size and not self.draws_trajectories:
            name = f"algorithm={self.config.algorithm}"
            raise ConfigError([f"{name} draws single transitions, but use_rnn=True needs whole trajectories."])

    def update(self, minibatch: Any) -> Mapping[str, Tensor]:
        """Steps of all networks, at most one of them of the acting network.

        The version counts those of the acting network. An update without one does not publish anything.

        Args:
            minibatch: drawn from the ring, by default an `Experience`.

        Returns:
            Scalars that TensorBoard shows below ``train/``, each under its name; anything where not `is_shown`.

        Raises:
            NonFiniteLoss: a gradient is not finite.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method update(minibatch).")

    def explore(self) -> None:
        """Called before each batch, also before the first update: sets how the policy explores while it acts."""

    def loss(self, evaluation: Evaluation, minibatch: Transitions) -> Losses:
        """Never called: `update` takes its place."""
        raise NotImplementedError(f"{type(self).__name__} learns by update(minibatch).")


def expected_scalars(algorithm: str, scalars: object) -> dict[str, Tensor]:
    """What an update has returned for the curves.

    Raises:
        ConfigError: it is something else than scalars by name.
    """
    if isinstance(scalars, dict) and all(isinstance(value, Tensor) and value.ndim == 0 for value in scalars.values()):
        return scalars
    raise ConfigError(
        [f"algorithm={algorithm}: update must return a dict of scalar tensors by name, but returned {scalars!r}."]
    )
