"""The parts that every way to train a policy has: optimizer, running statistics, version, and their state."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sf.config import LearnerConfig
from sf.errors import CheckpointError, InternalError
from sf.learner.acting_network import ActingNetwork
from sf.learner.algorithm import Algorithm
from sf.learner.batch import Batch
from sf.learner.optimizer import FlatAdam
from sf.learner.peers import ALONE, Peers
from sf.learner.reward_scaling import RewardScaling
from sf.learner.schedules import learning_rate
from sf.learner.statistics import Statistics
from sf.nets.categorical import Categorical
from sf.policy import ActorCritic
from sf.shared.arena import Array
from sf.shared.records import LAGS_COUNTED
from sf.storage.differences import tensor_differences

log = logging.getLogger(__name__)

MOST_SKIPPED_IN_A_ROW = 10


class NonFiniteGradient(InternalError):
    """Gradients were not finite again and again; `minibatch` has the columns of the last one."""

    def __init__(self, message: str, minibatch: Mapping[str, Tensor]) -> None:
        super().__init__(message)
        self.minibatch = minibatch


@dataclass(frozen=True)
class StepReport:
    """One optimizer step; lag is the version before the step minus the version that acted."""

    version: int
    """Optimizer steps done, this one included."""
    lag_min: float
    lag_avg: float
    lag_max: float
    lag_while_acting: float
    """The part of `lag_avg` that came up while the trajectories were being collected; 0 with replay."""
    lag_since_begun: float
    """The part of it that came up in steps on the same dataset; 0 with replay."""


class Training:
    """Trains a policy; owns the optimizer, the learning rate and the running statistics."""

    replays = False
    """Whether transitions are kept beyond their batch."""
    learns_later = False
    """Whether a batch without an optimizer step is learned from all the same, in steps to come."""

    def __init__(
        self,
        policy: ActorCritic,
        config: LearnerConfig,
        algorithm: Algorithm,
        num_streams: int = 0,
        peers: Peers = ALONE,
    ) -> None:
        """Starts at version 0.

        Args:
            policy: to train.
            config: how.
            algorithm: that decides what a step is.
            num_streams: environment rows that trajectories come from, where their rewards are normalized.
            peers: the other learners of the policy; all run `steps` at the same time, from the same state.
        """
        self.policy, self.config, self.algorithm, self.peers = policy, config, algorithm, peers
        self._numbers = None if isinstance(policy.distribution, Categorical) else policy.distribution
        """The distribution of actions, if some of them have a deviation."""
        self.version = 0
        self.void_before = 0
        """Transitions of versions before this one are of another policy, and train nothing."""
        self.want_summary = False
        """Set before `steps` to have `summary` afterwards."""
        self.optimizer = FlatAdam(policy, config)
        self.acting = ActingNetwork(policy, self.optimizer, config, peers)
        algorithm.begin(self.acting)
        self.statistics = Statistics(policy, peers, config.statistics_initial_count)
        self.reward_scaling = (
            RewardScaling(num_streams, config.gamma, peers, config.statistics_initial_count)
            if config.normalize_rewards
            else None
        )
        self._schedule = learning_rate(config)
        self.num_left_out = 0
        """Transitions that were too old for `bound_policy_lag`, of all learners."""
        self.lag_counts: Array = np.zeros(LAGS_COUNTED + 1, np.int64)
        """[lags] how many transitions had each lag in a step, of this learner's share; the last one is for larger lags.
        A learner puts a row of shared memory in its place."""
        self.num_skipped = 0
        """Optimizer steps that were not taken because the gradient was not finite."""
        self._skipped_in_a_row = 0

    @property
    def lr(self) -> float:
        """The present learning rate, before it is lowered for transitions that are too old."""
        return self._schedule.value

    def set_progress(self, fraction: float) -> None:
        """Say which part of the run, from 0 to 1, lies before the next dataset."""
        self._schedule.set_progress(fraction)
        self.acting.learning_rate = self.lr
        self.algorithm.set_progress(fraction)

    def reconfigure(self, config: LearnerConfig) -> None:
        """Goes on with other numbers from the next batch on.

        Args:
            config: which may differ in the names of `sf.config.pbt_space.CHANGEABLE`.
        """
        self.config, rate = config, self.lr
        self._schedule = learning_rate(config)
        if self._schedule.needs_divergence:  # the others follow from the flags and the progress
            self._schedule.value = rate
        self.optimizer.reconfigure(config)
        self.algorithm.reconfigure(config)

    def begin_with_weights(self) -> None:
        """Goes on after the vector of the policy has become that of another one; this is a version of its own.

        The moments of Adam begin anew, as does what an algorithm keeps beside the policy. Earlier versions are void.
        """
        self.optimizer.begin_anew()
        self.statistics.follow_policy()
        self.algorithm.begin(self.acting)
        self.version += 1
        self.void_before = self.version

    def steps(self, batch: Batch) -> Iterator[StepReport]:
        """Trains on a batch, or on what is kept of earlier ones as well; one item after each optimizer step."""
        raise NotImplementedError

    def summary(self) -> dict[str, float]:
        """Tags below ``train/`` of the last minibatch of a batch that was trained with `want_summary`, by all."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that a resumed run needs to go on as this one would, as named tensors; not copied.

        The state of the algorithm is apart, see `Algorithm.state_dict`.
        """
        scaling = {} if self.reward_scaling is None else self.reward_scaling.state_dict()
        return {
            **{f"policy.{name}": variable for name, variable in self.policy.variables().items()},
            "optimizer.exp_avg": self.optimizer.exp_avg,
            "optimizer.exp_avg_sq": self.optimizer.exp_avg_sq,
            "optimizer.num_steps": torch.tensor(self.optimizer.num_steps),
            **{f"statistics.{name}": tensor for name, tensor in self.statistics.state_dict().items()},
            **{f"reward_scaling.{name}": tensor for name, tensor in scaling.items()},
            "version": torch.tensor(self.version),
            "learning_rate": torch.tensor(self._schedule.value, dtype=torch.float64),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Goes on from a state of `state_dict`.

        Raises:
            CheckpointError: names, shapes or types differ; then nothing is changed.
        """
        own = self.state_dict()
        if differences := tensor_differences(own, state):
            raise CheckpointError("The saved state does not fit this policy:\n  " + "\n  ".join(differences))
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state[name])
        self.version = int(state["version"])
        self.optimizer.num_steps = int(state["optimizer.num_steps"])
        if self._schedule.needs_divergence:  # the others follow from the flags and the progress
            self._schedule.value = float(state["learning_rate"])
        self._limit_loaded_stddev()

    def _limit_loaded_stddev(self) -> None:
        """Older checkpoints know no limits, which would change ratios between the first two minibatches."""
        if self._numbers is None:
            return
        loaded = self.policy.flat.clone()
        self._numbers.limit_stddev()
        if not torch.equal(loaded, self.policy.flat):
            log.warning(
                "Some deviations of actions in the checkpoint are beyond the limits %.2g to %.2g; they begin there.",
                *map(math.exp, self.policy.config.log_stddev_limits),
            )

    def _count(self, lags: list[Array]) -> None:
        """Those of all steps of a dataset at once, which takes a tenth of the time."""
        each = [lag for lag in lags if lag.strides != (0,)]
        for lag in lags:
            if lag.size and lag.strides == (0,):  # one for all, see `sf.learner.minibatches.older`
                self.lag_counts[min(int(lag[0]), LAGS_COUNTED)] += lag.size
        if each:
            self.lag_counts += np.bincount(np.minimum(np.concatenate(each), LAGS_COUNTED), minlength=LAGS_COUNTED + 1)

    def _skip(self, minibatch: Mapping[str, Tensor], size: int, spoiled: Sequence[str] = ()) -> None:
        """Counts a step on so many transitions that is not taken.

        Args:
            minibatch: of the step.
            size: transitions in it.
            spoiled: terms of the loss that are not finite, with their values.

        Raises:
            NonFiniteGradient: for the tenth time in a row.
        """
        self.num_skipped += 1
        self._skipped_in_a_row += 1
        log.error(
            "Skipped an optimizer step at version %d: the gradient of %d transitions is not finite (%d in a row).",
            self.version, size, self._skipped_in_a_row,
        )  # fmt: skip
        if self._skipped_in_a_row >= MOST_SKIPPED_IN_A_ROW:
            terms = f", with {', '.join(spoiled)} in its loss" if spoiled else ""
            raise NonFiniteGradient(
                f"{self._skipped_in_a_row} gradients in a row were not finite, the last one at version {self.version}"
                f"{terms}. No network took such a step. Lower --learning_rate, set --max_grad_norm, and look at the "
                "size of rewards and observations (--normalize_input, --reward_scale, --reward_clip).",
                minibatch,
            )
