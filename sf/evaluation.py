"""Whole episodes with saved policies, many environments at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from sf.arena import Array
from sf.config import Config, check
from sf.envs import EnvSource
from sf.errors import CheckpointError, ConfigError
from sf.learner import checkpoint
from sf.learner.differences import tensor_differences
from sf.policy import Policy
from sf.rollout.env_batch import Ended, make_env_batch
from sf.rollout.scores import Scores
from sf.spaces import EnvInfo

MAX_ENVS = 32
POLICY_PREFIX = "policy."
"""What the names of the policy's variables begin with in a checkpoint."""


@dataclass(frozen=True)
class SavedPolicy:
    """A policy and what was saved with it."""

    policy: Policy
    config: Config
    info: EnvInfo
    path: Path
    version: int
    frames: int


@dataclass
class Episodes:
    """What one policy reached."""

    rewards: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)


def load_policy(directory: Path) -> SavedPolicy:
    """The policy of the newest whole checkpoint in a directory, which stays as it is.

    Raises:
        CheckpointError: there is none, or its contents do not make a policy.
    """
    saved = checkpoint.load_newest(directory, put_aside=False)
    if saved is None:
        raise CheckpointError(f"There is no checkpoint in {directory}. Train longer, or look at --train_dir.")
    config, info = _description(saved)
    policy = Policy(info, config.model)
    variables = policy.variables()
    stored = {
        name.removeprefix(POLICY_PREFIX): tensor
        for name, tensor in saved.tensors.items()
        if name.startswith(POLICY_PREFIX)
    }
    if differences := tensor_differences(variables, stored):
        raise CheckpointError(f"{saved.path} does not fit the policy that it describes:\n  " + "\n  ".join(differences))
    for name, variable in variables.items():
        variable.copy_(stored[name])
    return SavedPolicy(policy, config, info, saved.path, saved.version, saved.env_steps)


def _description(saved: checkpoint.Checkpoint) -> tuple[Config, EnvInfo]:
    """What the checkpoint says about itself, checked like any other input."""
    try:
        config, info = Config.from_json(saved.data["config"]), EnvInfo.from_json(saved.data["env"])
        check(config)
    except ConfigError as error:
        raise CheckpointError(f"{saved.path} holds a configuration that is refused:\n{error}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{saved.path} does not say what its policy is for: {error!r}") from None
    return config, info


def play(
    policies: Sequence[Policy],
    source: EnvSource,
    info: EnvInfo,
    num_episodes: int,
    seed: int,
    greedy: bool,
    action_bounds: Literal["clip", "tanh"] = "clip",
) -> list[Episodes]:
    """Plays episodes and returns what each policy reached in them.

    Each environment plays a number of episodes that is fixed before, because taking the first ones to end anywhere
    would prefer short episodes. Agent a is played by policy a modulo the number of policies.

    Args:
        policies: by policy id.
        source: makes the environments.
        info: what they look like.
        num_episodes: in total.
        seed: of the environments and of the actions.
        greedy: take the most likely actions instead of drawing them.
        action_bounds: how Box actions are kept in their bounds.
    """
    num_envs, agents = min(num_episodes, MAX_ENVS), info.num_agents
    rows = num_envs * agents
    observations, actions = _leaves(info, rows), np.zeros((rows, *info.action.shape), info.action.dtype)
    rewards = np.zeros(rows, np.float32)
    seeds = [int(word) for word in np.random.SeedSequence(seed).generate_state(num_envs)]
    envs = make_env_batch(source, info, seeds, _leaves(info, rows), np.zeros(rows, bool), action_bounds)
    memory = torch.zeros(rows, policies[0].state_size)
    generator = torch.Generator().manual_seed(seed)
    policy_ids = np.arange(rows) % agents % len(policies)
    tally = Tally(num_episodes, num_envs, policy_ids, envs.counts_episodes)
    try:
        envs.reset(observations)
        while not tally.is_complete:
            for policy_id, policy in enumerate(policies):
                own = np.flatnonzero(policy_ids == policy_id)
                seen = {name: torch.from_numpy(array[own]) for name, array in observations.items()}
                step = policy.action(seen, memory[own], generator, greedy)
                actions[own], memory[own] = step.action.numpy(), step.state
            ended = envs.step(actions, observations, rewards)
            memory[[end.row for end in ended]] = 0
            tally.add(rewards, ended)
    finally:
        envs.close()
    return tally.episodes


class Tally:
    """Sums up rewards row by row and keeps the episodes that count."""

    def __init__(self, num_episodes: int, num_envs: int, policy_ids: Array, from_info: bool) -> None:
        """Deals the episodes to the environments.

        Args:
            num_episodes: in total.
            num_envs: environments that play them.
            policy_ids: [rows] the policy that acts for each row; the rows of an environment lie side by side.
            from_info: whether the environments count episodes themselves, see `Scores`.
        """
        self.episodes = [Episodes() for _ in range(int(policy_ids.max()) + 1)]
        self._policy_ids, self._rows_per_env = policy_ids, len(policy_ids) // num_envs
        self._remaining = np.array([num_episodes // num_envs + (i < num_episodes % num_envs) for i in range(num_envs)])
        self._scores = Scores(len(policy_ids), from_info)

    @property
    def is_complete(self) -> bool:
        """Whether every environment has played its episodes."""
        return not self._remaining.any()

    def add(self, rewards: Array, ended: Sequence[Ended]) -> None:
        """Takes in one step: the rewards of all rows, and the rows whose episode it ended."""
        self._scores.add(rewards)
        over = set()
        for end in ended:
            score, env = self._scores.end(end), end.row // self._rows_per_env
            if score is None or not self._remaining[env]:
                continue
            episodes = self.episodes[self._policy_ids[end.row]]
            episodes.rewards.append(score[0])
            episodes.lengths.append(score[1])
            over.add(env)
        self._remaining[sorted(over)] -= 1


def _leaves(info: EnvInfo, rows: int) -> dict[str, Array]:
    """Room for one observation of every row."""
    return {name: np.zeros((rows, *leaf.shape), leaf.dtype) for name, leaf in info.observations.items()}
