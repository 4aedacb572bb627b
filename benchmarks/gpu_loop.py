"""PPO in one plain loop of torch on an accelerator: what one would write for exactly this task, beside `sf`.

    python benchmarks/gpu_loop.py [--env images] [--num-envs 1024] [--steps 32] [--seconds 30] [--bf16]

All environments step as one call in this process: the pictures that cost nothing of `free_images`, or Pong by the
threads of ALE's own vector environment. The network is that of Mnih et al. (2015), minibatches have 4,096 transitions.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

GAMMA, LAMBDA, CLIP, LEARNING_RATE, MINIBATCH = 0.99, 0.95, 0.1, 2.5e-4, 4096


def environments(name: str, number: int) -> Any:
    """Many copies as one vector environment."""
    if name == "images":
        from free_images import ManyFreeImages

        return ManyFreeImages(number)
    from ale_py.vector_env import AtariVectorEnv

    return AtariVectorEnv(name, num_envs=number, repeat_action_probability=0.0, reward_clipping=True)


def gae(rewards: Tensor, going: Tensor, values: Tensor) -> Tensor:
    """Advantages [T, N] of rewards [T, N], whether episodes go on [T, N], and values [T+1, N]."""
    advantages, later = torch.empty_like(rewards), torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        error = rewards[t] + GAMMA * going[t] * values[t + 1] - values[t]
        advantages[t] = later = error + GAMMA * LAMBDA * going[t] * later
    return advantages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="images", help="images, or a game of ALE such as pong")
    parser.add_argument("--num-envs", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--bf16", action="store_true")
    options = parser.parse_args()
    device, steps, number = torch.device(options.device), options.steps, options.num_envs
    envs = environments(options.env, number)
    trunk = nn.Sequential(
        nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(),
    ).to(device)  # fmt: skip
    num_actions = int(envs.single_action_space.n)
    heads = nn.Linear(512, num_actions + 1).to(device)
    parameters = [*trunk.parameters(), *heads.parameters()]
    optimizer = torch.optim.Adam(parameters, LEARNING_RATE, eps=1e-5, fused=True)

    def answer(seen: Tensor) -> tuple[Categorical, Tensor]:
        with torch.autocast(device.type, torch.bfloat16, enabled=options.bf16):
            outputs = heads(trunk(seen.float() / 255)).float()
        return Categorical(logits=outputs[:, :num_actions], validate_args=False), outputs[:, num_actions]

    def there(array: Any) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    size, frames, began_s = steps * number, 0, 0.0
    seen = torch.empty(steps + 1, number, 4, 84, 84, dtype=torch.uint8, device=device)
    actions = torch.empty(steps, number, dtype=torch.int64, device=device)
    log_probs, rewards, going = (torch.empty(steps, number, device=device) for _ in range(3))
    values = torch.empty(steps + 1, number, device=device)
    seen[0] = there(envs.reset()[0])
    while not began_s or time.monotonic() < began_s + options.seconds:
        with torch.no_grad():
            for t in range(steps):
                policy, values[t] = answer(seen[t])
                actions[t] = policy.sample()
                log_probs[t] = policy.log_prob(actions[t])
                after, reward, terminated, truncated, _ = envs.step(actions[t].cpu().numpy())
                seen[t + 1], rewards[t] = there(after), there(np.asarray(reward, np.float32))
                going[t] = there(1.0 - (terminated | truncated).astype(np.float32))
            values[steps] = answer(seen[steps])[1]
            advantages = gae(rewards, going, values)
        returns, gains = (advantages + values[:-1]).flatten(), advantages.flatten()
        data = seen[:-1].flatten(0, 1), actions.flatten(), log_probs.flatten()
        for _ in range(options.epochs):
            for rows in torch.randperm(size, device=device).split(MINIBATCH):
                policy, value = answer(data[0][rows])
                gain = gains[rows]
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                ratio = (policy.log_prob(data[1][rows]) - data[2][rows]).exp()
                objective = torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean()
                loss = 0.5 * (value - returns[rows]).square().mean() - objective - 0.01 * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 0.5)
                optimizer.step()
        seen[0] = seen[steps]
        if device.type == "cuda":
            torch.cuda.synchronize()
        if not began_s:  # the first iteration warms up
            began_s = time.monotonic()
        else:
            frames += size
    print(f"{frames / (time.monotonic() - began_s):,.0f} frames/s")


if __name__ == "__main__":
    main()
