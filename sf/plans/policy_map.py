"""Copies of the policies of a plan in one process, and the batches that belong to each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from sf.errors import UsageError
from sf.monitor.lag_sight import LagCounted
from sf.monitor.snapshot import NO_LAG, Lag
from sf.plans.policy import PlanPolicy
from sf.plans.sample_batch import DEFAULT_POLICY, Batch, MultiAgentBatch, SampleBatch

T = TypeVar("T")


class PolicyMap:
    """Copies of the policies of a plan, by name, and what one does with all of them."""

    def __init__(self, policies: Mapping[str, PlanPolicy], policies_to_train: Sequence[str] | None = None) -> None:
        """Keeps them; all are trained unless some are named.

        Raises:
            UsageError: there is no policy of such a name.
        """
        self.policy_map = dict(policies)
        self.policies_to_train = list(policies) if policies_to_train is None else list(policies_to_train)
        for name in self.policies_to_train:
            self.get_policy(name)
        self.global_vars: dict[str, Any] = {"timestep": 0}
        self.num_steps = 0
        """Optimizer steps that have led to the weights, of any policy."""
        self.lag, self.lag_counted = NO_LAG, LagCounted()
        """Lags of the last step, and of all of them."""

    def get_policy(self, policy_id: str = DEFAULT_POLICY) -> Any:
        """One of them, a `PlanPolicy`.

        Raises:
            UsageError: there is none of this name.
        """
        if policy_id not in self.policy_map:
            raise UsageError(f"There is no policy {policy_id!r}, only {', '.join(self.policy_map)}.")
        return self.policy_map[policy_id]

    def foreach_policy(self, func: Callable[[PlanPolicy, str], T]) -> list[T]:
        """The function of each policy and its name."""
        return [func(policy, name) for name, policy in self.policy_map.items()]

    def get_weights(self, policies: Sequence[str] | None = None) -> dict[str, Any]:
        """Weights of all policies, or of some."""
        return {name: self.get_policy(name).get_weights() for name in policies or self.policy_map}

    def set_weights(self, weights: Mapping[str, Any], global_vars: Mapping[str, Any] | None = None) -> None:
        """Sets those of the named policies; all policies are told the global variables, if there are any."""
        for name, own in weights.items():
            self.get_policy(name).set_weights(own)
        if global_vars is not None:
            self.set_global_vars(global_vars)

    def learn_on_batch(self, samples: Batch) -> dict[str, Any]:
        """One step of the optimizer for each policy that is trained; statistics by policy, or of the only one."""
        info = {
            name: self.learn(name, batch)
            for name, batch in samples.policy_batches.items()
            if name in self.policies_to_train
        }
        return info if isinstance(samples, MultiAgentBatch) else info.get(DEFAULT_POLICY, {})

    def learn(self, policy_id: str, batch: SampleBatch) -> dict[str, Any]:
        """One step of the optimizer of a policy; returns statistics."""
        if "policy_version" in batch:
            self.note_lag(dict.__getitem__(batch, "policy_version"))
        self.num_steps += 1
        statistics: dict[str, Any] = self.get_policy(policy_id).learn_on_batch(batch)
        return statistics

    def note_lag(self, acted: Any) -> None:
        """Before an optimizer step, on rows from policies that so many steps [n] had led to."""
        lags = self.num_steps - np.asarray(acted)
        self.lag = Lag(float(lags.min()), float(lags.mean()), float(lags.max()))
        self.lag_counted = self.lag_counted.with_step(lags)

    def compute_gradients(self, samples: Batch) -> tuple[Any, dict[str, Any]]:
        """Gradients and statistics, by policy where there are several."""
        if isinstance(samples, SampleBatch):
            both_halves: tuple[Any, dict[str, Any]] = self.get_policy().compute_gradients(samples)
            return both_halves
        both = {
            name: self.get_policy(name).compute_gradients(batch)
            for name, batch in samples.policy_batches.items()
            if name in self.policies_to_train
        }
        return {name: one[0] for name, one in both.items()}, {name: one[1] for name, one in both.items()}

    def apply_gradients(self, gradients: Any, acted: int | None = None) -> None:
        """Those of `compute_gradients`, from a policy that so many optimizer steps had led to."""
        if acted is not None:
            self.note_lag([acted])
        self.num_steps += 1
        if isinstance(gradients, Mapping) and gradients.keys() <= self.policy_map.keys():
            for name in gradients.keys() & set(self.policies_to_train):
                self.get_policy(name).apply_gradients(gradients[name])
        else:
            self.get_policy().apply_gradients(gradients)

    def set_global_vars(self, global_vars: Mapping[str, Any]) -> None:
        """Tells all policies how far the plan is."""
        self.global_vars = dict(global_vars)
        for policy in self.policy_map.values():
            policy.on_global_var_update(self.global_vars)
