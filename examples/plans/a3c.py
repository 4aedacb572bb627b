"""A3C: workers compute gradients, and each gets the weights that its own gradients led to.

sf-plan examples/plans/a3c.py --env=CartPole-v1
"""

from typing import Any

from examples.plans.a2c import CONFIG, A2CPolicy
from sf.plans import (
    ApplyGradients,
    AsyncGradients,
    LocalIterator,
    StandardMetricsReporting,
    WorkerSet,
    build_trainer,
)


def plan(workers: WorkerSet, config: Any) -> LocalIterator:
    train = AsyncGradients(workers).for_each(ApplyGradients(workers, update_all=False))
    return StandardMetricsReporting(train, workers, config)


SETTINGS = {**CONFIG, "num_workers": 2, "rollout_fragment_length": 20}
A3C = build_trainer("A3C", default_policy=A2CPolicy, default_config=SETTINGS, execution_plan=plan)
