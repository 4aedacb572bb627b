"""Which flags of a run were given, and which values the run chose itself.

`given.json` in the directory of a run holds both, because config.json has neither: it names the value of every flag.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from sf.config.presets import PRESETS, preset_for, with_preset
from sf.config.roles import RunConfig
from sf.config.storage import dump
from sf.config.whole import Config

OPEN = None, "auto"
"""Values of flags that a run may fill in."""
OF_DEFAULTS = "preset", "algorithm", "algorithm_defaults"
"""Flags that set the defaults of others."""


def values_of(config: Config) -> dict[str, Any]:
    """Every flag with its value as JSON has it."""
    return {name: value for role in fields(config) for name, value in dump(getattr(config, role.name)).items()}


def default_values(env: str, preset: str = "none", algorithm: str = "ppo") -> dict[str, Any]:
    """Every flag with its default under a preset and an algorithm; None is filled in by the run."""
    known = preset_for(env) if preset == "auto" else preset
    return values_of(with_preset(known if known in PRESETS else "none", Config(RunConfig(env=env)), algorithm))


def given_flags(config: Config) -> dict[str, Any]:
    """The flags that differ from their defaults, with their values."""
    defaults = default_values(config.run.env, config.run.preset, config.learner.base_algorithm)
    own = "env", "preset", "algorithm"
    return {name: value for name, value in values_of(config).items() if name in own or value != defaults[name]}


def chosen_flags(given: Config, resolved: Config) -> list[str]:
    """The flags whose values the run has filled in."""
    now = values_of(resolved)
    return [name for name, value in values_of(given).items() if value in OPEN and now[name] != value]
