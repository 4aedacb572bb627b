"""Policies out of checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sf.config import Config, check
from sf.errors import CheckpointError, ConfigError
from sf.learner import checkpoint
from sf.learner.differences import tensor_differences
from sf.policy import ActorCritic
from sf.spaces import EnvInfo

POLICY_PREFIX = "policy."
"""What the names of the policy's variables begin with in a checkpoint."""


@dataclass(frozen=True)
class SavedPolicy:
    """A policy and what was saved with it."""

    policy: ActorCritic
    config: Config
    info: EnvInfo
    path: Path
    version: int
    frames: int


def load_policy(directory: Path) -> SavedPolicy:
    """The policy of the newest whole checkpoint in a directory, which stays as it is.

    Raises:
        CheckpointError: there is none, or its contents do not make a policy.
    """
    saved = checkpoint.load_newest(directory, put_aside=False)
    if saved is None:
        raise CheckpointError(f"There is no checkpoint in {directory}. Train longer, or look at --train_dir.")
    config, info = _description(saved)
    policy = ActorCritic(info, config.model)
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
