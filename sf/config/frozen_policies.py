"""Policies of a run that act and do not learn."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from sf.errors import ConfigError

if TYPE_CHECKING:
    from sf.config.whole import Config

EXAMPLE = """--frozen_policies='{"1": "train_dir/other_run"}'"""


def frozen_problems(config: Config) -> list[str]:
    """A sentence for everything that is wrong with `frozen_policies`."""
    run = config.run
    text, numbers = run.frozen_policies, [str(number) for number in range(run.num_policies)]
    try:
        found = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(path, str) for path in found.values()):
        return [f"frozen_policies={text!r} is not a JSON object of number and directory. Write it like {EXAMPLE}."]
    problems = []
    for number in found:
        if number not in numbers:
            problems.append(
                f"frozen_policies={text} names policy {number}, and num_policies={run.num_policies} makes "
                f"{', '.join(numbers)}. Name one of them, or raise --num_policies."
            )
    if found and not problems and len(found) == run.num_policies:
        problems.append(f"frozen_policies={text} freezes every policy, so nothing would learn. Leave one out.")
    problems += _problems_of_trained(config, found)
    if not problems and run.frozen and config.learner.num_learners > 1:
        problems.append(
            f"{frozen_flag(config)} with num_learners={config.learner.num_learners}: a frozen policy has one learner, "
            "which only publishes it. Use --num_learners=1."
        )
    return problems


def frozen_flag(config: Config) -> str:
    """The flag that freezes policies, with its value, for messages."""
    run = config.run
    if run.policies_to_train is None or run.frozen_policies != "{}":
        return f"frozen_policies={run.frozen_policies}"
    return f"policies_to_train={' '.join(map(str, run.policies_to_train))}"


def _problems_of_trained(config: Config, frozen: Collection[str]) -> list[str]:
    run = config.run
    if run.policies_to_train is None:
        return []
    if not run.policies_to_train:
        return ["policies_to_train names no policy, so nothing would learn. Name one."]
    flag = f"policies_to_train={' '.join(map(str, run.policies_to_train))}"
    problems = [
        f"{flag} names policy {number}, and num_policies={run.num_policies}. Name those from 0 to "
        f"{run.num_policies - 1}, or raise --num_policies."
        for number in run.policies_to_train
        if not 0 <= number < run.num_policies
    ]
    if both := [number for number in run.policies_to_train if str(number) in frozen]:
        problems.append(f"{flag} trains policy {both[0]}, and frozen_policies freezes it. Leave one out.")
    return problems


def expect_directories(config: Config) -> None:
    """Checks that frozen policies are there, before a run begins; one that goes on has them in its own checkpoints.

    Raises:
        ConfigError: a directory is missing.
    """
    run = config.run
    directories = {number: path for number, path in run.frozen.items() if path and number not in run.scripted}
    problems = [
        f"frozen_policies={run.frozen_policies}: there is no directory {path}. Name that of a run or a checkpoint, or "
        "module:function."
        for number, path in directories.items()
        if not Path(path).is_dir() and not (run.experiment_dir / f"checkpoint_p{number}").is_dir()
    ]
    if problems:
        raise ConfigError(problems)
