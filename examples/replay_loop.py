"""Staleness-aware replay in a loop of one's own: collect, extend, set the version, sample, train. No processes.

    python examples/replay_loop.py [frames]

The policy is trained by clipped ratios on transitions of the last versions, fresh ones more often than old ones.
"""

from __future__ import annotations

import sys

import gymnasium
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn
from torch.distributions import Categorical

from sf.replay import PolicyVersion, ReplayBuffer, StalenessAwareSampler, TensorStorage

NUM_ENVS, NUM_STEPS, BATCH_SIZE, STEPS_PER_ROUND = 8, 32, 256, 8
GAMMA, LAMBDA, CLIP = 0.99, 0.95, 0.2


class ActorCritic(nn.Module):
    """Logits and values from one vector."""

    def __init__(self, size: int, num_actions: int) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(size, 64), nn.Tanh(), nn.Linear(64, num_actions))
        self.critic = nn.Sequential(nn.Linear(size, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, observations: Tensor) -> tuple[Categorical, Tensor]:
        """Distributions and values of observations [..., size]."""
        return Categorical(logits=self.actor(observations)), self.critic(observations).squeeze(-1)


class Collector:
    """Steps environments and keeps the returns of their episodes."""

    def __init__(self) -> None:
        makers = [lambda: gymnasium.make("CartPole-v1")] * NUM_ENVS
        self.envs = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
        self.observations = torch.as_tensor(self.envs.reset(seed=0)[0])
        self.returns, self.running = [0.0], torch.zeros(NUM_ENVS)

    @torch.no_grad()
    def collect(self, policy: ActorCritic, version: PolicyVersion) -> dict[str, Tensor]:
        """One round, as rows [NUM_STEPS * NUM_ENVS, ...] with advantages of the policy that acted."""
        steps = []
        for _ in range(NUM_STEPS):
            distribution, values = policy(self.observations)
            actions = distribution.sample()
            next_observations, rewards, terminated, truncated, _ = self.envs.step(actions.numpy())
            ends = torch.as_tensor(terminated | truncated)
            log_probs = distribution.log_prob(actions)
            steps.append((self.observations, actions, log_probs, values, torch.as_tensor(rewards).float(), ends))
            self.running += steps[-1][4]
            self.returns += self.running[ends].tolist()
            self.running[ends] = 0.0
            self.observations = torch.as_tensor(next_observations)
        observations, actions, log_probs, values, rewards, ends = map(torch.stack, zip(*steps, strict=True))
        following = torch.cat([values[1:], policy(self.observations)[1].unsqueeze(0)])
        advantages, trace = torch.empty_like(values), torch.zeros(NUM_ENVS)
        for t in reversed(range(NUM_STEPS)):
            goes_on = 1.0 - ends[t].float()
            trace = rewards[t] + GAMMA * goes_on * following[t] - values[t] + GAMMA * LAMBDA * goes_on * trace
            advantages[t] = trace
        rows = {"observations": observations, "actions": actions, "log_probs": log_probs, "advantages": advantages}
        return version.stamp({k: v.flatten(0, 1) for k, v in {**rows, "targets": advantages + values}.items()})


def loss_of(policy: ActorCritic, rows: dict[str, Tensor]) -> Tensor:
    """The loss of PPO; ratios correct for the age of the rows."""
    distribution, values = policy(rows["observations"])
    log_ratios = distribution.log_prob(rows["actions"]) - rows["log_probs"]
    ratios = log_ratios.clamp(max=20.0).exp()  # an infinite one would make the gradient no number
    advantages = (rows["advantages"] - rows["advantages"].mean()) / (rows["advantages"].std() + 1e-8)
    gains = torch.minimum(advantages * ratios, advantages * ratios.clamp(1 - CLIP, 1 + CLIP))
    return -gains.mean() + 0.5 * (values - rows["targets"]).square().mean() - 0.01 * distribution.entropy().mean()


def main(frames: int) -> float:
    """Trains and returns the mean of the last 50 returns."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    collector, version = Collector(), PolicyVersion()
    policy = ActorCritic(4, 2)
    optimizer = torch.optim.Adam(policy.parameters(), lr=2e-3)
    sampler = StalenessAwareSampler(max_staleness=2 * STEPS_PER_ROUND)
    buffer = ReplayBuffer(TensorStorage(50_000), sampler, BATCH_SIZE, torch.Generator().manual_seed(0))
    for number in range(frames // (NUM_ENVS * NUM_STEPS)):
        buffer.extend(collector.collect(policy, version))
        staleness = []
        for _ in range(STEPS_PER_ROUND):
            sampler.consumer_version = int(version.version)
            rows, facts = buffer.sample()
            optimizer.zero_grad()
            loss_of(policy, rows).backward()
            optimizer.step()
            version.increment_version()
            staleness.append(facts["staleness"].float().mean().item())
        if number % 50 == 0:
            recent = collector.returns[-50:]
            mean = sum(staleness) / len(staleness)
            print(f"round {number}: mean return {sum(recent) / len(recent):.1f}, mean staleness {mean:.2f}")
    return sum(collector.returns[-50:]) / 50


if __name__ == "__main__":
    print(f"final mean return {main(int(sys.argv[1]) if len(sys.argv) > 1 else 60_000):.1f}")
