"""How a run differs from the defaults, and how it is started again."""

from __future__ import annotations

import dataclasses
import json
import shlex
from typing import Any

from sf.config import Config, RunConfig
from sf.config.as_flags import as_flags
from sf.config.presets import PRESETS, preset_for, with_preset
from sf.report.runs import OUTPUT_FLAGS, RunFiles

OWN_FLAGS = "env", "preset", "seed", "experiment", "train_dir", "restart_behavior", *OUTPUT_FLAGS
"""They are told in any case, or say nothing of the training."""


def changed_flags(run: RunFiles) -> dict[str, tuple[Any, Any]]:
    """Name to value and default, with the defaults of the preset. A default of None is chosen by the run."""
    env, preset = str(run.flags.get("env", "")), str(run.flags.get("preset", "none"))
    known = preset_for(env) if preset == "auto" else preset
    algorithm = str(run.flags.get("algorithm", "ppo"))
    config = with_preset(known if known in PRESETS else "none", Config(RunConfig(env=env)), algorithm)
    plain = json.loads(json.dumps(dataclasses.asdict(config)))
    defaults = {name: value for fields in plain.values() for name, value in fields.items() if name not in OWN_FLAGS}
    flags = run.flags
    return {name: (flags[name], value) for name, value in defaults.items() if name in flags and flags[name] != value}


def command(run: RunFiles) -> str:
    """The command line that repeats a run, ready to paste."""
    flags: dict[str, Any] = {name: run.flags[name] for name in ("env", "preset") if name in run.flags}
    flags |= {name: value for name, (value, _) in changed_flags(run).items()}
    flags |= {"seed": run.flags.get("seed"), "experiment": f"{run.name}-again"}
    return shlex.join(["sf-train", *(word for name, value in flags.items() for word in as_flags(name, value))])
