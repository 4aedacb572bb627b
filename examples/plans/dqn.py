"""DQN: one flow stores what workers sample, the other one draws by priority, trains and updates the target.

sf-plan examples/plans/dqn.py --env=CartPole-v1
"""

from typing import Any

from sf.plans import (
    Concurrently,
    LocalIterator,
    LocalReplayBuffer,
    ParallelRollouts,
    Replay,
    SampleBatch,
    StandardMetricsReporting,
    StoreToReplayBuffer,
    TrainOneStep,
    UpdatePriorities,
    UpdateTargetNetwork,
    WorkerSet,
    build_q_policy,
    build_trainer,
    huber,
    turns_of,
)

BUFFER: dict[str, Any] = {"learning_starts": 1000, "buffer_size": 100_000, "prioritized_replay_alpha": 0.6}
CONFIG = {
    **BUFFER, "gamma": 0.99, "lr": 3e-4, "train_batch_size": 128, "training_intensity": 12,
    "model": {"hiddens": [128, 128]}, "num_envs_per_worker": 4, "rollout_fragment_length": 16,
    "target_network_update_freq": 500, "epsilon_steps": 15_000, "last_epsilon": 0.01,
}  # fmt: skip


def loss(policy: Any, model: Any, dist_class: Any, batch: SampleBatch) -> Any:
    wanted = batch["rewards"] + policy.config["gamma"] * model.after(batch["new_obs"]) * ~batch["terminateds"]
    errors = model.of_actions(batch["obs"], batch["actions"]) - wanted
    policy.td_error = errors.detach()
    return (batch.get("weights", 1.0) * huber(errors)).mean()


def plan(workers: WorkerSet, config: Any) -> LocalIterator:
    buffer = LocalReplayBuffer(replay_batch_size=config["train_batch_size"], **{name: config[name] for name in BUFFER})
    store = ParallelRollouts(workers, mode="bulk_sync").for_each(StoreToReplayBuffer(local_buffer=buffer))
    train = Replay(local_buffer=buffer).for_each(TrainOneStep(workers)).for_each(UpdatePriorities(buffer))
    train = train.for_each(UpdateTargetNetwork(workers, config["target_network_update_freq"]))
    flows = Concurrently([store, train], output_indexes=[1], round_robin_weights=turns_of(config))
    return StandardMetricsReporting(flows, workers, config)


DQNPolicy = build_q_policy("DQNPolicy", loss_fn=loss, config=CONFIG)
DQN = build_trainer("DQN", default_policy=DQNPolicy, default_config=CONFIG, execution_plan=plan)
