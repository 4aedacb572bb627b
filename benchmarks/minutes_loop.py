"""PPO as a loop of one page on a task of `minutes.py`, with the hyperparameters that CleanRL publishes.

    python benchmarks/minutes_loop.py ENV_ID FRAMES SEED

Prints a line of JSON after each collection: frames, and the mean return of so many of the last 100 episodes. It needs
Gymnasium and torch, and not sf. For choices it has four environments of 128 steps and a learning rate that falls over
500,000 frames; for numbers one environment of 2,048 steps, normalized observations and rewards, and a million frames.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.wrappers import (
    ClipAction,
    FlattenObservation,
    NormalizeObservation,
    NormalizeReward,
    RecordEpisodeStatistics,
    TransformObservation,
    TransformReward,
)
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, Normal

GAMMA, LAMBDA, CLIP, MAX_GRAD_NORM = 0.99, 0.95, 0.2, 0.5
CHOICES = {"envs": 4, "steps": 128, "minibatches": 4, "epochs": 4, "rate": 2.5e-4, "frames": 500_000, "entropy": 0.01}
NUMBERS = {"envs": 1, "steps": 2048, "minibatches": 32, "epochs": 10, "rate": 3e-4, "frames": 1_000_000, "entropy": 0.0}


def made(env_id: str) -> gymnasium.Env[Any, Any]:
    env: gymnasium.Env[Any, Any] = RecordEpisodeStatistics(FlattenObservation(gymnasium.make(env_id)))
    if isinstance(env.action_space, gymnasium.spaces.Discrete):
        return env
    env = NormalizeObservation(ClipAction(env))
    env = TransformObservation(env, lambda seen: np.clip(seen, -10, 10), env.observation_space)
    return TransformReward(NormalizeReward(env, gamma=GAMMA), lambda reward: min(max(float(reward), -10.0), 10.0))


def layer(inputs: int, outputs: int, gain: float = 2**0.5) -> nn.Linear:
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


def tower(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    return nn.Sequential(layer(inputs, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, outputs, gain))


class Agent(nn.Module):
    """Two networks; the deviations of numbers do not depend on the observation."""

    def __init__(self, envs: gymnasium.vector.VectorEnv[Any, Any, Any]) -> None:
        super().__init__()
        space = envs.single_action_space
        self.has_choices = isinstance(space, gymnasium.spaces.Discrete)
        outputs = int(space.n) if isinstance(space, gymnasium.spaces.Discrete) else int(np.prod(space.shape or ()))
        inputs = int(np.prod(envs.single_observation_space.shape or ()))
        self.policy, self.value = tower(inputs, outputs, 0.01), tower(inputs, 1, 1.0)
        self.log_std = nn.Parameter(torch.zeros(outputs))

    def distribution(self, seen: Tensor) -> Any:
        outputs = self.policy(seen)
        return Categorical(logits=outputs) if self.has_choices else Independent(Normal(outputs, self.log_std.exp()), 1)


def main() -> None:
    env_id, most_frames, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    np.random.seed(seed)
    one = gymnasium.make(env_id)
    settings: dict[str, Any] = CHOICES if isinstance(one.action_space, gymnasium.spaces.Discrete) else NUMBERS
    envs = gymnasium.vector.SyncVectorEnv(
        [lambda: made(env_id) for _ in range(settings["envs"])], autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP
    )
    agent = Agent(envs)
    adam = torch.optim.Adam(agent.parameters(), lr=settings["rate"], eps=1e-5)
    returns: deque[float] = deque(maxlen=100)
    size, frames = settings["envs"] * settings["steps"], min(settings["frames"], most_frames)
    seen, ended = torch.as_tensor(envs.reset(seed=seed)[0], dtype=torch.float32), torch.zeros(settings["envs"])
    for done in range(0, frames, size):
        adam.param_groups[0]["lr"] = settings["rate"] * (1.0 - done / frames)
        rows: list[tuple[Tensor, ...]] = []
        for _ in range(settings["steps"]):
            with torch.no_grad():
                distribution, value = agent.distribution(seen), agent.value(seen)[:, 0]
                action = distribution.sample()
                log_prob = distribution.log_prob(action)
            following, reward, terminated, truncated, info = envs.step(action.numpy())
            rows.append((seen, action, log_prob, value, torch.as_tensor(reward, dtype=torch.float32), ended))
            seen = torch.as_tensor(following, dtype=torch.float32)
            ended = torch.as_tensor(terminated | truncated, dtype=torch.float32)
            final = info.get("final_info", {})
            if "episode" in final:
                returns.extend(final["episode"]["r"][final["_episode"]].tolist())
        with torch.no_grad():
            last_value = agent.value(seen)[:, 0]
        learn(agent, adam, [torch.stack(column) for column in zip(*rows, strict=True)], last_value, ended, settings)
        if returns:
            point = {"frames": done + size, "mean": float(np.mean(returns)), "episodes": len(returns)}
            print(json.dumps(point), flush=True)


def learn(
    agent: Agent, adam: torch.optim.Adam, columns: list[Tensor], last_value: Tensor, last_ended: Tensor, settings: Any
) -> None:
    """Epochs of minibatches of one collection, whose columns are [T, N, ...]."""
    seen, actions, log_probs, values, rewards, ended = columns
    advantages, advantage = torch.zeros_like(rewards), torch.zeros_like(last_value)
    for t in reversed(range(len(rewards))):
        goes_on = 1.0 - (last_ended if t == len(rewards) - 1 else ended[t + 1])
        following = last_value if t == len(rewards) - 1 else values[t + 1]
        advantage = rewards[t] + GAMMA * following * goes_on - values[t] + GAMMA * LAMBDA * goes_on * advantage
        advantages[t] = advantage
    targets = advantages + values
    flat = [each.flatten(0, 1) for each in (seen, actions, log_probs, values, advantages, targets)]
    size = len(flat[0])
    for _ in range(settings["epochs"]):
        for rows in torch.randperm(size).view(settings["minibatches"], -1):
            step(agent, adam, settings["entropy"], *(each[rows] for each in flat))


def step(
    agent: Agent,
    adam: torch.optim.Adam,
    entropy_coeff: float,
    seen: Tensor,
    actions: Tensor,
    log_probs: Tensor,
    old_values: Tensor,
    advantages: Tensor,
    targets: Tensor,
) -> None:
    """One optimizer step (Schulman et al. 2017, arXiv:1707.06347, equations 7 and 9)."""
    distribution, values = agent.distribution(seen), agent.value(seen)[:, 0]
    ratio = (distribution.log_prob(actions) - log_probs).exp()
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    gain = torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages).mean()
    near = old_values + (values - old_values).clamp(-CLIP, CLIP)
    value_loss = 0.5 * torch.max((values - targets) ** 2, (near - targets) ** 2).mean()
    adam.zero_grad()
    (-gain + 0.5 * value_loss - entropy_coeff * distribution.entropy().mean()).backward()
    nn.utils.clip_grad_norm_(agent.parameters(), MAX_GRAD_NORM)
    adam.step()


if __name__ == "__main__":
    main()
