"""How a run differs from the defaults, and how it is started again."""

from __future__ import annotations

import shlex
from typing import Any

from sf.config.as_flags import as_flags
from sf.config.given import default_values
from sf.storage.compared import OUTPUT_FLAGS
from sf.tools.report.runs import RunFiles

OWN_FLAGS = "env", "preset", "seed", "experiment", "train_dir", "restart_behavior", *OUTPUT_FLAGS
"""They are told in any case, or say nothing of the training."""


def changed_flags(run: RunFiles) -> dict[str, tuple[Any, Any]]:
    """Name to value and default, with the defaults of the preset. A default of None is chosen by the run."""
    env, preset = str(run.flags.get("env", "")), str(run.flags.get("preset", "none"))
    algorithm = run.flags.get("algorithm_defaults") or run.flags.get("algorithm", "ppo")
    known = default_values(env, preset, str(algorithm))
    defaults = {name: value for name, value in known.items() if name not in OWN_FLAGS}
    flags = run.flags
    return {name: (flags[name], value) for name, value in defaults.items() if name in flags and flags[name] != value}


def command(run: RunFiles) -> str:
    """The command line that repeats a run, ready to paste."""
    flags: dict[str, Any] = {name: run.flags[name] for name in ("env", "preset") if name in run.flags}
    flags |= {name: value for name, (value, _) in changed_flags(run).items()}
    flags |= {"seed": run.flags.get("seed"), "experiment": f"{run.name}-again"}
    return shlex.join(["sf-train", *(word for name, value in flags.items() for word in as_flags(name, value))])
