"""Whether the actions of an environment go with the algorithm and the flags."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sf.config.whole import Config
from sf.plugins import ALGORITHMS

if TYPE_CHECKING:
    from sf.spaces import EnvInfo

ONE_CHOICE = ("discrete_sac", "dqn", "drqn", "pqn")
BOUNDS_OF_NUMBERS = {"sac": "tanh", "td3": "scale"}
"""The value of `action_bounds` under which the environment gets the action that the critics value."""
FINITE_BOX = "gymnasium.wrappers.TransformAction(env, lambda action: action, Box(-1, 1, shape)), say"


def action_problems(config: Config, info: EnvInfo) -> list[str]:
    """A sentence for each reason why the actions of the environment do not go with the algorithm or the flags."""
    name, action = ALGORITHMS.short(config.learner.algorithm), info.action
    if name in ONE_CHOICE and not (action.choices and action.is_scalar):
        return [f"algorithm={name} chooses among actions, a Discrete space; found {action}. {_other(info)}"]
    if name in BOUNDS_OF_NUMBERS and action.choices:
        return [f"algorithm={name} needs actions that are numbers, a Box; found {action}. {_other(info)}"]
    bounds = config.rollout.action_bounds
    numbers = [column for column in action.columns if not column.num_choices]
    are_finite = all(math.isfinite(column.low) and math.isfinite(column.high) for column in numbers)
    if name not in BOUNDS_OF_NUMBERS:
        return [] if bounds != "tanh" or are_finite else [_unbounded(info)]
    problems = []
    if bounds != BOUNDS_OF_NUMBERS[name]:
        problems.append(
            f"action_bounds={bounds} with algorithm={name}: the environment would get other actions than its critics "
            f"value. Leave it out, or use --action_bounds={BOUNDS_OF_NUMBERS[name]}."
        )
    elif not are_finite:
        problems.append(
            f"algorithm={name} needs actions with finite bounds; found {action}. Give them such bounds in "
            f"the environment ({FINITE_BOX}), or use --algorithm=ppo."
        )
    return problems


def _unbounded(info: EnvInfo) -> str:
    return (
        f"action_bounds=tanh squashes actions into their bounds, but {info.env_id} has actions without finite bounds: "
        f"{info.action}. Use --action_bounds=scale, which only clips those, or give them finite bounds: {FINITE_BOX}."
    )


def _other(info: EnvInfo) -> str:
    """The algorithms that fit instead."""
    action = info.action
    if not action.choices:
        return "Use --algorithm=sac, td3 or ppo."
    return "Use --algorithm=dqn, discrete_sac, pqn or ppo." if action.is_scalar else "Use --algorithm=ppo."
