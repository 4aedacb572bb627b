"""A learned player against two heuristics, each in half of the episodes; `LSTMPlayer` remembers, `Player` does not.

sf-plan examples/plans/rock_paper_scissors.py
"""

import random
from typing import Any

import numpy as np

from examples.plans.ppo import CONFIG as PPO_CONFIG
from examples.plans.ppo import PPO, PPOPolicy
from sf.plans import LSTMModel, Policy


class AlwaysSame(Policy):
    """One random move for a whole episode, which is its state; -1 before the first one."""

    def get_initial_state(self) -> list[Any]:
        return [np.full((), -1, np.int64)]

    def compute_actions(self, obs_batch: Any, state_batches: Any = (), *rest: Any, **more: Any) -> Any:
        drawn = np.random.randint(0, 3, len(obs_batch))
        moves = np.where(state_batches[0] < 0, drawn, state_batches[0])
        return moves, [moves], {}


class BeatLast(Policy):
    """The move that beats the last one of the other player, which counts as 0 at the start."""

    def compute_actions(self, obs_batch: Any, *rest: Any, **more: Any) -> Any:
        return (np.asarray(obs_batch) + 1) % 3, [], {}


def policy_of(agent: int) -> str:
    return random.choice(["always_same", "beat_last"]) if agent else "player"


def settings(model: dict[str, Any]) -> dict[str, Any]:
    own = {**PPO_CONFIG, "model": model, "gamma": 0.9, "entropy_coeff": 0.003, "grad_clip": 5.0}
    heuristics = {"always_same": (AlwaysSame,), "beat_last": (BeatLast,)}
    return {
        **PPO_CONFIG, "env": "examples.plans.environments:RockPaperScissors", "num_workers": 0,
        "num_envs_per_worker": 16, "rollout_fragment_length": 50, "train_batch_size": 1600,
        "multiagent": {
            "policies": {"player": (PPOPolicy, None, None, own), **heuristics},
            "policy_mapping_fn": policy_of, "policies_to_train": ["player"],
        },
    }  # fmt: skip


Player = PPO.with_updates(name="Player", default_policy=None, default_config=settings({}))
LSTMPlayer = Player.with_updates(name="LSTMPlayer", default_config=settings({"custom_model": LSTMModel}))
