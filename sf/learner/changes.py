"""The flags that a resume may change, against the configuration of the checkpoint: one table for all of them.

A flag that is in neither list says how the run goes on and nothing of what was learned or counted, so it may change.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

from sf.storage.differences import data_differences
from sf.storage.task import TASK

REFUSED = (
    ("env",),
    ("config", "model"),
    ("config", "rollout", "action_bounds"),
    ("config", "learner", "normalize_rewards"),
)
"""Flags behind the meaning of weights and statistics; other values would make a policy that was never trained."""

_LATER = {
    ("config", "model"): {
        "critic_encoder": None,
        "critic_keys": None,
        "critic_mlp_layers": None,
        "encoder_kwargs": "{}",
        "exploration": "sample",
        "layer_norm": False,
        "policy_keys": None,
    }
}
"""Flags that checkpoints of version 0.2.0 do not have, with the value that they stand for."""

_OTHER_VALUES = (
    "Values and the statistics of returns and rewards were learned as it was. Until they have adapted, advantages are "
    "off, and curves of losses show a step."
)
_OTHER_FRAMES = (
    "Frames that were counted before stay as they are: --train_for_env_steps, schedules and curves add up both kinds."
)
_OTHER_TASK = (
    "The policy and its statistics come from the task as it was. Best scores begin anew, and a new best checkpoint "
    "takes the place of the one so far."
)

TOLD = {
    ("rollout", "reward_scale"): _OTHER_VALUES,
    ("rollout", "reward_clip"): _OTHER_VALUES,
    ("learner", "gamma"): _OTHER_VALUES,
    ("learner", "value_bootstrap"): _OTHER_VALUES,
    ("rollout", "env_frameskip"): _OTHER_FRAMES,
    ("rollout", "summaries_use_frameskip"): _OTHER_FRAMES,
    **{("run", name): _OTHER_TASK for name in TASK},
}
"""Flags that the policy can adapt to, and the consequence until then."""


def refused_changes(before: object, now: object, without_effect: Collection[str] = ()) -> list[str]:
    """A line for each difference of two descriptions for which a run cannot go on from a checkpoint.

    Flags without effect on the policy, see `sf.config.effects`, are not compared, and neither are names of agents.
    """
    lines = [
        difference
        for names in REFUSED
        for difference in data_differences(_part(now, names), _with_later(before, names), ".".join(names))
    ]
    return [line for line in lines if flag_of(line) not in {*without_effect, "agent_names"}]


def flag_of(line: str) -> str:
    """The flag that a line of `refused_changes` is about."""
    return line.partition(":")[0].rpartition(".")[2]


def value_in(description: object, line: str) -> Any:
    """The value that a description has for what a line of `refused_changes` is about."""
    return _part(description, tuple(line.partition(":")[0].split(".")))


def _with_later(before: object, names: tuple[str, ...]) -> object:
    part = _part(before, names)
    return _LATER[names] | part if names in _LATER and isinstance(part, dict) else part


def notes_on_changes(before: object, now: object) -> Iterator[str]:
    """A text for each consequence of differences between two descriptions, with the flags that have it."""
    changed: dict[str, list[str]] = {}
    for (role, name), consequence in TOLD.items():
        earlier, later = _part(before, ("config", role)), _part(now, ("config", role))
        if not isinstance(earlier, dict) or name not in earlier:
            continue  # another version of sf has saved it
        if _meaning(name, earlier[name]) != _meaning(name, later[name]):
            changed.setdefault(consequence, []).append(f"{name}={later[name]!r} (was {earlier[name]!r})")
    for consequence, flags in changed.items():
        yield f"Warning: resumed with {', '.join(flags)}. {consequence}"
    ranks_before, ranks = _part(before, ("world_size",)) or 1, _part(now, ("world_size",)) or 1
    if ranks != ranks_before:
        size, rate = _part(now, ("config", "learner", "batch_size")), _part(now, ("config", "learner", "learning_rate"))
        yield (
            f"Warning: resumed with {ranks} ranks (were {ranks_before}). --batch_size={size} is that of one rank, so a "
            f"minibatch has {ranks * size} transitions. The learning rate stays as given, --learning_rate={rate:g}."
        )


def algorithm_named_in(description: object) -> object:
    """The algorithm of a description."""
    return _part(description, ("config", "learner", "algorithm"))


def _meaning(name: str, value: Any) -> Any:
    """The form of a flag that is compared."""
    return json.loads(value) if name.endswith("_kwargs") else value


def _part(data: Any, names: tuple[str, ...]) -> Any:
    for name in names:
        data = data.get(name) if isinstance(data, dict) else None
    return data
