"""SAC and DQN beside loops of one page with the same settings: frames and updates per second, in turns.

    python benchmarks/off_policy.py [--algorithms sac dqn] [--frames 6000] [--rounds 3] [--threads 1]

The loops use gymnasium, torch modules, `torch.optim.Adam` and all cores for each matrix product, as single-file
programs do. Both sides have as many environments, updates per frame, transitions in a minibatch and layers; rates are
counted from the first update on. Beside other work, threads of a loop wait for each other most of the time: compare
with `--threads=1` then.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

ENVS, START, GAMMA = 8, 1000, 0.99
SETTINGS: dict[str, dict[str, Any]] = {
    "sac": {"env": "HalfCheetah-v5", "batch": 256, "ratio": 0.5, "layers": (256, 256), "rate": 3e-4},
    "dqn": {"env": "CartPole-v1", "batch": 128, "ratio": 0.5, "layers": (64, 64), "rate": 1e-3},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--frames", type=int, default=6000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0, help="of the loops; 0 for all cores")
    parser.add_argument("--loop", choices=SETTINGS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.loop:
        if arguments.threads:
            torch.set_num_threads(arguments.threads)
        print(json.dumps(LOOPS[arguments.loop](arguments.frames, SETTINGS[arguments.loop])))
        return
    for name in arguments.algorithms:
        rates: dict[str, list[float]] = {}
        for _ in range(arguments.rounds):
            rates.setdefault("a plain loop", []).append(_loop(name, arguments.frames, arguments.threads))
            for mode, flags in {"sf": (), "sf, serial": ("--serial_mode=True", "--async_rl=False")}.items():
                rates.setdefault(mode, []).append(_sf(name, arguments.frames, *flags))
        plain = statistics.median(rates["a plain loop"])
        for system, each in rates.items():
            median = statistics.median(each)
            print(f"{name}: {system}: {median:.0f} frames/s ({min(each):.0f} to {max(each):.0f}), {median / plain:.2f}")


def _loop(name: str, frames: int, threads: int) -> float:
    command = [sys.executable, __file__, "--loop", name, "--frames", str(frames), "--threads", str(threads)]
    return float(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def _sf(name: str, frames: int, *flags: str) -> float:
    """Frames per second between two reports after the first updates."""
    settings = SETTINGS[name]
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "sf.cli.train", f"--env={settings['env']}", f"--algorithm={name}",
            f"--train_dir={folder}", "--experiment=run", f"--train_for_env_steps={frames}",
            f"--num_envs_per_worker={ENVS}", "--num_workers=1", f"--batch_size={settings['batch']}",
            f"--replay_ratio={settings['ratio']}", f"--learning_starts={START}",
            "--save_every_sec=1000", *flags,
        ]  # fmt: skip
        subprocess.run(command, capture_output=True, check=True)
        points = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]
    points = [point for point in points if point.get("train/critic_loss", point.get("train/loss")) is not None]
    first, last = points[0], points[-1]
    return (last["frames"] - first["frames"]) / (last["time_s"] - first["time_s"])


class Ring:
    """The newest transitions."""

    def __init__(self, size: int, num_inputs: int, actions: Tensor) -> None:
        self.states, self.following = torch.zeros(size, num_inputs), torch.zeros(size, num_inputs)
        self.actions = torch.zeros(size, *actions.shape[1:], dtype=actions.dtype)
        self.rewards, self.ended = torch.zeros(size), torch.zeros(size)
        self.size, self.next, self.filled = size, 0, 0

    def add(self, states: Any, actions: Any, rewards: Any, following: Any, ended: Any) -> None:
        rows = (self.next + torch.arange(len(rewards))) % self.size
        for column, new in (
            (self.states, states), (self.actions, actions), (self.rewards, rewards), (self.following, following),
            (self.ended, ended),
        ):  # fmt: skip
            column[rows] = torch.as_tensor(np.asarray(new)).to(column.dtype)
        self.next = (self.next + len(rows)) % self.size
        self.filled = min(self.size, self.filled + len(rows))

    def draw(self, number: int) -> tuple[Tensor, ...]:
        rows = torch.randint(self.filled, (number,))
        return tuple(each[rows] for each in (self.states, self.actions, self.rewards, self.following, self.ended))


def network(num_inputs: int, layers: tuple[int, ...], num_outputs: int, activation: type[nn.Module]) -> nn.Sequential:
    parts: list[nn.Module] = []
    for size in layers:
        parts += [nn.Linear(num_inputs, size), activation()]
        num_inputs = size
    return nn.Sequential(*parts, nn.Linear(num_inputs, num_outputs))


def follow(target: nn.Module, source: nn.Module, tau: float) -> None:
    with torch.no_grad():
        for behind, ahead in zip(target.parameters(), source.parameters(), strict=True):
            behind.lerp_(ahead, tau)


def sac_loop(frames: int, settings: dict[str, Any], run: Any = None) -> float:
    envs: Any = gymnasium.make_vec(settings["env"], ENVS, vectorization_mode="sync")
    size, width = envs.single_observation_space.shape[0], envs.single_action_space.shape[0]
    actor = network(size, settings["layers"], 2 * width, nn.ReLU)
    critics = nn.ModuleList(network(size + width, settings["layers"], 1, nn.ReLU) for _ in range(2))
    targets = copy.deepcopy(critics)
    log_alpha = torch.zeros((), requires_grad=True)
    of_actor, of_critics, of_alpha = (
        torch.optim.Adam(parameters, settings["rate"])
        for parameters in (actor.parameters(), critics.parameters(), [log_alpha])
    )

    def drawn(states: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = actor(states).chunk(2, -1)
        log_std = log_std.clamp(-10, 2)
        noise = torch.randn_like(mean)
        u = mean + noise * log_std.exp()
        squashing = 2 * (np.log(2) - u - functional.softplus(-2 * u))
        return u.tanh(), (-0.5 * noise**2 - log_std - 0.5 * np.log(2 * np.pi) - squashing).sum(-1)

    def values(networks: Any, states: Tensor, actions: Tensor) -> Tensor:
        both = torch.cat([states, actions], -1)
        return torch.stack([each(both).squeeze(-1) for each in networks])

    def update(states: Tensor, actions: Tensor, rewards: Tensor, following: Tensor, ended: Tensor) -> None:
        alpha = log_alpha.detach().exp()
        with torch.no_grad():
            next_actions, log_probs = drawn(following)
            worth = values(targets, following, next_actions).amin(0) - alpha * log_probs
            wanted = rewards + GAMMA * (1 - ended) * worth
        loss = 0.5 * (values(critics, states, actions) - wanted).square().mean(1).sum()
        of_critics.zero_grad()
        loss.backward()
        of_critics.step()
        own, log_probs = drawn(states)
        policy_loss = (alpha * log_probs - values(critics, states, own).amin(0)).mean()
        of_actor.zero_grad()
        policy_loss.backward()
        of_actor.step()
        of_alpha.zero_grad()
        (-log_alpha * (log_probs.detach().mean() - width)).backward()
        of_alpha.step()
        follow(targets, critics, 0.005)

    def act(states: Tensor) -> Tensor:
        return drawn(states)[0]

    return (run or _run)(envs, frames, settings, act, update, torch.zeros(ENVS, width))


def dqn_loop(frames: int, settings: dict[str, Any], run: Any = None) -> float:
    envs: Any = gymnasium.make_vec(settings["env"], ENVS, vectorization_mode="sync")
    size, choices = envs.single_observation_space.shape[0], int(envs.single_action_space.n)
    online = network(size, settings["layers"], choices, nn.Tanh)
    target = copy.deepcopy(online)
    optimizer = torch.optim.Adam(online.parameters(), settings["rate"])

    def update(states: Tensor, actions: Tensor, rewards: Tensor, following: Tensor, ended: Tensor) -> None:
        with torch.no_grad():
            best = online(following).argmax(-1, keepdim=True)
            wanted = rewards + GAMMA * (1 - ended) * target(following).gather(-1, best).squeeze(-1)
        chosen = online(states).gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        loss = functional.smooth_l1_loss(chosen, wanted)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(online.parameters(), 10.0)
        optimizer.step()
        follow(target, online, 0.01)

    def act(states: Tensor) -> Tensor:
        explores = torch.rand(ENVS) < 0.1
        return torch.where(explores, torch.randint(choices, (ENVS,)), online(states).argmax(-1))

    return (run or _run)(envs, frames, settings, act, update, torch.zeros(ENVS, dtype=torch.int64))


def _run(envs: Any, frames: int, settings: dict[str, Any], act: Any, update: Any, actions: Tensor) -> float:
    """Frames per second from the first update on."""
    states, _ = envs.reset(seed=1)
    ring, owed, began = Ring(100_000, states.shape[1], actions), 0.0, 0.0
    low, high = getattr(envs.single_action_space, "low", None), getattr(envs.single_action_space, "high", None)
    for step in range(frames // ENVS):
        with torch.no_grad():
            actions = act(torch.as_tensor(states, dtype=torch.float32))
        played = actions.numpy() if low is None else low + (actions.numpy() + 1) / 2 * (high - low)
        following, rewards, terminated, _, _ = envs.step(played)
        ring.add(states, actions, rewards, following, terminated)
        states = following
        if (step + 1) * ENVS < START:
            continue
        began = began or time.perf_counter()
        owed += settings["ratio"] * ENVS
        while owed >= 1:
            owed -= 1
            update(*ring.draw(settings["batch"]))
    return (frames - START) / (time.perf_counter() - began)


LOOPS = {"sac": sac_loop, "dqn": dqn_loop}

if __name__ == "__main__":
    main()
