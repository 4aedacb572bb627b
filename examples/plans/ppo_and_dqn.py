"""Two algorithms in one run: agents with even numbers follow PPO, those with odd ones DQN, on the same rollouts.

sf-plan examples/plans/ppo_and_dqn.py
"""

from typing import Any

from examples.plans import dqn, ppo
from sf.plans import (
    ConcatBatches,
    Concurrently,
    LocalIterator,
    LocalReplayBuffer,
    ParallelRollouts,
    Replay,
    SelectExperiences,
    StandardizeFields,
    StandardMetricsReporting,
    StoreToReplayBuffer,
    TrainOneStep,
    UpdateTargetNetwork,
    WorkerSet,
    build_trainer,
)


def plan(workers: WorkerSet, config: Any) -> LocalIterator:
    for_ppo, for_dqn = ParallelRollouts(workers, mode="bulk_sync").duplicate(2)
    buffer = LocalReplayBuffer(learning_starts=1000, buffer_size=50_000, replay_batch_size=64)
    store = for_dqn.for_each(SelectExperiences(["dqn"])).for_each(StoreToReplayBuffer(local_buffer=buffer))
    replay = Replay(local_buffer=buffer).for_each(TrainOneStep(workers, ["dqn"]))
    replay = replay.for_each(UpdateTargetNetwork(workers, 500, policies=["dqn"]))
    train_dqn = Concurrently([store, replay], mode="round_robin", output_indexes=[1])
    batches = for_ppo.for_each(SelectExperiences(["ppo"])).combine(ConcatBatches(200))
    step = TrainOneStep(workers, ["ppo"], num_sgd_iter=10, sgd_minibatch_size=128)
    train_ppo = batches.for_each(StandardizeFields(["advantages"])).for_each(step)
    return StandardMetricsReporting(Concurrently([train_ppo, train_dqn], mode="async"), workers, config)


POLICIES = {"ppo": (ppo.PPOPolicy, None, None, ppo.CONFIG), "dqn": (dqn.DQNPolicy, None, None, dqn.CONFIG)}
CONFIG = {
    "env": "examples.plans.environments:TeamCartPole", "rollout_fragment_length": 50,
    "multiagent": {"policies": POLICIES, "policy_mapping_fn": lambda agent: "dqn" if agent % 2 else "ppo"},
}  # fmt: skip

PPOAndDQN = build_trainer("PPOAndDQN", default_config=CONFIG, execution_plan=plan)
