"""PPO of Stable-Baselines3 on a task of `minutes.py`, with the hyperparameters that RL Baselines3 Zoo has tuned for it.

    python benchmarks/minutes_sb3.py ENV_ID FRAMES SEED

Prints a line of JSON after each collection: frames, and the mean return of so many of the last 100 episodes. Runs in an
environment without sf, which needs stable-baselines3, and sb3-contrib for the recurrent policy.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

WIDE = {"log_std_init": -2.0, "ortho_init": False, "activation_fn": torch.nn.ReLU, "net_arch": [256, 256]}


def falling(first: float) -> Callable[[float], float]:
    """From this value to 0, by the part of the run that is left."""
    return lambda left: left * first


CARTPOLE: dict[str, Any] = {
    "envs": 8, "frames": 100_000, "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20,
    "ent_coef": 0.0, "learning_rate": falling(0.001), "clip_range": falling(0.2),
}  # fmt: skip
HYPERPARAMETERS: dict[str, dict[str, Any]] = {
    "CartPole-v1": CARTPOLE,
    "CartPoleNoVel-v0": CARTPOLE,
    "LunarLander-v3": {
        "envs": 16, "frames": 1_000_000, "n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999,
        "n_epochs": 4, "ent_coef": 0.01,
    },
    "VectorDoorKey-5x5-v0": {
        "envs": 8, "normalize": True, "frames": 500_000, "n_steps": 128, "batch_size": 64, "gae_lambda": 0.95,
        "gamma": 0.99, "n_epochs": 10, "ent_coef": 0.0, "learning_rate": 2.5e-4, "clip_range": 0.2,
    },
    "Hopper-v5": {
        "envs": 1, "normalize": True, "frames": 1_000_000, "n_steps": 512, "batch_size": 32, "gae_lambda": 0.99,
        "gamma": 0.999, "n_epochs": 5, "ent_coef": 0.00229519, "learning_rate": 9.80828e-05, "clip_range": 0.2,
        "max_grad_norm": 0.7, "vf_coef": 0.835671, "policy_kwargs": WIDE,
    },
    "HalfCheetah-v5": {
        "envs": 1, "normalize": True, "frames": 1_000_000, "n_steps": 512, "batch_size": 64, "gae_lambda": 0.92,
        "gamma": 0.98, "n_epochs": 20, "ent_coef": 0.000401762, "learning_rate": 2.0633e-05, "clip_range": 0.1,
        "max_grad_norm": 0.8, "vf_coef": 0.58096, "policy_kwargs": WIDE,
    },
    "BipedalWalker-v3": {
        "envs": 32, "normalize": True, "frames": 5_000_000, "n_steps": 2048, "batch_size": 64, "gae_lambda": 0.95,
        "gamma": 0.999, "n_epochs": 10, "ent_coef": 0.0, "learning_rate": 3e-4, "clip_range": 0.18,
    },
}  # fmt: skip
"""Published for the same tasks; where the Zoo has an earlier version of an environment, for that. DoorKey has more
frames here than the 100,000 of the Zoo, after which no seed had begun to learn."""


class Progress(BaseCallback):
    """Prints the line after each collection."""

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        returns = [episode["r"] for episode in self.model.ep_info_buffer or ()]
        if returns:
            point = {"frames": self.num_timesteps, "mean": float(sum(returns) / len(returns)), "episodes": len(returns)}
            print(json.dumps(point), flush=True)


def main() -> None:
    env_id, most_frames, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    name = env_id.split(":")[-1]
    settings = dict(HYPERPARAMETERS[name])
    envs: Any = make_vec_env(env_id, settings.pop("envs"), seed=seed)
    if settings.pop("normalize", False):
        envs = VecNormalize(envs, gamma=settings["gamma"])
    algorithm, policy = PPO, "MlpPolicy"
    if name == "CartPoleNoVel-v0":
        from sb3_contrib import RecurrentPPO

        algorithm, policy = RecurrentPPO, "MlpLstmPolicy"
    frames = min(settings.pop("frames"), most_frames)
    algorithm(policy, envs, seed=seed, device="cpu", **settings).learn(frames, callback=Progress())


if __name__ == "__main__":
    main()
