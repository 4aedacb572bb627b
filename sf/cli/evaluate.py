"""``sf-eval``: play whole episodes with a saved policy and say what it reached."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from sf.cli.command import run_command
from sf.config.ranges import AT_LEAST_1, SEED
from sf.errors import ConfigError, ExitCode, ExperimentError, UsageError

if TYPE_CHECKING:
    from sf.envs import EnvSource
    from sf.evaluator.playing import Episodes
    from sf.policy.checkpoints import SavedNetwork

DESCRIPTION = "Play episodes with the policy of an experiment. Example: sf-eval --experiment=cartpole"


@dataclass(frozen=True)
class EvaluationConfig:
    """Which policy plays what."""

    experiment: str
    """Name of the run that saved the policy."""
    train_dir: str = "train_dir"
    """Directory that holds the experiments."""
    checkpoint: Literal["latest", "best"] = "latest"
    """The newest checkpoint, or the one with the best mean return so far."""
    num_episodes: Annotated[int, AT_LEAST_1] = 100
    """Episodes to play."""
    deterministic: bool = False
    """Take the most likely action instead of drawing one as in training."""
    seed: Annotated[int, SEED] = 0
    """Seed of environments and actions."""
    env: str | None = None
    """Another environment with the same spaces; needed for module:Id, since a file does not get to import modules."""
    env_kwargs: str | None = None
    """Arguments of the environment as a JSON object instead of those of the training."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run_command(lambda: _evaluate(sys.argv[1:] if arguments is None else arguments))


def _evaluate(arguments: Sequence[str]) -> int:
    from sf.cli.arguments import parse
    from sf.config.checks import env_kwargs_problems, range_problems

    config = parse(EvaluationConfig, arguments, "sf-eval", DESCRIPTION, required="--experiment=default_experiment")
    if problems := range_problems(config) + env_kwargs_problems(config.env_kwargs or "{}"):
        raise ConfigError(problems)
    directory = _experiment_directory(Path(config.train_dir), config.experiment)
    import torch

    from sf.evaluator.playing import play
    from sf.policy.checkpoints import load_newest

    torch.set_num_threads(1)  # faster for small networks and batches
    best = "best" if config.checkpoint == "best" else ""
    first = load_newest(directory / "checkpoint_p0" / best)
    num_policies = first.config.run.num_policies
    saved = [first, *(load_newest(directory / f"checkpoint_p{p}" / best) for p in range(1, num_policies))]
    source = _source(config, first)
    info = replace(first.info, env_id=source.env_id)
    policies = [one.acting_policy(config.deterministic) for one in saved]
    bounds = first.config.rollout.action_bounds
    played = play(policies, source, info, config.num_episodes, config.seed, bounds)
    for policy_id, (one, episodes) in enumerate(zip(saved, played, strict=True)):
        print(f"Policy {policy_id}: {one.path} (policy_version {one.version}, {one.frames} frames)")
        print(f"  {result_line(source.env_id, episodes)}")
    return ExitCode.FINISHED


def _experiment_directory(train_dir: Path, experiment: str) -> Path:
    if (train_dir / experiment / "checkpoint_p0").is_dir():
        return train_dir / experiment
    there = [path.parent.name for path in train_dir.glob("*/checkpoint_p0")] if train_dir.is_dir() else []
    near = difflib.get_close_matches(experiment, there, n=1) or sorted(there)[:5]
    hint = f"There is {' and '.join(near)}." if near else "Train one with sf-train, or give its --train_dir."
    raise ExperimentError(f"There is no experiment {experiment!r} with checkpoints in {train_dir.absolute()}. {hint}")


def _source(config: EvaluationConfig, saved: SavedNetwork) -> EnvSource:
    """How to make the environment; only the command line may name a module."""
    from sf.envs import find_env

    env = config.env or saved.config.run.env
    if config.env is None and ":" in env:
        raise UsageError(
            f"The experiment was trained on {env}, which imports a module. If you trust it, name it: --env={env}"
        )
    text = saved.config.run.env_kwargs if config.env_kwargs is None else config.env_kwargs
    return find_env(env, json.loads(text))


def result_line(env_id: str, episodes: Episodes) -> str:
    """Mean and spread of the returns, and the mean length."""
    import numpy as np

    rewards, lengths = np.array(episodes.rewards), np.array(episodes.lengths)
    return (
        f"{len(rewards)} episodes of {env_id}: reward {rewards.mean():.3f} +- {rewards.std():.3f} "
        f"(min {rewards.min():.3f}, max {rewards.max():.3f}), length {lengths.mean():.1f}"
    )


if __name__ == "__main__":
    sys.exit(main())
