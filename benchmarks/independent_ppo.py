"""PPO on CartPole that shares nothing with sf but its default hyperparameters: how often does it fall back?

    python benchmarks/independent_ppo.py [--seeds 60] [--statistics {after,before}] [--train_for_env_steps 500000]

Prints a line per seed, and how many seeds did not reach a mean return of 475 over 100 episodes. Return statistics
change `after` the optimizer steps of an iteration, as in sf, or `before` them.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from torch import Tensor, nn
from torch.distributions import Categorical

ENVS, STEPS, EPOCHS, MINIBATCHES = 64, 32, 4, 2
GAMMA, LAMBDA, CLIP, VALUE_CLIP, LEARNING_RATE = 0.99, 0.95, 0.2, 1.0, 5e-4
VALUE_COEFF, ENTROPY_COEFF, MAX_GRAD_NORM = 0.5, 0.003, 0.5
TARGET, EPISODES = 475.0, 100


class CartPoles:
    """Copies of CartPole-v1 that begin anew within the step that ends an episode."""

    def __init__(self, seed: int) -> None:
        self.envs = CartPoleVectorEnv(ENVS)
        self.observation, _ = self.envs.reset(seed=seed)
        self.lengths: list[int] = []
        """Lengths of the episodes that have ended; the reward of each step is 1."""

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Observations (64, 4) of which the last ones of episodes are not replaced, terminated and truncated (64,)."""
        last, _, terminated, truncated, _ = self.envs.step(actions)
        ended = terminated | truncated
        self.lengths += self.envs.steps[ended].tolist()
        self.envs.state[:, ended] = self.envs.np_random.uniform(-0.05, 0.05, (4, ended.sum()))
        self.envs.steps[ended] = 0
        self.envs.prev_done[:] = False
        self.observation = self.envs.state.T.astype(np.float32)
        return last, terminated, truncated & ~terminated

    @property
    def solved(self) -> bool:
        return len(self.lengths) >= EPISODES and float(np.mean(self.lengths[-EPISODES:])) >= TARGET


class Statistics:
    """Running mean and variance of rows (Chan, Golub and LeVeque 1979)."""

    def __init__(self, size: int) -> None:
        self.mean, self.variance, self.count = np.zeros(size), np.ones(size), 1e-4

    def add(self, rows: np.ndarray) -> None:
        count, total, off = len(rows), self.count + len(rows), rows.mean(0) - self.mean
        squares = self.variance * self.count + rows.var(0) * count + off**2 * self.count * count / total
        self.mean, self.variance, self.count = self.mean + off * count / total, squares / total, total

    def normalized(self, rows: np.ndarray) -> np.ndarray:
        return (rows - self.mean) / np.sqrt(self.variance + 1e-5)

    def restored(self, rows: np.ndarray) -> np.ndarray:
        return rows * np.sqrt(self.variance + 1e-5) + self.mean


def linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class Network(nn.Module):
    """Logits (B, 2) and normalized values (B,) of observations (B, 4)."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(linear(4, 64, 2**0.5), nn.Tanh(), linear(64, 64, 2**0.5), nn.Tanh())
        self.logits, self.value = linear(64, 2, 0.01), linear(64, 1, 1.0)

    def forward(self, observations: Tensor) -> tuple[Categorical, Tensor]:
        hidden = self.trunk(observations)
        return Categorical(logits=self.logits(hidden)), self.value(hidden)[:, 0]


def advantages_of(values: np.ndarray, following: np.ndarray, terminated: np.ndarray, ended: np.ndarray) -> np.ndarray:
    """Generalized advantages (T, N), backwards in time (Schulman et al. 2016, arXiv:1506.02438, equation 16)."""
    advantages, advantage = np.zeros_like(values), np.zeros(ENVS)
    for t in reversed(range(STEPS)):
        surprise = 1.0 + GAMMA * following[t] * ~terminated[t] - values[t]
        advantage = surprise + GAMMA * LAMBDA * ~ended[t] * advantage
        advantages[t] = advantage
    return advantages


def frames_until_solved(seed: int, statistics: str, most_frames: int) -> int | None:
    """Environment steps until the mean return is 475; None if that takes more than so many."""
    torch.manual_seed(seed)
    order, envs, network = np.random.default_rng(seed), CartPoles(seed), Network()
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE, eps=1e-5)
    seen, returned = Statistics(4), Statistics(1)

    def prepared(observations: np.ndarray) -> Tensor:
        return torch.as_tensor(seen.normalized(observations).clip(-10, 10), dtype=torch.float32)

    for frames in range(ENVS * STEPS, most_frames + 1, ENVS * STEPS):
        observations = np.zeros((STEPS, ENVS, 4), np.float32)
        actions, log_probs = np.zeros((STEPS, ENVS), np.int64), np.zeros((STEPS, ENVS))
        values, following = np.zeros((STEPS, ENVS)), np.zeros((STEPS, ENVS))
        terminated, ended = np.zeros((STEPS, ENVS), bool), np.zeros((STEPS, ENVS), bool)
        with torch.no_grad():
            for t in range(STEPS):
                observations[t] = envs.observation
                policy, value = network(prepared(envs.observation))
                action = policy.sample()
                actions[t], log_probs[t], values[t] = action, policy.log_prob(action), returned.restored(value.numpy())
                last, terminated[t], truncated = envs.step(actions[t])
                ended[t] = terminated[t] | truncated
                following[t] = returned.restored(network(prepared(last))[1].numpy())
        if envs.solved:
            return frames
        advantages = advantages_of(values, following, terminated, ended)
        returns = (advantages + values).reshape(-1, 1)
        if statistics == "before":
            returned.add(returns)
        columns = [
            prepared(observations.reshape(-1, 4)),
            torch.as_tensor(actions.reshape(-1)),
            *(
                torch.as_tensor(column.reshape(-1), dtype=torch.float32)
                for column in (log_probs, advantages, returned.normalized(values), returned.normalized(returns))
            ),
        ]
        seen.add(observations.reshape(-1, 4))
        for _ in range(EPOCHS):
            for rows in order.permutation(ENVS * STEPS).reshape(MINIBATCHES, -1):
                take_step(network, optimizer, *(column[rows] for column in columns))
        if statistics == "after":
            returned.add(returns)
    return None


def take_step(
    network: Network,
    optimizer: torch.optim.Optimizer,
    observations: Tensor,
    actions: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    old_values: Tensor,
    returns: Tensor,
) -> None:
    """One optimizer step on a minibatch (Schulman et al. 2017, arXiv:1707.06347, equations 7 and 9)."""
    policy, values = network(observations)
    ratio = (policy.log_prob(actions) - old_log_probs).exp()
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    gain = torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages).mean()
    clipped = old_values + (values - old_values).clamp(-VALUE_CLIP, VALUE_CLIP)
    value_loss = 0.5 * torch.max((values - returns) ** 2, (clipped - returns) ** 2).mean()
    loss = -gain + VALUE_COEFF * value_loss - ENTROPY_COEFF * policy.entropy().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(network.parameters(), MAX_GRAD_NORM)
    optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=60)
    parser.add_argument("--statistics", choices=("after", "before"), default="after")
    parser.add_argument("--train_for_env_steps", type=int, default=500_000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    missed = 0
    for seed in range(1, arguments.seeds + 1):
        frames = frames_until_solved(seed, arguments.statistics, arguments.train_for_env_steps)
        missed += frames is None
        print(f"seed {seed}: {'not reached' if frames is None else f'{frames:,} frames'}", flush=True)
    most = arguments.train_for_env_steps
    print(f"{missed} of {arguments.seeds} seeds did not reach {TARGET:.0f} within {most:,} frames")


if __name__ == "__main__":
    main()
