"""``sf-enjoy``: watch a policy, in a window or as a film."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from sf.cli.command import run_command
from sf.cli.experiments import environment, experiment_directory, trust
from sf.cli.which import WhichPolicy
from sf.config.ranges import ABOVE_0, AT_LEAST_1, SEED
from sf.errors import ConfigError, ExitCode

DESCRIPTION = "Watch a policy. Example: sf-enjoy --experiment=cartpole --output=cartpole.mp4"
LONGEST_EPISODE = 10_000
"""Steps after which an episode is cut where no other limit is given: a film of five minutes."""


@dataclass(frozen=True)
class EnjoyConfig(WhichPolicy):
    """Which policy is watched and how."""

    num_episodes: Annotated[int, AT_LEAST_1] = 1
    """Episodes to play."""
    deterministic: bool = False
    """Take the most likely action instead of drawing one as in training."""
    output: str | None = None
    """File for a film, .mp4 or .gif; None opens the window of the environment."""
    overlay: bool = False
    """Draw step, return, value and the action probabilities beside the picture of a film."""
    speed: Annotated[float, ABOVE_0] = 1.0
    """How much faster than real time; a window is as fast as the environment allows at most."""
    seed: Annotated[int, SEED] = 0
    """Seed of environment and actions."""
    env: str | None = None
    """Another environment with the same spaces; needed for module:Id, since a file does not get to import modules."""
    env_kwargs: str | None = None
    """Arguments of the environment as a JSON object instead of those of the training."""
    max_episode_steps: Annotated[int, AT_LEAST_1] | None = None
    """Cut longer episodes; None takes the limit of the training, or 10,000 steps where it has none."""
    encoder: str | None = None
    """The encoder module:Name of the policy, for the same reason."""
    functions: tuple[str, ...] = ()
    """The functions module:function of its --policy_mapping and --frozen_policies, for the same reason."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run_command(_enjoy, arguments)


def _enjoy(arguments: Sequence[str]) -> int:
    from sf.cli.arguments import parse
    from sf.config.checks import env_kwargs_problems, range_problems

    required = "--experiment=default_experiment", "--policy=my_policy"
    config = parse(EnjoyConfig, arguments, "sf-enjoy", DESCRIPTION, required, runs="experiment")
    if problems := range_problems(config) + env_kwargs_problems(config.env_kwargs or "{}") + _problems(config):
        raise ConfigError(problems)
    directory = config.experiment and experiment_directory(Path(config.train_dir), config.experiment)
    import torch

    from sf.console import rounded
    from sf.evaluator.candidates import Candidate, candidate_of_experiment, load_candidate
    from sf.evaluator.summary import cut_note
    from sf.evaluator.watching import watch

    trust(config.encoder, config.env, config.functions)
    torch.set_num_threads(1)
    if directory:
        candidate = candidate_of_experiment(directory, config.checkpoint, config.deterministic)
    else:
        assert config.policy is not None
        candidate = Candidate(config.policy, (Path(config.policy),), config.deterministic, is_folder=True)
    loaded = load_candidate(candidate)
    source = environment(config.env, config.env_kwargs, loaded.run, config.max_episode_steps, LONGEST_EPISODE)
    output = None if config.output is None else Path(config.output)
    for title in filter(None, [*loaded.titles, loaded.note]):
        print(title)
    played = watch(loaded, source, config.num_episodes, config.seed, output, config.overlay, config.speed)
    for policy_id, episodes in enumerate(played):
        for reward, length in zip(episodes.rewards, episodes.lengths, strict=True):
            print(f"Policy {policy_id}: reward {rounded(reward)}, length {length}")
        if episodes.num_cut:
            print(f"Policy {policy_id}: {cut_note(episodes.num_cut, source.max_episode_steps)}")
    if output is not None:
        print(f"Wrote {output}")
    return ExitCode.FINISHED


def _problems(config: EnjoyConfig) -> list[str]:
    """Flags that contradict each other or cannot be shown here."""
    problems = []
    if (config.experiment is None) == (config.policy is None):
        problems.append("Give either --experiment or --policy, the name of a run or the directory of a saved policy.")
    if config.output is not None and Path(config.output).suffix not in (".mp4", ".gif"):
        problems.append(f"--output={config.output} must end with .mp4 or .gif.")
    if config.overlay and config.output is None:
        problems.append("--overlay=True draws beside the picture of a film. Give its name: --output=episode.mp4")
    if config.output is None and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        problems.append("There is no screen for a window (DISPLAY is not set). Record a film: --output=episode.mp4")
    return problems


if __name__ == "__main__":
    sys.exit(main())
