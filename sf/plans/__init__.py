"""Algorithms as dataflows: policies from functions, workers that sample, and execution plans of operators.

The concepts and names are those of RLlib 1.x, also where a class has another name within `sf`. Workers are the rollout
processes of `sf`. See docs/plans.md.
"""

from sf.plans.actor_critic import KLCoefficient, ValueNetwork, build_actor_critic
from sf.plans.actors import Actor
from sf.plans.concurrency import Concurrently, Dequeue, Enqueue
from sf.plans.distributions import ActionDistribution, TorchCategorical, TorchDiagGaussian
from sf.plans.local_iterator import NOT_READY, LocalIterator, NotReady, OperatorFailed
from sf.plans.metrics import MetricsContext, SharedMetrics
from sf.plans.models import LSTMModel, TorchModel
from sf.plans.parallel_iterator import ParallelIterator
from sf.plans.policy import PlanPolicy as Policy
from sf.plans.postprocessing import compute_advantages
from sf.plans.program import PolicySpec
from sf.plans.q_learning import QModel, build_q_policy, huber, turns_of
from sf.plans.q_learning import TargetUpdates as TargetNetwork
from sf.plans.replay_ops import LocalReplayBuffer, Replay, StoreToReplayBuffer, UpdatePriorities
from sf.plans.reporting import StandardMetricsReporting
from sf.plans.rollout_ops import ConcatBatches, ParallelRollouts, SelectExperiences, StandardizeFields
from sf.plans.sample_batch import MultiAgentBatch, SampleBatch
from sf.plans.shards import ParallelIteratorWorker, from_actors, from_items, from_iterators, from_range
from sf.plans.torch_policy import TorchPolicy, build_torch_policy
from sf.plans.train_ops import (
    ApplyGradients,
    AsyncGradients,
    AverageGradients,
    ComputeGradients,
    TrainOneStep,
    TrainTFMultiGPU,
    UpdateTargetNetwork,
)
from sf.plans.trainer import Trainer, build_trainer
from sf.plans.worker import PlanWorker as RolloutWorker
from sf.plans.worker import RemoteWorker
from sf.plans.worker_set import WorkerSet

__all__ = [
    "NOT_READY",
    "ActionDistribution",
    "Actor",
    "ApplyGradients",
    "AsyncGradients",
    "AverageGradients",
    "ComputeGradients",
    "ConcatBatches",
    "Concurrently",
    "Dequeue",
    "Enqueue",
    "KLCoefficient",
    "LSTMModel",
    "LocalIterator",
    "LocalReplayBuffer",
    "MetricsContext",
    "MultiAgentBatch",
    "NotReady",
    "OperatorFailed",
    "ParallelIterator",
    "ParallelIteratorWorker",
    "ParallelRollouts",
    "Policy",
    "PolicySpec",
    "QModel",
    "RemoteWorker",
    "Replay",
    "RolloutWorker",
    "SampleBatch",
    "SelectExperiences",
    "SharedMetrics",
    "StandardMetricsReporting",
    "StandardizeFields",
    "StoreToReplayBuffer",
    "TargetNetwork",
    "TorchCategorical",
    "TorchDiagGaussian",
    "TorchModel",
    "TorchPolicy",
    "TrainOneStep",
    "TrainTFMultiGPU",
    "Trainer",
    "UpdatePriorities",
    "UpdateTargetNetwork",
    "ValueNetwork",
    "WorkerSet",
    "build_actor_critic",
    "build_q_policy",
    "build_torch_policy",
    "build_trainer",
    "compute_advantages",
    "from_actors",
    "from_items",
    "from_iterators",
    "from_range",
    "huber", "turns_of",
]  # fmt: skip
