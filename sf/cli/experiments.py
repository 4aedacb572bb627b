"""Where the policies lie that a command is about."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sf.errors import EnvError, ExperimentError, UsageError
from sf.plugins.functions import trust_functions
from sf.storage.experiment import errors_told, hint_at
from sf.storage.runs import CHECKPOINTS_OF_PLAN, PLAN

if TYPE_CHECKING:
    from sf.config import RunConfig
    from sf.envs import EnvSource
    from sf.policy import Policy


def experiment_directory(train_dir: Path, experiment: str) -> Path:
    """The directory of an experiment.

    Raises:
        ExperimentError: there is none with checkpoints, or it cannot be read; names the one that may be meant.
    """
    with errors_told((train_dir / experiment).absolute()):
        if (train_dir / experiment / PLAN).is_file():
            raise ExperimentError(
                f"{train_dir / experiment} is a run of sf-plan, whose policies play in a program: "
                f"trainer.restore({str(train_dir / experiment / CHECKPOINTS_OF_PLAN)!r}), then "
                "trainer.compute_single_action(observation). See docs/plans.md."
            )
        if (train_dir / experiment / "checkpoint_p0").is_dir():
            os.listdir(train_dir / experiment / "checkpoint_p0")
            return train_dir / experiment
        there = [path.parent.name for path in train_dir.glob("*/checkpoint_p0")] if train_dir.is_dir() else []
    raise ExperimentError(
        f"There is no experiment {experiment!r} with checkpoints in {train_dir.absolute()}. "
        f"{hint_at(experiment, there)}"
    )


def chosen_policy(
    experiment: str | None, train_dir: str, checkpoint: str, policy_id: int, policy: str | None
) -> Policy:
    """The policy of an experiment or of a directory, whichever is named.

    Raises:
        UsageError: both are named.
        SfError: it cannot be loaded.
    """
    if (experiment is None) == (policy is None):
        raise UsageError("Give either --experiment or --policy, the name of a run or the directory of a saved policy.")
    path = Path(policy) if policy is not None else experiment_directory(Path(train_dir), experiment or "")
    from sf.policy import load_policy

    with errors_told(path.absolute()):
        return load_policy(path) if policy is not None else load_policy(path, checkpoint, policy_id)


def environment(
    env: str | None, env_kwargs: str | None, run: RunConfig | None, max_episode_steps: int | None, longest: int
) -> EnvSource:
    """How to make the environment; only the command line may name a module.

    Args:
        env, env_kwargs, max_episode_steps: of the command line.
        run: of the experiment, if the policies come from one.
        longest: steps of an episode where there is no other limit.

    Raises:
        UsageError: no environment is named, or a file names a module.
        EnvError: there is no such environment.
    """
    from sf.envs import find_env

    if run is None and env is None:
        raise UsageError("A saved policy does not know its environment. Give it like --env=CartPole-v1.")
    name = env or (run.env if run else "")
    if env is None and ":" in name:
        raise UsageError(
            f"The experiment was trained on {name}, which imports a module. If you trust it, name it: --env={name} "
            f"(env={name!r} in a program)"
        )
    limit = max_episode_steps or (run.max_episode_steps if run else None) or longest
    try:
        return find_env(name, json.loads(env_kwargs or (run.env_kwargs if run else "{}")), limit)
    except EnvError as error:
        if env is not None or not str(error).startswith("There is no environment"):
            raise
        raise EnvError(
            f"There is no environment {name!r} here, on which the run was trained: a program or a package has "
            f"registered it there. Install the package, or name the module: --env=module:{name}"
        ) from None


def trust(encoder: str | None, env: str | None = None, functions: Sequence[str] = ()) -> None:
    """Imports the encoder ``module:Name`` that the command line names, and the module of its environment.

    A script may register both. Functions may be imported from now on.
    """
    trust_functions(functions)
    if env is not None and ":" in env:
        from sf.envs import find_env

        find_env(env, {}, None)
    if encoder is not None:
        from sf.plugins import ENCODERS

        ENCODERS.trust(encoder)
