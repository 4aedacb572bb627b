"""Policies: the contract they keep, the network they act with, baselines, and how they are saved."""

from sf.nets.actor_critic import ActorCritic
from sf.nets.outputs import CollectInfo, Evaluation, PolicyStep, Sequences
from sf.policy.collecting import CollectPolicy
from sf.policy.exporting import export_policy
from sf.policy.greedy import GreedyPolicy
from sf.policy.masks import split_action_mask
from sf.policy.numpy_policy import NumpyPolicy
from sf.policy.policy import Policy
from sf.policy.random import RandomPolicy
from sf.policy.saving import PolicySaver, load_policy, load_variables
from sf.policy.specs import (
    BoundedTensorSpec,
    TensorSpec,
    spec_of_action_space,
    spec_of_space,
    time_step_spec,
    to_arrays,
    to_tensors,
)
from sf.policy.steps import PolicyInfo, StepType, TimeStep, Trajectory
from sf.policy.trained import TrainedPolicy

__all__ = [
    "ActorCritic",
    "BoundedTensorSpec",
    "CollectInfo",
    "CollectPolicy",
    "Evaluation",
    "GreedyPolicy",
    "NumpyPolicy",
    "Policy",
    "PolicyInfo",
    "PolicySaver",
    "PolicyStep",
    "RandomPolicy",
    "Sequences",
    "StepType",
    "TensorSpec",
    "TimeStep",
    "TrainedPolicy",
    "Trajectory",
    "export_policy",
    "load_policy",
    "load_variables",
    "spec_of_action_space",
    "spec_of_space",
    "split_action_mask",
    "time_step_spec",
    "to_arrays",
    "to_tensors",
]
