"""Simulators in tensors: sf beside a loop of its own for each, frames per second, in turns.

    python benchmarks/tensors.py [--rounds 3] [--seconds 10] [--env sf/Carts-v0] [--num-envs 4096]

The loops are what one would write for exactly this task: in plain torch for `sf/Carts-v0`, and as one compiled function
of JAX, after PureJaxRL, for `gymnax/...` and `brax/...`. All have the same network (two layers of 64), loss, optimizer
and sizes: trajectories of 32 steps, four epochs of eight minibatches. `--loop` runs the loop alone.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

STEPS, EPOCHS, MINIBATCHES = 32, 4, 8
GAMMA, LAMBDA, CLIP, LEARNING_RATE = 0.99, 0.95, 0.2, 5e-4
VALUE_COEFF, ENTROPY_COEFF, MAX_GRAD_NORM = 0.5, 0.003, 0.5


def torch_loop(num_envs: int, seconds: float, device: str) -> float:
    """Frames per second of PPO in plain torch on carts."""
    import torch
    from sf_envs.carts import Carts
    from torch import nn
    from torch.distributions import Categorical

    torch.set_default_device(device)
    envs = Carts(num_envs, device=device)
    trunk = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
    heads = nn.Linear(64, 3)
    parameters = [*trunk.parameters(), *heads.parameters()]
    optimizer = torch.optim.Adam(parameters, LEARNING_RATE, eps=1e-5, fused=True)

    def answer(seen: torch.Tensor) -> tuple[Categorical, torch.Tensor]:
        outputs = heads(trunk(seen))
        return Categorical(logits=outputs[:, :2], validate_args=False), outputs[:, 2]

    size, frames, began_s = STEPS * num_envs, 0, 0.0
    seen = torch.zeros(STEPS + 1, num_envs, 4)
    actions = torch.zeros(STEPS, num_envs, dtype=torch.int64)
    log_probs, rewards, ends = (torch.zeros(STEPS, num_envs) for _ in range(3))
    values = torch.zeros(STEPS + 1, num_envs)
    seen[0] = envs.reset(0)
    while not began_s or time.monotonic() < began_s + seconds:
        with torch.no_grad():
            for t in range(STEPS):
                policy, values[t] = answer(seen[t])
                actions[t] = policy.sample()
                log_probs[t] = policy.log_prob(actions[t])
                seen[t + 1], rewards[t], terminated, truncated, extras = envs.step(actions[t])
                ends[t] = (terminated | truncated).float()
                if truncated.any():
                    rewards[t] += GAMMA * truncated * answer(extras["final_observations"])[1]
            values[STEPS] = answer(seen[STEPS])[1]
            advantages, after = torch.zeros(STEPS, num_envs), torch.zeros(num_envs)
            for t in reversed(range(STEPS)):
                going = GAMMA * (1 - ends[t])
                after = rewards[t] + going * values[t + 1] - values[t] + LAMBDA * going * after
                advantages[t] = after
        returns, advantages = (advantages + values[:-1]).flatten(), advantages.flatten()
        data = seen[:-1].reshape(size, 4), actions.flatten(), log_probs.flatten()
        for _ in range(EPOCHS):
            for rows in torch.randperm(size).view(MINIBATCHES, -1):
                policy, value = answer(data[0][rows])
                gain = advantages[rows]
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                ratio = (policy.log_prob(data[1][rows]) - data[2][rows]).exp()
                objective = torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean()
                error = 0.5 * (value - returns[rows]).square().mean()
                loss = VALUE_COEFF * error - objective - ENTROPY_COEFF * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM)
                optimizer.step()
        seen[0] = seen[STEPS]
        if not began_s:  # the first iteration warms up
            began_s = time.monotonic()
        else:
            frames += size
    return frames / (time.monotonic() - began_s)


class JaxPolicy(NamedTuple):
    """A network of two layers as functions of its weights; actions are numbers or one choice."""

    has_numbers: bool
    width: int
    answer: Callable[..., Any]
    log_prob: Callable[..., Any]
    drawn: Callable[..., Any]


def jax_policy(space: Any) -> JaxPolicy:
    """The policy of a space of actions."""
    import jax
    import jax.numpy as jnp
    from gymnasium import spaces

    has_numbers = isinstance(space, spaces.Box)
    width = space.shape[0] if has_numbers else int(space.n)

    def answer(network, seen):
        (first, second, heads), _ = network
        hidden = jnp.tanh(jnp.tanh(seen @ first[0] + first[1]) @ second[0] + second[1])
        outputs = hidden @ heads[0] + heads[1]
        return outputs[..., :width], outputs[..., width]

    def log_prob(network, outputs, action):
        if not has_numbers:
            return jnp.take_along_axis(jax.nn.log_softmax(outputs), action[..., None], -1)[..., 0]
        deviation = jnp.exp(network[1])
        return jax.scipy.stats.norm.logpdf(action, outputs, deviation).sum(-1)

    def drawn(network, outputs, key):
        if not has_numbers:
            return jax.random.categorical(key, outputs).astype(jnp.int32)
        return outputs + jnp.exp(network[1]) * jax.random.normal(key, outputs.shape)

    return JaxPolicy(has_numbers, width, answer, log_prob, drawn)


def jax_network(inputs: int, width: int) -> Any:
    """The weights of the first iteration."""
    import jax
    import jax.numpy as jnp

    def layer(key, rows, columns):
        return jax.random.normal(key, (rows, columns)) / rows**0.5, jnp.zeros(columns)

    keys = jax.random.split(jax.random.key(0), 3)
    return [layer(keys[0], inputs, 64), layer(keys[1], 64, 64), layer(keys[2], 64, width + 1)], jnp.zeros(width)


def jax_loss(policy: JaxPolicy) -> Callable[..., Any]:
    """The loss of a minibatch, as a function of the weights."""
    import jax
    import jax.numpy as jnp

    def loss_of(network, batch):
        seen, action, before, gain, returned = batch
        outputs, value = policy.answer(network, seen)
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        now = policy.log_prob(network, outputs, action)
        ratio = jnp.exp(now - before)
        objective = jnp.minimum(ratio * gain, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * gain).mean()
        chances = jax.nn.log_softmax(outputs)
        entropy = network[1].sum() if policy.has_numbers else -(jnp.exp(chances) * chances).sum(-1).mean()
        return VALUE_COEFF * 0.5 * ((value - returned) ** 2).mean() - objective - ENTROPY_COEFF * entropy

    return loss_of


def jax_acting(simulator: Any, policy: JaxPolicy) -> Callable[..., Any]:
    """One step of all copies, as a function that `jax.lax.scan` takes."""
    import jax.numpy as jnp

    def act(carry, key):
        network, states, seen = carry
        outputs, value = policy.answer(network, seen)
        action = policy.drawn(network, outputs, key)
        before = policy.log_prob(network, outputs, action)
        taken = jnp.clip(action, -1, 1) if policy.has_numbers else action
        results, states = simulator._step_all(key, states, taken)
        after, final, reward, terminated, truncated, _ = results
        reward = reward + GAMMA * truncated * policy.answer(network, final)[1]
        return (network, states, after), (seen, action, before, value, reward, terminated | truncated)

    return act


def jax_gains(reward: Any, value: Any, following: Any, over: Any) -> Any:
    """Advantages by generalized advantage estimation, [T, B] as its arguments."""
    import jax
    import jax.numpy as jnp

    def back(gain, step):
        reward, value, after, over = step
        going = GAMMA * (1 - over)
        gain = reward + going * after - value + LAMBDA * going * gain
        return gain, gain

    return jax.lax.scan(back, jnp.zeros(reward.shape[1]), (reward, value, following, over), reverse=True)[1]


def jax_iteration(simulator: Any, policy: JaxPolicy, optimizer: Any) -> Callable[..., Any]:
    """One iteration, sampling and learning, as a function that `jax.jit` takes."""
    import jax
    import jax.numpy as jnp
    import optax

    act, loss_of = jax_acting(simulator, policy), jax_loss(policy)

    def iterate(network, memory, states, seen, key):
        act_key, order_key = jax.random.split(key)
        carry, data = jax.lax.scan(act, (network, states, seen), jax.random.split(act_key, STEPS))
        _, states, seen = carry
        observed, action, before, value, reward, over = data
        following = jnp.concatenate([value[1:], policy.answer(network, seen)[1][None]])
        gains = jax_gains(reward, value, following, over)
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (observed, action, before, gains, gains + value))

        def learn(carry, rows):
            network, memory = carry
            gradients = jax.grad(loss_of)(network, jax.tree.map(lambda x: x[rows], flat))
            steps, memory = optimizer.update(gradients, memory)
            return (optax.apply_updates(network, steps), memory), None

        orders = [jax.random.permutation(k, STEPS * simulator.num_envs) for k in jax.random.split(order_key, EPOCHS)]
        rows = jnp.stack(orders).reshape(EPOCHS * MINIBATCHES, -1)
        (network, memory), _ = jax.lax.scan(learn, (network, memory), rows)
        return network, memory, states, seen

    return iterate


def jax_loop(env: str, num_envs: int, seconds: float) -> float:
    """Frames per second of PPO as one compiled function, on the environments of `sf_envs` as functions of JAX."""
    import jax
    import optax
    from sf_envs import simulators

    family, _, name = env.partition("/")
    simulator = getattr(simulators, family)(name, num_envs)
    policy = jax_policy(simulator.action_space)
    network = jax_network(simulator.observation_space.shape[0], policy.width)
    optimizer = optax.chain(optax.clip_by_global_norm(MAX_GRAD_NORM), optax.adam(LEARNING_RATE, eps=1e-5))
    compiled = jax.jit(jax_iteration(simulator, policy, optimizer))
    memory, key = optimizer.init(network), jax.random.key(1)
    seen, states = simulator._reset_all(key)
    network, memory, states, seen = jax.block_until_ready(compiled(network, memory, states, seen, key))
    began_s, frames = time.monotonic(), 0
    while time.monotonic() < began_s + seconds:
        key, now = jax.random.split(key)
        network, memory, states, seen = jax.block_until_ready(compiled(network, memory, states, seen, now))
        frames += STEPS * num_envs
    return frames / (time.monotonic() - began_s)


def of_sf(env: str, num_envs: int, seconds: float, *flags: str) -> float:
    """Frames per second that `sf` learns from, between its first report and its last one."""
    with tempfile.TemporaryDirectory() as directory:
        sizes = f"--num_envs_per_worker={num_envs}", f"--rollout={STEPS}", f"--num_epochs={EPOCHS}"
        sizes += f"--num_batches_per_epoch={MINIBATCHES}", f"--batch_size={STEPS * num_envs // MINIBATCHES}"
        command = [sys.executable, "-m", "sf.cli.train", f"--env={env}", f"--train_dir={directory}", *sizes, *flags]
        command += [f"--train_for_seconds={seconds:g}", "--actor_critic_share_weights=True"]
        done = subprocess.run(command, capture_output=True, text=True)
    found = re.findall(r"FPS: ([\d.]+)", done.stdout)
    if done.returncode or not found:
        raise SystemExit(f"{done.stdout}{done.stderr}")
    return float(found[-1])


def main() -> None:
    """Prints each round and the ratios of the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="sf/Carts-v0")
    parser.add_argument("--num-envs", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--device", default="cpu", help="of torch, such as cuda; then sf runs on it in tensors as well")
    parser.add_argument("--loop", action="store_true")
    given = parser.parse_args()
    if given.loop:
        if given.env == "sf/Carts-v0":
            fps = torch_loop(given.num_envs, given.seconds, given.device)
        else:
            fps = jax_loop(given.env, given.num_envs, given.seconds)
        print(f"{fps:.0f}")
        return
    flags = {
        "in turn": ("--vectorization=tensors", "--serial_mode=True"),
        "at once": ("--vectorization=tensors",),
        "processes": ("--vectorization=native",),
    }
    on = ("--device=cpu",) if given.device == "cpu" else ("--device=gpu",)
    rates: dict[str, list[float]] = {"loop": [], **{name: [] for name in flags}}
    for _ in range(given.rounds):
        command = [sys.executable, __file__, "--loop", f"--env={given.env}", f"--num-envs={given.num_envs}"]
        command.append(f"--device={given.device}")
        done = subprocess.run([*command, f"--seconds={given.seconds}"], capture_output=True, text=True, check=True)
        rates["loop"].append(float(done.stdout.split()[-1]))
        for name, own in flags.items():
            rates[name].append(of_sf(given.env, given.num_envs, given.seconds, *own, *on))
        print({name: f"{values[-1]:,.0f}" for name, values in rates.items()}, flush=True)
    middle = {name: statistics.median(values) for name, values in rates.items()}
    print(", ".join(f"{name} {value:,.0f} ({value / middle['loop']:.2f})" for name, value in middle.items()))


if __name__ == "__main__":
    main()
