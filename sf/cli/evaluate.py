"""``sf-eval``: play many whole episodes with saved policies and say what they reached."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from sf.cli.command import run_command
from sf.cli.experiments import environment, experiment_directory, trust
from sf.config.ranges import AT_LEAST_1, SEED
from sf.errors import ConfigError, ExitCode, UsageError

if TYPE_CHECKING:
    from sf.envs import EnvSource
    from sf.evaluator.candidates import Candidate, LoadedPolicies
    from sf.evaluator.summary import ReturnSummary
    from sf.evaluator.tally import Episodes

DESCRIPTION = "Play episodes with saved policies. Example: sf-eval --experiment=cartpole --num_episodes=1000"


@dataclass(frozen=True)
class EvaluationConfig:
    """Which policies play what."""

    experiment: tuple[str, ...] = ()
    """Names of the runs that saved the policies."""
    train_dir: str = "train_dir"
    """Directory that holds the experiments."""
    checkpoint: tuple[str, ...] = ("latest",)
    """Checkpoints of each experiment: latest, best, or names like checkpoint_000000552_141312."""
    policy: tuple[str, ...] = ()
    """Directories of policies that were saved with PolicySaver; they need --env."""
    match: tuple[str, ...] = ()
    """Players that play against each other: experiments, directories of policies, functions module:function."""
    num_episodes: Annotated[int, AT_LEAST_1] = 100
    """Episodes that each of them plays, or each pair of a match."""
    num_workers: Annotated[int, AT_LEAST_1] | None = None
    """Processes that play; None takes one per core if there is enough to do."""
    deterministic: bool = False
    """Take the most likely action instead of drawing one as in training."""
    seed: Annotated[int, SEED] = 0
    """Seed of environments and actions, the same for all policies."""
    csv: str | None = None
    """File for a line per episode: policy, policy_id, episode, reward, length, the agent that it is of, and the metrics
    of the environment."""
    json: bool = False
    """Print one JSON object with all numbers instead of lines."""
    env: str | None = None
    """Another environment with the same spaces; needed for module:Id, since a file does not get to import modules."""
    env_kwargs: str | None = None
    """Arguments of the environment as a JSON object instead of those of the training."""
    max_episode_steps: Annotated[int, AT_LEAST_1] | None = None
    """Cut longer episodes; None takes the limit of the training, or 27,000 steps where it has none."""
    encoder: str | None = None
    """The encoder module:Name of the policy, for the same reason."""
    functions: tuple[str, ...] = ()
    """The functions module:function of its --policy_mapping and --frozen_policies, for the same reason."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run_command(_evaluate, arguments)


def _evaluate(arguments: Sequence[str]) -> int:
    from sf.cli.arguments import parse
    from sf.config.checks import env_kwargs_problems, range_problems
    from sf.processes.telling import told_while

    required = "--experiment=default_experiment", "--policy=my_policy", "--match=my_module:my_function"
    config = parse(EvaluationConfig, arguments, "sf-eval", DESCRIPTION, required, runs="experiment")
    if problems := range_problems(config) + env_kwargs_problems(config.env_kwargs or "{}"):
        raise ConfigError(problems)
    if config.match:
        from sf.cli.match import match

        return match(config)
    directories = [experiment_directory(Path(config.train_dir), name) for name in config.experiment]
    _check_csv(config.csv)
    with told_while(lambda seconds: f"Loading torch and policies, {seconds:.0f} s so far.", _tell_progress):
        ready = _ready(config, directories)  # any fault shows before the first episode
    played = [(player.candidate.name, _play(config, player)) for player in ready]
    if config.csv is not None:
        _write_csv(Path(config.csv), played)
        print(f"Every episode is in {config.csv}", file=sys.stderr if config.json else sys.stdout)
    summaries = [
        (f"{name}, policy {policy_id}" if len(policies) > 1 else name, _summary(episodes))
        for name, policies in played
        for policy_id, episodes in enumerate(policies)
    ]
    if config.json:
        print(as_json(summaries))
    elif len(summaries) > 1:
        from sf.evaluator.summary import table

        print(f"\n{table(summaries)}")
    return ExitCode.FINISHED


def _ready(config: EvaluationConfig, directories: Sequence[Path]) -> list[PlayedPolicy]:
    """All candidates, loaded."""
    import torch

    from sf.evaluator.candidates import Candidate, candidate_of_experiment

    trust(config.encoder, config.env, config.functions)
    torch.set_num_threads(1)  # faster for small networks and batches
    candidates = [
        candidate_of_experiment(directory, which, config.deterministic)
        for directory in directories
        for which in config.checkpoint
    ]
    candidates += [Candidate(folder, (Path(folder),), config.deterministic, is_folder=True) for folder in config.policy]
    return [_prepare(config, candidate) for candidate in candidates]


@dataclass(frozen=True)
class PlayedPolicy:
    """A candidate and where it plays."""

    candidate: Candidate
    loaded: LoadedPolicies
    source: EnvSource


def _prepare(config: EvaluationConfig, candidate: Candidate) -> PlayedPolicy:
    from sf.evaluator.candidates import load_candidate
    from sf.evaluator.playing import LONGEST_EPISODE

    loaded = load_candidate(candidate)
    if loaded.note:
        print(loaded.note, file=sys.stderr)
    limit = config.max_episode_steps
    return PlayedPolicy(
        candidate, loaded, environment(config.env, config.env_kwargs, loaded.run, limit, LONGEST_EPISODE)
    )


def _play(config: EvaluationConfig, player: PlayedPolicy) -> list[Episodes]:
    """All episodes of one candidate, reported as soon as they are over."""
    from sf.evaluator.observed import info_for
    from sf.evaluator.shares import default_num_workers, evaluate
    from sf.evaluator.summary import lines

    loaded, source = player.loaded, player.source
    info = info_for(loaded.policies, loaded.info, source)
    num_workers = config.num_workers or default_num_workers(config.num_episodes)
    played = evaluate(
        player.candidate, loaded, source, info, config.num_episodes, config.seed, num_workers, tell=_tell_progress
    )
    for policy_id, (title, episodes) in enumerate(zip(loaded.titles, played, strict=True) if not config.json else ()):
        print(f"Policy {policy_id}: {title}")
        for line in lines(_summary(episodes), source.env_id, source.max_episode_steps):
            print(f"  {line}", flush=True)
    return played


def _tell_progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _summary(episodes: Episodes) -> ReturnSummary:
    from sf.evaluator.summary import summarize

    return summarize(episodes)


def _check_csv(name: str | None) -> None:
    """A file that cannot be written should not be found out after the last episode."""
    if name is None:
        return
    try:
        Path(name).open("a").close()
    except OSError as error:
        raise UsageError(f"--csv={name} cannot be written: {error.strerror}. Choose another file.") from None


def _write_csv(path: Path, played: Sequence[tuple[str, Sequence[Episodes]]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        all_metrics = [one for _, policies in played for episodes in policies for one in episodes.metrics]
        names = list(dict.fromkeys(key for one in all_metrics for key in one))
        writer.writerow(
            ("policy", "policy_id", "episode", "reward", "length", "agent", *(f"env/{key}" for key in names))
        )
        for name, policies in played:
            for policy_id, episodes in enumerate(policies):
                rows = zip(episodes.agents, episodes.rewards, episodes.lengths, episodes.metrics, strict=True)
                for index, (agent, reward, length, metrics) in enumerate(rows):
                    own = [metrics.get(key, "") for key in names]
                    writer.writerow((name, policy_id, index, reward, length, agent, *own))


def as_json(summaries: Sequence[tuple[str, ReturnSummary]]) -> str:
    """The numbers of each policy; what is not finite is null, which JSON has no number for."""
    policies = {name: _finite(asdict(summary)) for name, summary in summaries}
    return json.dumps({"policies": policies}, indent=2)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, tuple):
        parts = value._asdict() if hasattr(value, "_asdict") else None
        return [_finite(part) for part in value] if parts is None else _finite(parts)
    return None if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    sys.exit(main())
