"""Asynchronous PPO with a target network (IMPACT, Luo et al. 2020, arXiv:1912.00167, sections 3.1 and 3.2).

Three policies play a part: the one that acted, the one that trains, and a target network that is an earlier copy of
the latter. V-trace takes values and importance weights of the target network, so that value targets do not move with
every step. The ratio that is clipped is the one to the target network, because the policies that acted are many. What
is left between those two is a limited weight.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from sf.algorithms.settings import expect_in_range
from sf.config import LearnerConfig
from sf.config.ranges import ABOVE_0, AT_LEAST_1
from sf.learner.acting_network import ActingNetwork
from sf.learner.algorithm import FurtherStep
from sf.learner.batch import Batch
from sf.learner.dataset import Transitions, evaluate_batch, vtrace_transitions
from sf.learner.losses import bounded, clip_range, clipped_gains
from sf.learner.ppo import PPO
from sf.policy import ActorCritic, Evaluation

NUM_BATCHES = "num_batches"


class APPO(PPO):
    """For data of several earlier policies."""

    def __init__(self, config: LearnerConfig, target_every: int = 2, most_weight: float = 2.0) -> None:
        """See `Algorithm`.

        Args:
            config: of the learner.
            target_every: batches after which the target network becomes a copy of the policy.
            most_weight: limit of the ratio of the policy that acted to the target network.
        """
        super().__init__(config)
        expect_in_range("appo", target_every=(target_every, AT_LEAST_1), most_weight=(most_weight, ABOVE_0))
        self.prepares_each_epoch = False
        self._target_every, self._most_log_weight = target_every, math.log(most_weight)
        self._num_batches = 0

    def begin(self, acting: ActingNetwork) -> None:
        """See `Algorithm`."""
        self._acting = acting
        self.target = copy.deepcopy(acting.policy)

    def state_dict(self) -> dict[str, Tensor]:
        """See `Algorithm`."""
        return {**super().state_dict(), NUM_BATCHES: torch.tensor(self._num_batches)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See `Algorithm`."""
        super().load_state_dict({name: tensor for name, tensor in state.items() if name != NUM_BATCHES})
        self._num_batches = int(state[NUM_BATCHES])

    def prepare(self, batch: Batch, policy: ActorCritic) -> Transitions:
        """See `Algorithm.prepare`; by V-trace under the target network."""
        log_probs, values = evaluate_batch(batch, self.target, self.config.num_minibatches)
        transitions = vtrace_transitions(batch, policy, self.config, log_probs, values)
        return transitions.with_columns(target_log_probs=log_probs.flatten())

    def after_batch(self, transitions: Transitions, versions: Tensor) -> Iterator[FurtherStep]:
        """See `Algorithm`; lets the target network follow."""
        self._num_batches += 1
        if self._num_batches % self._target_every == 0:
            with torch.no_grad():
                self.target.flat.copy_(self._acting.policy.flat)
        return iter(())

    def clipped(self, evaluation: Evaluation, minibatch: Transitions) -> Tensor:
        """See `Algorithm`; whether the ratio to the target network is outside of the clip range."""
        ratios, (low, high) = self._ratios(evaluation, minibatch), clip_range(self.config)
        return (ratios < low) | (ratios > high)

    def _gains(self, evaluation: Evaluation, minibatch: Transitions, log_ratios: Tensor) -> Tensor:
        low, high = clip_range(self.config)
        ratios = self._ratios(evaluation, minibatch)
        return clipped_gains(minibatch.advantages, ratios, low, high, self.config.ppo_dual_clip)

    def _ratios(self, evaluation: Evaluation, minibatch: Transitions) -> Tensor:
        """[N] of the policy to the target network, less where that one finds an action far less likely than it was."""
        acted = minibatch.behavior_log_probs
        log_weights = (acted - minibatch["target_log_probs"]).clamp(max=self._most_log_weight)
        return bounded(evaluation.log_probs - acted + log_weights).exp()
