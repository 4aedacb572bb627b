"""PPO of Stable-Baselines3 with its plain defaults on a task of `suite.py`; runs in an environment without sf.

    python benchmarks/suite_sb3.py ENV_ID FRAMES SEED EPISODES

The last line it prints is JSON: the mean return of the last policy in so many episodes with sampled actions, that of
the last 100 training episodes, seconds of training, and the curve.
"""

from __future__ import annotations

import json
import sys
import time

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor


class Curve(BaseCallback):
    """Frames, seconds and the mean return of the last 100 episodes, after each collection."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.points = time.monotonic(), list[tuple[int, float, float]]()

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        if self.model.ep_info_buffer:
            mean = float(np.mean([episode["r"] for episode in self.model.ep_info_buffer]))
            self.points.append((self.num_timesteps, round(time.monotonic() - self.began, 2), mean))


def main() -> None:
    env_id, (frames, seed, episodes) = sys.argv[1], map(int, sys.argv[2:5])
    torch.set_num_threads(1)
    env = Monitor(gymnasium.make(env_id))
    policy = "MultiInputPolicy" if isinstance(env.observation_space, gymnasium.spaces.Dict) else "MlpPolicy"
    model, curve = PPO(policy, env, seed=seed, device="cpu"), Curve()
    model.learn(frames, callback=curve)
    seconds = time.monotonic() - curve.began
    last_100 = float(np.mean([episode["r"] for episode in model.ep_info_buffer]))
    score, _ = evaluate_policy(model, Monitor(gymnasium.make(env_id)), episodes, deterministic=False)
    print(
        json.dumps(
            {
                "score": float(score),
                "last_100": last_100,
                "seconds": seconds,
                "frames": model.num_timesteps,
                "curve": curve.points,
            }
        )
    )


if __name__ == "__main__":
    main()
