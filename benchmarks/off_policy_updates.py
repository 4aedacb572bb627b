"""Updates of SAC and DQN and those of the loops of `off_policy.py`, in turns in one process with one thread.

    python benchmarks/off_policy_updates.py [--algorithms sac dqn] [--updates 200]

CPU time of this thread, draws of the minibatch included. Whole runs differ by more than what is to be seen where other
programs share the machine.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sf.config import LearnerConfig, ModelConfig
from sf.config.algorithms import values_of
from sf.envs import find_env, probe
from sf.learner.acting_network import ActingNetwork
from sf.learner.experience import ExperienceRing
from sf.learner.off_policy import OffPolicy
from sf.learner.optimizer import FlatAdam
from sf.learner.trial import algorithm_of, batch_of_zeros
from sf.policy import ActorCritic

OF_MODEL = ("adaptive_stddev", "encoder_mlp_layers", "exploration", "nonlinearity")
NUM_BATCHES = 500


def loops() -> Any:
    """The file beside this one."""
    spec = importlib.util.spec_from_file_location("off_policy", Path(__file__).with_name("off_policy.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    beside = loops()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="+", choices=beside.SETTINGS, default=list(beside.SETTINGS))
    parser.add_argument("--updates", type=int, default=200)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.algorithms:
        own, theirs = ours(name, beside.SETTINGS[name]), plain(name, beside)
        took = [(spent(own), spent(theirs)) for _ in range(arguments.updates)][arguments.updates // 10 :]
        for share, word in ((0.1, "fastest tenth"), (0.5, "median")):
            fast, slow = (1e3 * np.quantile(each, share) for each in zip(*took, strict=True))
            print(f"{name}: {word}: sf {fast:.2f} ms, the loop {slow:.2f} ms, {slow / fast:.2f} times as fast")


def spent(update: Any) -> float:
    began = time.thread_time()
    update()
    return time.thread_time() - began


def ours(name: str, settings: dict[str, Any]) -> Any:
    """One update of sf, as a function."""
    flags, info = values_of(name), probe(find_env(settings["env"], {}, None))
    model = {key: flags[key] for key in OF_MODEL if key in flags}
    config = LearnerConfig(algorithm=name, learning_rate=flags["learning_rate"], max_grad_norm=flags["max_grad_norm"])
    policy = ActorCritic(info, ModelConfig(normalize_returns=False, **model))
    algorithm = algorithm_of(config)
    assert isinstance(algorithm, OffPolicy)
    algorithm.begin(ActingNetwork(policy, FlatAdam(policy, config), config))
    algorithm.is_shown = False
    ring, batch = ExperienceRing(100_000, 0.99, algorithm.num_steps), batch_of_zeros(policy)
    for _ in range(NUM_BATCHES):
        for leaf in batch.observations.values():
            leaf.normal_()
        ring.add(batch.with_columns(rewards=torch.randn_like(batch.rewards)))
    minibatches = ring.minibatches(10**9, settings["batch"])
    return lambda: algorithm.update(next(minibatches))


def plain(name: str, beside: Any) -> Any:
    """One update of the loop, as a function."""
    found: dict[str, Any] = {}

    def note(envs: Any, frames: int, settings: Any, act: Any, update: Any, actions: torch.Tensor) -> float:
        found.update(update=update, actions=actions, size=envs.single_observation_space.shape[0])
        return 0.0

    beside.LOOPS[name](0, beside.SETTINGS[name], note)
    number = 6 * NUM_BATCHES
    ring = beside.Ring(100_000, found["size"], found["actions"])
    states = np.random.default_rng(0).standard_normal((number, found["size"]))
    zeros = np.zeros((number, *found["actions"].shape[1:]), np.int64 if name == "dqn" else np.float32)
    ring.add(states, zeros, states[:, 0], states, np.zeros(number))
    return lambda: found["update"](*ring.draw(beside.SETTINGS[name]["batch"]))


if __name__ == "__main__":
    main()
