"""``sf-plan``: train with an execution plan from a file."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sf.cli.command import run_command
from sf.cli.train import name_of_run
from sf.config.plan import PlanConfig
from sf.errors import ConfigError, SfError, UsageError

if TYPE_CHECKING:
    from types import ModuleType

    from sf.plans import Trainer

DESCRIPTION = "Train with an execution plan. Example: sf-plan examples/plans/a2c.py --env=CartPole-v1"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run_command(_plan, arguments)


def _plan(arguments: Sequence[str]) -> int:
    from sf.cli.arguments import parse
    from sf.config.checks import range_problems

    if not arguments or arguments[0].startswith("-"):
        if not {"-h", "--help"} & set(arguments):
            raise UsageError("The file of the plan is missing. Give it first: sf-plan examples/plans/a2c.py --env=...")
        parse(PlanConfig, ["--help"], "sf-plan FILE", DESCRIPTION, ())
    own, others = _split(arguments[1:])
    config = parse(PlanConfig, own, f"sf-plan {arguments[0]}", DESCRIPTION, ())
    if problems := range_problems(config):
        raise ConfigError(problems)
    try:
        trainer_class = trainer_in(import_file(Path(arguments[0])), config.trainer)
        from sf.plans.environments import env_name
        from sf.plans.running import run_plan

        settings = settings_of(others)
        if not any(word.partition("=")[0] == "--experiment" for word in own):
            env = env_name({**trainer_class.default_config, **settings}.get("env") or "")
            config = replace(config, experiment=name_of_run(f"{Path(arguments[0]).stem}-{env}"))
        return run_plan(trainer_class, settings, config)
    except Exception as error:
        if (told := _told(error)) is None:
            raise
        raise told from error


def _told(error: Exception) -> SfError | None:
    """With the line of the plan that it comes from, if there is one."""
    from sf.plans.blame import blamed_on_plan
    from sf.plans.local_iterator import OperatorFailed

    if isinstance(error, SfError) and not isinstance(error, OperatorFailed):
        return None
    return blamed_on_plan(error, "The plan")


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Flags of this command, and those of the trainer."""
    names = {each.name for each in fields(PlanConfig)} | {"help"}
    own: list[str] = []
    others: list[str] = []
    for argument in arguments:
        name = argument.partition("=")[0].removeprefix("--").replace("-", "_")
        if argument in ("-h", "--help") or name in names:
            own.append(argument)
        else:
            others.append(argument)
    return own, others


def settings_of(arguments: Sequence[str]) -> dict[str, Any]:
    """Settings from flags ``--name=value``; values are JSON, or texts.

    Raises:
        UsageError: one has another form.
    """
    settings: dict[str, Any] = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not (name.startswith("--") and equals):
            raise UsageError(f"Unexpected argument {argument!r}. Settings of a trainer are written --name=value.")
        try:
            settings[name[2:].replace("-", "_")] = json.loads(value)
        except ValueError:
            literals = {"True": True, "False": False, "None": None}
            settings[name[2:].replace("-", "_")] = literals.get(value, value)
    return settings


def import_file(path: Path) -> ModuleType:
    """The module in a file, under the name by which others import it. Workers get what they need of it as it is.

    Raises:
        UsageError: there is no such file.
    """
    if not path.is_file():
        raise UsageError(f"There is no file {path}. Give a Python file with a trainer, like examples/plans/a2c.py.")
    name = path.stem
    if not path.is_absolute() and ".." not in path.parts:
        dotted = ".".join(path.with_suffix("").parts)
        if importlib.util.find_spec(dotted.partition(".")[0]) is not None:
            name = dotted
    if "." in name:
        importlib.import_module(name.rpartition(".")[0])
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    import cloudpickle

    cloudpickle.register_pickle_by_value(module)  # workers that import it would run what stands at its end
    spec.loader.exec_module(module)
    return module


def trainer_in(module: ModuleType, name: str | None) -> type[Trainer]:
    """The trainer class of this name, or the last one that the module defines.

    Raises:
        UsageError: there is none.
    """
    from sf.plans import Trainer

    there = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Trainer) and value is not Trainer
    }
    if name is not None and name not in there:
        raise UsageError(f"{module.__name__} has no trainer {name!r}, only {', '.join(there) or 'none at all'}.")
    if not there:
        raise UsageError(f"{module.__name__} has no trainer. Make one with sf.plans.build_trainer.")
    return there[name] if name is not None else list(there.values())[-1]


if __name__ == "__main__":
    sys.exit(main())
