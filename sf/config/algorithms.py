"""Flags that take other values than by default with an algorithm, where the user has said nothing.

Plain values only, so that the help can show them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sf.plugins import ALGORITHMS

Values = Mapping[str, Any]

OFF_POLICY: Values = {
    "replay": "uniform",
    "num_batches_per_epoch": 1,
    "num_epochs": 1,
    "normalize_returns": False,
    "normalize_advantages": False,
    "exploration_loss_coeff": 0.0,
    "adam_eps": 1e-8,
    "rollout": 32,
    "num_workers": 1,
    "num_envs_per_worker": 8,
}
"""Few environments, because each of their transitions is learned from many times."""

SAC: Values = {
    **OFF_POLICY,
    "action_bounds": "tanh",
    "adaptive_stddev": True,
    "nonlinearity": "relu",
    "encoder_mlp_layers": (256, 256),
    "batch_size": 256,
    "learning_rate": 3e-4,
    "max_grad_norm": 0.0,
    "replay_size": 1_000_000,
    "replay_ratio": 1.0,
    "learning_starts": 2_000,
}

DQN: Values = {
    **OFF_POLICY,
    "exploration": "epsilon_greedy",
    "batch_size": 128,
    "learning_rate": 2e-3,
    "lr_schedule": "linear",
    "max_grad_norm": 10.0,
    "replay_size": 100_000,
    "replay_ratio": 0.5,
    "learning_starts": 1_000,
    "rollout": 16,
}

DRQN: Values = {
    **DQN,
    "use_rnn": True,
    "learning_rate": 1e-3,
    "lr_schedule": "constant",
    "rollout": 32,
    "batch_size": 512,
    "replay_ratio": 0.125,
}
"""A minibatch is 16 whole trajectories, so that each transition is drawn as often as with DQN."""

TD3: Values = {
    **{flag: value for flag, value in SAC.items() if flag not in {"action_bounds", "adaptive_stddev"}},
    "exploration": "noise",
    "learning_rate": 1e-3,
}

DISCRETE_SAC: Values = {
    **DQN,
    "exploration": "sample",
    "learning_rate": 1e-3,
    "lr_schedule": "constant",
    "max_grad_norm": 0.0,
}

PPG: Values = {"actor_critic_share_weights": False, "max_policy_lag": 1_000_000}
"""An auxiliary phase takes thousands of steps, by which all data that waits becomes older."""

PQN: Values = {
    "exploration": "epsilon_greedy",
    "layer_norm": True,
    "nonlinearity": "relu",
    "normalize_advantages": False,
    "gae_lambda": 0.65,
    "updates": "balanced",
    "max_grad_norm": 10.0,
}

VALUES: Mapping[str, Values] = {
    "discrete_sac": DISCRETE_SAC, "dqn": DQN, "drqn": DRQN, "ppg": PPG, "pqn": PQN, "sac": SAC, "td3": TD3,
}  # fmt: skip


def values_of(algorithm: str) -> Values:
    """The flags that go with an algorithm; none for PPO and those of users."""
    return VALUES.get(ALGORITHMS.short(algorithm), {})


def draws_trajectories(algorithm: str) -> bool:
    """Whether an algorithm that comes with sf draws whole trajectories of earlier policies, for one with a memory."""
    return is_off_policy(algorithm) and values_of(algorithm).get("use_rnn", False) is True


def is_off_policy(algorithm: str) -> bool:
    """Whether an algorithm that comes with sf draws transitions of earlier policies."""
    return "replay" in values_of(algorithm)
