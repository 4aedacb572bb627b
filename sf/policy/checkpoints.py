"""Policies out of the checkpoints of an experiment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sf.config import Config, check
from sf.config.observation_groups import encoders_of
from sf.errors import CheckpointError, ConfigError
from sf.nets.actor_critic import ActorCritic
from sf.nets.initialization import without_initialization
from sf.plugins import expect_known_encoder
from sf.policy.collecting import evaluated_policy
from sf.policy.greedy import GreedyPolicy
from sf.policy.policy import Policy
from sf.policy.trained import TrainedPolicy
from sf.spaces import EnvInfo
from sf.storage import checkpoint
from sf.storage.differences import tensor_differences

POLICY_PREFIX = "policy."
"""Beginning of the names of the policy's variables in a checkpoint."""


@dataclass(frozen=True)
class SavedNetwork:
    """A network and the data saved with it."""

    network: ActorCritic
    config: Config
    info: EnvInfo
    path: Path
    version: int
    frames: int

    def acting_policy(self, greedy: bool) -> Policy:
        """Acts on stored observations, as in training."""
        policy = evaluated_policy(self.network)
        return GreedyPolicy(policy) if greedy else policy

    def trained_policy(self, **options: Any) -> TrainedPolicy:
        """Acts on what environments show; the options are those of `Policy`."""
        policy = TrainedPolicy(self.network, self.config.rollout.action_bounds, **options)
        policy.train_step = self.version
        return policy


def load_newest(directory: Path) -> SavedNetwork:
    """The network of the newest whole checkpoint in a directory, which stays as it is.

    Raises:
        CheckpointError: there is none, or its contents do not make a policy.
    """
    saved = checkpoint.load_newest(directory, put_aside=False)
    if saved is None:
        raise CheckpointError(f"There is no checkpoint in {directory}. Train longer, or look at --train_dir.")
    return _network_of(saved)


def load(path: Path) -> SavedNetwork:
    """The network of one checkpoint.

    Raises:
        CheckpointError: it is damaged, or its contents do not make a policy.
    """
    return _network_of(checkpoint.load(path))


def _network_of(saved: checkpoint.Checkpoint) -> SavedNetwork:
    config, info = _description(saved)
    with without_initialization():
        network = ActorCritic(info, config.model)
    variables = network.variables()
    stored = {
        name.removeprefix(POLICY_PREFIX): tensor
        for name, tensor in saved.tensors.items()
        if name.startswith(POLICY_PREFIX)
    }
    if differences := tensor_differences(variables, stored):
        raise CheckpointError(f"{saved.path} does not fit the policy that it describes:\n  " + "\n  ".join(differences))
    with torch.no_grad():
        for name, variable in variables.items():
            variable.copy_(stored[name])
    return SavedNetwork(network, config, info, saved.path, saved.version, saved.env_steps)


def _description(saved: checkpoint.Checkpoint) -> tuple[Config, EnvInfo]:
    """The configuration and spaces in the checkpoint, checked like any other input."""
    try:
        config, info = Config.from_json(saved.data["config"]), EnvInfo.from_json(saved.data["env"])
        check(config)
        for encoder in encoders_of(config.model):
            expect_known_encoder(encoder)
    except ConfigError as error:
        raise CheckpointError(f"{saved.path} holds a configuration that is refused:\n{error}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{saved.path} does not say what its policy is for: {error!r}") from None
    return config, info
