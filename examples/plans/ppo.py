"""PPO: standardized advantages, several passes over a batch, a KL coefficient that adapts.

sf-plan examples/plans/ppo.py --env=CartPole-v1
"""

from typing import Any

import torch

from sf.plans import (
    ConcatBatches,
    KLCoefficient,
    LocalIterator,
    ParallelRollouts,
    SampleBatch,
    SelectExperiences,
    StandardizeFields,
    StandardMetricsReporting,
    TrainOneStep,
    WorkerSet,
    build_actor_critic,
    build_trainer,
)

CONFIG = {
    "gamma": 0.99, "lambda": 0.95, "vf_loss_coeff": 0.5, "entropy_coeff": 0.01, "grad_clip": 0.5, "lr": 1e-3,
    "clip_param": 0.2, "kl_coeff": 0.2, "kl_target": 0.01, "num_sgd_iter": 4, "sgd_minibatch_size": 256,
    "train_batch_size": 2048, "num_workers": 2, "num_envs_per_worker": 8, "rollout_fragment_length": 128,
    "sample_async": False,
}  # fmt: skip


def loss(policy: Any, model: Any, dist_class: Any, batch: SampleBatch) -> Any:
    outputs, _ = model.from_batch(batch)
    config, distribution, advantages = policy.config, dist_class(outputs, model), batch["advantages"]
    ratios, clip = (distribution.logp(batch["actions"]) - batch["action_logp"]).exp(), config["clip_param"]
    policy.terms = {
        "policy_loss": -torch.min(advantages * ratios, advantages * ratios.clamp(1 - clip, 1 + clip)).mean(),
        "vf_loss": 0.5 * (model.value_function() - batch["value_targets"]).square().mean(),
        "entropy": distribution.entropy().mean(),
        "kl": dist_class(batch["action_dist_inputs"], model).kl(distribution).mean(),
    }
    weights = 1.0, config["vf_loss_coeff"], -config["entropy_coeff"], policy.kl_coeff
    return sum(weight * term for weight, term in zip(weights, policy.terms.values(), strict=True))


def plan(workers: WorkerSet, config: Any) -> LocalIterator:
    def update_kl(item: Any) -> None:
        for name, statistics in item[1].items():
            workers.local_worker().get_policy(name).update_kl(statistics["kl"])

    mode = "async" if config["sample_async"] else "bulk_sync"
    rollouts = ParallelRollouts(workers, mode=mode, num_async=2)
    own = rollouts.for_each(SelectExperiences(workers.trainable_policies()))
    batches = own.combine(ConcatBatches(config["train_batch_size"])).for_each(StandardizeFields(["advantages"]))
    train = TrainOneStep(workers, None, config["num_sgd_iter"], config["sgd_minibatch_size"])
    return StandardMetricsReporting(batches.for_each(train).for_each(update_kl), workers, config)


PPOPolicy = build_actor_critic("PPOPolicy", loss_fn=loss, config=CONFIG, mixins=[KLCoefficient])
PPO = build_trainer("PPO", default_policy=PPOPolicy, default_config=CONFIG, execution_plan=plan)
