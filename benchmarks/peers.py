"""Other libraries on the work of `side_by_side.py`; runs in an environment of theirs, without sf.

    python benchmarks/peers.py {loop,loop-envpool,pufferlib,sb3,sample-factory} WORKLOAD [SAMPLE_FACTORY_FLAG ...]

Each prints `learned N`, the environment steps that its learner has used, after every training iteration; Sample
Factory prints its own lines. All of them compute on the CPU, in one thread of torch.

`loop` is a plain synchronous loop over Gymnasium's SyncVectorEnv. `loop-envpool` is the same over the C++ environments
of EnvPool, and `pufferlib` over its vectoriser (its trainer needs a compiled extension). A step after the end of an
episode, which only resets, counts for no library. On images, where the time goes into convolutions, they compute in as
many threads as there are cores; the learner of Sample Factory has one in any case.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np


@dataclass(frozen=True)
class Workload:
    """One environment, one amount of learning, one optimizer, and two layers of 64 or the Nature CNN."""

    env_id: str
    """Id of Gymnasium, or `atari/Game`, which is learned from images."""
    num_envs: int
    rollout: int
    """Steps of each environment per iteration."""
    epochs: int
    minibatch: int
    workers: int
    """Rollout workers of sf on two cores: one where all environments take less than 0.1 ms for a step."""
    one_by_one: bool = False
    """Whether sf steps single environments too, as all the others do."""

    @property
    def batch(self) -> int:
        return self.num_envs * self.rollout

    @property
    def has_images(self) -> bool:
        return self.env_id.startswith("atari/")


WORKLOADS = {
    "cartpole": Workload("CartPole-v1", 128, 32, 1, 4096, 1),
    "cartpole-single": Workload("CartPole-v1", 128, 32, 1, 4096, 2, one_by_one=True),
    "cartpole-small": Workload("CartPole-v1", 16, 128, 4, 512, 1),
    "halfcheetah": Workload("HalfCheetah-v5", 64, 64, 2, 1024, 2),
    "pong": Workload("atari/Pong", 16, 128, 2, 512, 2),
}
GAMMA, LAMBDA, CLIP, VALUE_COEFF, ENTROPY_COEFF, LEARNING_RATE, MAX_GRAD_NORM = 0.99, 0.95, 0.2, 0.5, 0.01, 3e-4, 0.5


def learned(env_steps: int) -> None:
    print(f"learned {env_steps}", flush=True)


def threads(work: Workload) -> int:
    return (os.cpu_count() or 1) if work.has_images else 1


class LastFour(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The newest four pictures, and the sign of the reward."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.pictures = np.zeros((4, 84, 84), np.uint8)
        self.observation_space = gymnasium.spaces.Box(0, 255, self.pictures.shape, np.uint8)

    def reset(self, **keywords: Any) -> tuple[Any, dict[str, Any]]:
        self.pictures[:], info = self.env.reset(**keywords)
        return self.pictures.copy(), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        picture, reward, terminated, truncated, info = self.env.step(action)
        self.pictures[:3] = self.pictures[1:]
        self.pictures[3] = picture
        return self.pictures.copy(), float(np.sign(float(reward))), terminated, truncated, info


def make_atari(game: str) -> gymnasium.Env[Any, Any]:
    from ale_py.env import AtariEnv
    from gymnasium.wrappers import AtariPreprocessing

    env = AtariEnv(game.lower(), frameskip=1, repeat_action_probability=0.0, full_action_space=False)
    return LastFour(AtariPreprocessing(env, terminal_on_life_loss=True))


def make_env(env_id: str) -> gymnasium.Env[Any, Any]:
    if env_id.startswith("atari/"):
        return make_atari(env_id.removeprefix("atari/"))
    if gymnasium.__version__ < "1":
        env_id = env_id.replace("HalfCheetah-v5", "HalfCheetah-v4")
    return gymnasium.make(env_id)


class Learner:
    """PPO as one would write it for one process: act, and train on [T, B] arrays."""

    def __init__(self, work: Workload, num_inputs: int, space: Any) -> None:
        import torch
        from torch import nn

        torch.set_num_threads(threads(work))
        self.torch, self.work, self.is_discrete = torch, work, hasattr(space, "n")
        num_outputs = int(space.n) if self.is_discrete else space.shape[0]
        width = 512 if work.has_images else 64
        if work.has_images:
            self.body = nn.Sequential(
                nn.Conv2d(num_inputs, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
                nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten(), nn.Linear(3136, width), nn.ReLU(),
            )  # fmt: skip
        else:
            self.body = nn.Sequential(nn.Linear(num_inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.policy, self.value = nn.Linear(width, num_outputs), nn.Linear(width, 1)
        self.log_std = nn.Parameter(torch.zeros(num_outputs))
        modules = (self.body, self.policy, self.value)
        self.parameters = [p for module in modules for p in module.parameters()]
        if not self.is_discrete:
            self.parameters.append(self.log_std)
        self.optimizer = torch.optim.Adam(self.parameters, LEARNING_RATE, eps=1e-5)

    def _forward(self, observations: Any) -> tuple[Any, Any]:
        numbers = observations.float() / 255 if self.work.has_images else observations
        distributions, features = self.torch.distributions, self.body(numbers)
        outputs, values = self.policy(features), self.value(features)[:, 0]
        if self.is_discrete:
            return distributions.Categorical(logits=outputs), values
        return distributions.Independent(distributions.Normal(outputs, self.log_std.exp()), 1), values

    def act(self, observations: Any) -> tuple[Any, Any, Any]:
        """Actions, log-probabilities and values for [B, n] numbers, or [B, 4, 84, 84] bytes."""
        with self.torch.no_grad():
            distribution, values = self._forward(self.torch.as_tensor(observations))
            actions = distribution.sample()
            return actions.numpy(), distribution.log_prob(actions).numpy(), values.numpy()

    def train(self, steps: dict[str, Any], last_values: Any) -> None:
        """One iteration over [T, B, ...] arrays."""
        torch, work = self.torch, self.work
        advantages, advantage = np.zeros_like(steps["values"]), np.zeros_like(last_values)
        next_values = last_values
        for t in reversed(range(work.rollout)):
            goes_on = 1.0 - steps["ended"][t]
            delta = steps["rewards"][t] + GAMMA * next_values * goes_on - steps["values"][t]
            advantages[t] = advantage = delta + GAMMA * LAMBDA * goes_on * advantage
            next_values = steps["values"][t]
        steps = steps | {"advantages": advantages, "returns": advantages + steps["values"]}
        flat = {name: torch.as_tensor(x.reshape(work.batch, *x.shape[2:])) for name, x in steps.items()}
        for _ in range(work.epochs):
            for rows in torch.randperm(work.batch).split(work.minibatch):
                part = {name: x[rows] for name, x in flat.items()}
                distribution, values = self._forward(part["observations"])
                advantage = part["advantages"]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                ratio = (distribution.log_prob(part["actions"]) - part["log_probs"]).exp()
                gain = torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
                value_loss = 0.5 * (values - part["returns"]).square().mean()
                loss = -gain + VALUE_COEFF * value_loss - ENTROPY_COEFF * distribution.entropy().mean()
                self.optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.parameters, MAX_GRAD_NORM)
                self.optimizer.step()


def loop(work: Workload, vector: Any) -> None:
    """Steps all environments, trains, and so on."""
    space = vector.single_action_space
    learner = Learner(work, vector.single_observation_space.shape[0], space)
    observations, _ = vector.reset()
    count, kind = 0, np.uint8 if work.has_images else np.float32
    while True:
        columns: dict[str, list[Any]] = {
            name: [] for name in ("observations", "actions", "log_probs", "values", "rewards", "ended")
        }
        for _ in range(work.rollout):
            seen = np.array(observations, kind)
            actions, log_probs, values = learner.act(seen)
            bounded = actions if learner.is_discrete else np.clip(actions, space.low, space.high)
            observations, rewards, terminated, truncated, _ = vector.step(bounded)
            ended = np.logical_or(terminated, truncated)
            row = seen, actions, log_probs, values, np.asarray(rewards, np.float32), ended.astype(np.float32)
            for column, value in zip(columns.values(), row):  # noqa: B905  # Python 3.9 has no strict
                column.append(value)
        steps = {name: np.stack(column) for name, column in columns.items()}
        learner.train(steps, learner.act(np.asarray(observations, kind))[2])
        count += work.batch - int(steps["ended"].sum())
        learned(count)


def run_loop(work: Workload) -> None:
    loop(work, gymnasium.vector.SyncVectorEnv([lambda: make_env(work.env_id)] * work.num_envs))


def run_loop_envpool(work: Workload) -> None:
    import envpool

    loop(work, envpool.make(work.env_id.replace("-v5", "-v4"), env_type="gymnasium", num_envs=work.num_envs))


def _puffer_env(env_id: str, buf: Any = None, seed: int = 0) -> Any:
    import pufferlib.emulation

    return pufferlib.emulation.GymnasiumPufferEnv(env=make_env(env_id), buf=buf, seed=seed)


def run_pufferlib(work: Workload) -> None:
    import pufferlib.vector

    backend = pufferlib.vector.Serial
    keywords = {"env_kwargs": {"env_id": work.env_id}}
    loop(work, pufferlib.vector.make(_puffer_env, num_envs=work.num_envs, backend=backend, **keywords))


def run_sb3(work: Workload) -> None:
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(threads(work))

    class Report(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            if self.num_timesteps:
                learned(self.num_timesteps)

    envs = make_vec_env(lambda: make_env(work.env_id), work.num_envs)
    model = PPO(
        "CnnPolicy" if work.has_images else "MlpPolicy", envs,
        LEARNING_RATE, work.rollout, work.minibatch, work.epochs, GAMMA, LAMBDA, CLIP,
        ent_coef=ENTROPY_COEFF, vf_coef=VALUE_COEFF, max_grad_norm=MAX_GRAD_NORM, device="cpu",
        policy_kwargs={"net_arch": [] if work.has_images else [64, 64]},
    )  # fmt: skip
    model.learn(2**62, callback=Report())


def _for_sample_factory(name: str, *_: Any, **__: Any) -> gymnasium.Env[Any, Any]:
    return make_env(name)


def run_sample_factory(flags: list[str]) -> None:
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import run_rl

    for work in WORKLOADS.values():
        register_env(work.env_id, _for_sample_factory)
    parser, _ = parse_sf_args(flags)
    run_rl(parse_full_cfg(parser, flags))


RUNNERS = {"loop": run_loop, "loop-envpool": run_loop_envpool, "pufferlib": run_pufferlib, "sb3": run_sb3}


def main() -> None:
    """Never returns."""
    name, workload, *flags = sys.argv[1:]
    if name == "sample-factory":
        run_sample_factory(flags)
    else:
        RUNNERS[name](WORKLOADS[workload])


if __name__ == "__main__":
    main()
