"""``sf-train``: parse, check, run. Spawned processes import this module again, so it imports next to nothing itself."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import re
import shlex
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sf.cli.command import run_command
from sf.errors import ExitCode
from sf.machine.cores import usable_cores
from sf.machine.kernel import is_linux
from sf.processes.spare import ENVIRONMENTS, NETWORKS, Spares

if TYPE_CHECKING:
    from sf.config import Config, RunConfig

LONGEST_NAME = 100
"""Characters in the name of a run."""
UNTRAINED = "checkpoint_000000000_"
"""How the names of checkpoints without an optimizer step begin."""
USUAL = (
    "env", "env_kwargs", "preset", "experiment", "train_dir", "restart_behavior", "seed", "train_for_env_steps",
    "stop_at_reward", "async_rl", "serial_mode", "device", "num_workers", "num_envs_per_worker", "updates", "gamma",
    "learning_rate", "use_rnn", "eval_every_steps", "dashboard",
)  # fmt: skip
"""Flags that most people want first."""
DESCRIPTION = "Train a policy with asynchronous PPO. Example: sf-train --env=CartPole-v1 --stop_at_reward=475"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run_command(_train, arguments)


def _train(arguments: Sequence[str]) -> int:
    spares = Spares()
    with contextlib.closing(spares):
        if may_have_processes(arguments):
            with contextlib.suppress(OSError):  # told when the run needs them
                spares.start(NETWORKS)
                spares.start(ENVIRONMENTS)
        return _train_with(spares, arguments)


def may_have_processes(arguments: Sequence[str]) -> bool:
    """Whether these arguments may start a run of several processes, as far as a look at the words tells."""
    elsewhere = "--help", "-h", "--env=?", "--serial_mode", "--serial-mode"
    return is_linux() and usable_cores() > 1 and not any(word.startswith(elsewhere) for word in arguments)


def _train_with(spares: Spares, arguments: Sequence[str]) -> int:
    from sf.config import check
    from sf.console import spoken_for

    config = parse_config(arguments)
    check(config)  # before the imports below, so that a refusal comes at once
    from sf.processes.process import set_title
    from sf.run.supervisor import train

    set_title("train")
    code, _ = train(config, spares=spares)
    if not spoken_for() and code in (ExitCode.FINISHED, ExitCode.SIGINT, ExitCode.SIGTERM, ExitCode.REQUEUE):
        print(_next_steps(config.run, config.model.encoder))
    return code


def parse_config(arguments: Sequence[str], prog: str = "sf-train", description: str = DESCRIPTION) -> Config:
    """The configuration from the arguments of ``sf-train``, and of commands that take the same ones.

    Raises:
        UsageError: with everything that is wrong with them.
    """
    from sf.cli.arguments import parse
    from sf.cli.config_file import with_file, write_flags
    from sf.config import Config
    from sf.config.presets import with_env_kwargs

    words, file = with_file(arguments)
    if "--env=?" in words or any(pair == ("--env", "?") for pair in itertools.pairwise(words)):
        print(_environments())
        sys.exit(ExitCode.FINISHED)
    config = parse(Config, words, prog, description, "--env=CartPole-v1", defaults=_defaults, usual=USUAL)
    if file is not None:
        write_flags(file, words, config)
        sys.exit(ExitCode.FINISHED)
    return with_env_kwargs(config)


def _defaults(given: Mapping[str, str]) -> Config:
    """Those of the preset and the algorithm that are asked for."""
    from tyro import MISSING

    from sf.config import Config, RunConfig
    from sf.config.algorithms import values_of
    from sf.config.presets import PRESETS, preset_for, with_preset

    name, env = given.get("preset", "none"), given.get("env")
    if name == "auto":
        name = preset_for(env or "")
        print(f"preset: {name}{_better_id(env)}" if env else "preset: none, because no --env is given")
    algorithm = given.get("algorithm_defaults") or given.get("algorithm", "ppo")
    if "help" in given:
        for flag, values in ((f"preset={name}", PRESETS[name]), (f"algorithm={algorithm}", values_of(algorithm))):
            _show_defaults(flag, values)
    run = RunConfig(env=MISSING, preset=given.get("preset", "none"))  # type: ignore[arg-type]  # checked
    config = Config(replace(run, experiment=name_of_run(env)) if env else run)
    return with_preset(name, config, algorithm)


def _show_defaults(flag: str, values: Mapping[str, object]) -> None:
    """For the help."""
    if values:
        shown = ", ".join(f"{name}={value}" for name, value in values.items())
        print(textwrap.fill(f"--{flag} sets these defaults below: {shown}", 80), end="\n\n")


def _environments() -> str:
    """What ``--env`` takes, for ``--env=?``."""
    from sf.envs.registry import known_ids

    parts = [
        f"{group}:\n{textwrap.fill(', '.join(ids), 100, initial_indent='  ', subsequent_indent='  ')}"
        for group, ids in known_ids().items()
    ]
    more = "NAME/* is a family: a game or world follows the slash. module:Id imports the module first."
    return "\n\n".join([*parts, more])


def name_of_run(env: str) -> str:
    """Name of a run that has not been given one: its environment, in the characters of a directory."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", env).lstrip("-.")
    return name[:LONGEST_NAME] or "default_experiment"


def _better_id(env: str) -> str:
    """A hint for a game that is named without the wrappers that its preset counts on."""
    from sf.config.presets import preset_for
    from sf.envs.suggestions import own_name

    ours = own_name(env)
    preset = preset_for(ours) if ours else preset_for(env)
    return "" if preset == preset_for(env) else f" ({env} lacks the wrappers that {preset} needs; {ours} has them)"


def _next_steps(run: RunConfig, encoder: str) -> str:
    from sf.storage.objects import json_object

    checkpoints = [path.name for path in run.experiment_dir.glob("checkpoint_p*/**/checkpoint_*")]
    if all(name.startswith(UNTRAINED) for name in checkpoints):
        holds = "an untrained checkpoint" if checkpoints else "no checkpoint"
        learned = json_object(run.experiment_dir / "summary.json").get("frames")
        begins = "What was trained is lost" if learned else "Nothing was trained yet"
        return f"{begins}; {run.experiment_dir} holds {holds}."
    play = f"{_player()} --experiment={run.experiment} --train_dir={shlex.quote(run.train_dir)}"
    if ":" in run.env:
        play += f" --env={run.env}"  # a module is imported only when the command line names it
    if ":" in encoder:
        play += f" --encoder={encoder}"
    missing = "" if importlib.util.find_spec("tensorboard") else "  (pip install tensorboard)"
    report = "" if importlib.util.find_spec("plotly") else '  (pip install "sf-rl[report]")'
    return (
        f"Checkpoints, curves and configuration are in {run.experiment_dir}\n"
        f"  play the policy:   {play}\n"
        f"  watch the curves:  tensorboard --logdir {shlex.quote(str(run.experiment_dir / '.summary'))}{missing}\n"
        f"  a page about it:   sf-report {shlex.quote(str(run.experiment_dir))}{report}"
    )


def _player() -> str:
    """The command that starts `sf-eval`; if a script of the user called us, with the names it may have registered."""
    script = sys.modules["__main__"]
    spec, path = script.__spec__, Path(getattr(script, "__file__", None) or "sf-train")
    module = path.stem if spec is None else spec.name
    if path.suffix != ".py" or module in ("sf.cli.train", "sf.cli.main", "sf.__main__"):
        return "sf-eval"
    directory = path.resolve().parent
    place = "" if spec is not None or directory == Path.cwd() else f"PYTHONPATH={shlex.quote(str(directory))} "
    return f'{place}python -c "import {module}; from sf.cli.evaluate import main; exit(main())"'


if __name__ == "__main__":
    sys.exit(main())
