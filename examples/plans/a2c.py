"""A2C: fragments of all workers at once, one step of the optimizer on them, a result.

sf-plan examples/plans/a2c.py --env=CartPole-v1
"""

from typing import Any

from sf.plans import (
    ConcatBatches,
    LocalIterator,
    ParallelRollouts,
    SampleBatch,
    StandardMetricsReporting,
    TrainOneStep,
    WorkerSet,
    build_actor_critic,
    build_trainer,
)

CONFIG = {
    "gamma": 0.99, "lambda": 1.0, "vf_loss_coeff": 0.5, "entropy_coeff": 0.01, "grad_clip": 0.5, "lr": 1e-3,
    "train_batch_size": 200, "sample_async": False,
}  # fmt: skip


def loss(policy: Any, model: Any, dist_class: Any, batch: SampleBatch) -> Any:
    outputs, _ = model.from_batch(batch)
    distribution = dist_class(outputs, model)
    policy.terms = {
        "policy_loss": -(distribution.logp(batch["actions"]) * batch["advantages"]).mean(),
        "vf_loss": 0.5 * (model.value_function() - batch["value_targets"]).square().mean(),
        "entropy": distribution.entropy().mean(),
    }
    weights = 1.0, policy.config["vf_loss_coeff"], -policy.config["entropy_coeff"]
    return sum(weight * term for weight, term in zip(weights, policy.terms.values(), strict=True))


def plan(workers: WorkerSet, config: Any) -> LocalIterator:
    rollouts = ParallelRollouts(workers, mode="async" if config["sample_async"] else "bulk_sync", num_async=2)
    train = rollouts.combine(ConcatBatches(config["train_batch_size"])).for_each(TrainOneStep(workers))
    return StandardMetricsReporting(train, workers, config)


A2CPolicy = build_actor_critic("A2CPolicy", loss_fn=loss, config=CONFIG)
A2C = build_trainer("A2C", default_policy=A2CPolicy, default_config=CONFIG, execution_plan=plan)
