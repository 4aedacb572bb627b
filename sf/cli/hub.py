"""``sf-hub``: publish a run on the Hugging Face Hub, and make an experiment of a published one."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from sf.cli.command import run_command
from sf.cli.experiments import environment, experiment_directory, trust
from sf.cli.which import WhichRun
from sf.config.ranges import AT_LEAST_1, SEED
from sf.errors import ConfigError, ExitCode, ExperimentError, UsageError
from sf.plugins.functions import is_trusted

COMMANDS = {
    "push": "Evaluate a run and publish it: checkpoint, configuration, scores, a film and a card. "
    "Example: sf-hub push --experiment=cartpole --repo=user/name",
    "pull": "Download a published run as an experiment. Example: sf-hub pull --repo=user/name",
}


@dataclass(frozen=True)
class PushConfig(WhichRun):
    """Which run is published, and where."""

    repo: str | None = None
    """The repository, user/name; made if there is none."""
    private: bool = False
    """Make a repository that only its owner sees."""
    output: str | None = None
    """Write the folder here and send nothing."""
    checkpoint: Literal["latest", "best"] = "latest"
    """The one that plays; with best, the latest one is published beside it to go on from."""
    num_episodes: Annotated[int, AT_LEAST_1] = 100
    """Episodes behind the scores."""
    scores: str | None = None
    """A file that sf-eval --csv has written, instead of a new evaluation."""
    deterministic: bool = False
    """Take the most likely action instead of drawing one as in training."""
    seed: Annotated[int, SEED] = 0
    """Seed of environments and actions."""
    env: str | None = None
    """Another environment with the same spaces; needed for module:Id, since a file does not get to import modules."""
    encoder: str | None = None
    """The encoder module:Name of the policy, for the same reason."""
    functions: tuple[str, ...] = ()
    """The functions module:function of its --policy_mapping and --frozen_policies, for the same reason."""


@dataclass(frozen=True)
class PullConfig:
    """Which published run is downloaded."""

    repo: str | None = None
    """The repository, user/name."""
    experiment: str | None = None
    """Name of the new experiment; None takes that of the repository."""
    train_dir: str = "train_dir"
    """Directory that holds the experiments."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run_command(_hub, arguments)


def _hub(arguments: Sequence[str]) -> int:
    if arguments and arguments[0] in ("-h", "--help"):
        lines = [f"  {name}  {what.partition(' Example: ')[0]}" for name, what in COMMANDS.items()]
        print("\n".join(["usage: sf-hub COMMAND --repo=user/name", "", *lines, "", "Flags: sf-hub COMMAND --help"]))
        return ExitCode.FINISHED
    if not arguments or arguments[0] not in COMMANDS:
        found = f"found {arguments[0]!r}" if arguments else "found nothing"
        raise UsageError(f"The first argument must be push or pull, {found}. Example: sf-hub pull --repo=user/name")
    command, *flags = arguments
    return _push(flags) if command == "push" else _pull(flags)


def _push(flags: Sequence[str]) -> int:
    from sf.cli.arguments import parse
    from sf.config.checks import range_problems
    from sf.tools.hub import transfer

    config = parse(
        PushConfig, flags, "sf-hub push", COMMANDS["push"], "--experiment=default_experiment", runs="experiment"
    )
    if problems := range_problems(config):
        raise ConfigError(problems)
    if config.output is None and config.repo is None:
        raise UsageError("Give --repo=user/name, or --output=DIR for a folder that is not sent.")
    if config.repo is not None:
        transfer.expect_repository(config.repo)
    directory = experiment_directory(Path(config.train_dir), config.experiment or "")
    if config.output is None:
        transfer.expect_installed()
        assert config.repo is not None
        transfer.expect_access(config.repo)
        with tempfile.TemporaryDirectory() as folder:
            _write(config, directory, Path(folder))
            print(f"Sent {config.experiment} to {transfer.send(Path(folder), config.repo, config.private)}")
        return ExitCode.FINISHED
    output = Path(config.output)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UsageError(f"--output={output} exists and is not an empty directory. Choose another one.")
    output.mkdir(parents=True, exist_ok=True)
    _write(config, directory, output)
    print(f"Wrote {output}")
    return ExitCode.FINISHED


def _write(config: PushConfig, directory: Path, folder: Path) -> None:
    """Everything that is published."""
    import torch

    from sf.evaluator.candidates import candidate_of_experiment, load_candidate
    from sf.evaluator.playing import LONGEST_EPISODE
    from sf.tools.hub import scoring
    from sf.tools.hub.card import card
    from sf.tools.hub.folder import CARD, PublishedScores, read_run, write_folder

    trust(config.encoder, config.env, config.functions)
    torch.set_num_threads(1)
    run = read_run(directory)
    candidate = candidate_of_experiment(directory, config.checkpoint, config.deterministic)
    loaded = load_candidate(candidate)
    if loaded.note:
        print(loaded.note)
    source = environment(config.env, None, loaded.run, None, LONGEST_EPISODE)
    played: dict[str, int] = {}
    if config.scores is None:
        summaries, played = scoring.play(candidate, loaded, source, config.num_episodes, config.seed)
    else:
        summaries = scoring.read_scores(Path(config.scores), len(loaded.policies))
    named: dict[str, object] = {"env": config.env, "encoder": config.encoder, "functions": config.functions}
    trusted = {name: value for name, value in named.items() if value}
    scores = PublishedScores(config.checkpoint, source.env_id, trusted, played, summaries)
    write_folder(folder, run, list(candidate.paths), scores)
    if no_film := scoring.film(loaded, source, config.seed, folder):
        print(f"Without a film: {no_film}")
    text = card(run, scores, config.repo or f"USER/{directory.name}", no_film)
    (folder / CARD).write_text(text, encoding="utf-8")


def _pull(flags: Sequence[str]) -> int:
    from sf.cli.arguments import parse
    from sf.config.checks import EXPERIMENT_NAME
    from sf.storage.experiment import errors_told
    from sf.tools.hub import transfer
    from sf.tools.hub.folder import install

    config = parse(PullConfig, flags, "sf-hub pull", COMMANDS["pull"], "--repo=user/name")
    repo = config.repo or ""
    transfer.expect_repository(repo)
    name = config.experiment or repo.partition("/")[2]
    if not EXPERIMENT_NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot name a directory. Choose another name: --experiment=mine")
    target = Path(config.train_dir) / name
    if target.exists():
        raise ExperimentError(f"{target.absolute()} exists. Choose another --experiment or --train_dir.")
    transfer.expect_installed()
    with errors_told(target.absolute()):
        target.parent.mkdir(parents=True, exist_ok=True)
        place = tempfile.TemporaryDirectory(prefix=".pull-", dir=target.parent)
    with place as folder:
        transfer.fetch(repo, Path(folder))
        trained = install(Path(folder), target, repo)
    print(f"{repo} is the experiment {name} in {target.parent.absolute()}. Play it: sf-enjoy --experiment={name}")
    needed = [("env", trained.run.env), ("encoder", trained.model.encoder)]
    needed += [("functions", name) for name in (trained.run.policy_mapping, *trained.run.scripted.values())]
    for flag, value in needed:
        if ":" in value and not is_trusted(value):
            print(f"It needs a module, which no file gets to import. If you trust it, name it: --{flag}={value}")
    return ExitCode.FINISHED


if __name__ == "__main__":
    sys.exit(main())
