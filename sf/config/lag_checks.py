"""Bounds and targets of the policy lag that a configuration can keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sf.config.sizes import (
    least_lag_bound,
    rows_per_group,
    trajectories_per_dataset,
)
from sf.config.whole import Config

if TYPE_CHECKING:
    from sf.spaces import EnvInfo


def lag_problems(config: Config, info: EnvInfo) -> list[str]:
    """A bound under which a batch can be trained on."""
    learner, bound = config.learner, config.learner.lag_bound
    target = learner.target_policy_lag
    if bound is None and target is None:
        return []
    if config.run.num_policies > 1:
        name = f"bound_policy_lag={learner.bound_policy_lag}" if target is None else f"target_policy_lag={target:g}"
        return [
            f"{name} with num_policies={config.run.num_policies}: a trajectory would have to be in time for all of "
            "them. Use --num_policies=1, or --max_policy_lag."
        ]
    return _lag_target(config) + ([] if bound is None else _least_bound(config, info, bound))


def _lag_target(config: Config) -> list[str]:
    learner, target, problems = config.learner, config.learner.target_policy_lag, []
    if target is None:
        return []
    steps = learner.steps_per_batch
    if not config.run.async_rl:
        problems.append(
            f"target_policy_lag={target:g} with async_rl=False: the average lag of a synchronous run is exactly "
            f"{(steps - 1) / 2:g}, (num_epochs x num_batches_per_epoch - 1) / 2. Leave one of them out."
        )
    if target < (steps - 1) / 2:
        problems.append(
            f"target_policy_lag={target:g} cannot be reached: a batch is trained on in num_epochs={learner.epochs} "
            f"x num_batches_per_epoch={learner.num_minibatches} = {steps} optimizer steps, so even the newest data has "
            f"an average lag of {(steps - 1) / 2:g}. Use --target_policy_lag={(steps - 1) / 2:g} or more, or fewer "
            "epochs or minibatches."
        )
    if learner.lag_bound is not None and learner.lag_bound < target:
        problems.append(
            f"bound_policy_lag={learner.bound_policy_lag} is below target_policy_lag={target:g}: no average is above "
            "the largest lag. Raise the one or lower the other."
        )
    return problems


def _least_bound(config: Config, info: EnvInfo, bound: int) -> list[str]:
    learner = config.learner
    steps, rows = learner.steps_per_batch, rows_per_group(config, info.num_agents)
    share = trajectories_per_dataset(config) // learner.num_learners
    least = least_lag_bound(steps, share, rows)
    if bound >= least:
        return []
    wide = "" if least == steps - 1 else f" Here {rows} trajectories of a group share batches of {share}."
    return [
        f"bound_policy_lag={learner.bound_policy_lag} is less than one batch needs. It is trained on in "
        f"num_epochs={learner.epochs} x num_batches_per_epoch={learner.num_minibatches} = {steps} optimizer steps, and "
        f"even the newest data has lag 0 in the first of them, 1 in the second, and {steps - 1} in the last.{wide} Use "
        f"--bound_policy_lag={least} or more, or fewer epochs or minibatches."
    ]
