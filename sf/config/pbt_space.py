"""The space of population-based training: which flags may change in the course of a run, and their ranges."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sf.config.algorithm_flags import OF_ALGORITHMS, READ
from sf.config.fields import numbers, typed_fields
from sf.config.frozen_policies import frozen_flag
from sf.config.learner import LearnerConfig
from sf.config.ranges import Range
from sf.plugins import ALGORITHMS

if TYPE_CHECKING:
    from sf.config.whole import Config

CHANGEABLE = (
    "learning_rate", "exploration_loss_coeff", "value_loss_coeff", "kl_loss_coeff", "gamma", "gae_lambda",
    "ppo_clip_ratio", "ppo_clip_value", "target_kl", "max_grad_norm", "adam_eps", "adam_beta1", "adam_beta2",
    "vtrace_rho", "vtrace_c", "importance_weight_max", "lr_schedule_kl_threshold",
)  # fmt: skip
"""Numbers of `LearnerConfig` that are read in each iteration or that `Training.reconfigure` passes on."""
DECAYS = frozenset({"gamma", "gae_lambda", "adam_beta1", "adam_beta2"})
"""Near 1, where the distance from 1 counts: it is what mutates."""
ALGORITHMS_THAT_CHANGE = ("ppo", "appo")
FORM = '{"learning_rate": {"min": 1e-5, "max": 1e-2}}'
SCALES = "log", "linear"
OF_ENV = "env."
"""Before the name of an argument of the environment."""


@dataclass(frozen=True)
class ValueRange:
    """The values that a flag may take."""

    min: float
    max: float
    is_linear: bool = False
    """First values are drawn evenly, and not evenly in their logarithm."""


def space_of(text: str) -> dict[str, ValueRange]:
    """The space by name of the flag, out of a `pbt_space` without problems."""
    return {name: _span(entry) for name, entry in json.loads(text).items()}


def env_arguments(config: Config) -> tuple[str, ...]:
    """Names of the arguments of the environment that mutate, in the order of the space."""
    population = config.population
    names = space_of(population.pbt_space) if population.with_pbt else {}
    return tuple(name.removeprefix(OF_ENV) for name in names if name.startswith(OF_ENV))


def pbt_problems(config: Config) -> list[str]:
    """A sentence for everything that is wrong with population-based training."""
    population = config.population
    if not population.with_pbt:
        return []
    return _space_problems(config) + _factor_problems(config) + _combination_problems(config) + _length_problems(config)


def _span(entry: Mapping[str, Any]) -> ValueRange:
    return ValueRange(float(entry["min"]), float(entry["max"]), entry.get("scale") == "linear")


def _space_problems(config: Config) -> list[str]:
    text = config.population.pbt_space
    try:
        found = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        found = None
    if not isinstance(found, dict) or not found:
        return [f"pbt_space={text!r} is not a JSON object of flags. Write it like --pbt_space='{FORM}'."]
    problems = []
    for name, entry in found.items():
        problems += _name_problems(name, config) or _entry_problems(name, entry)
    return problems


def _name_problems(name: str, config: Config) -> list[str]:
    learner = config.learner
    if name.startswith(OF_ENV):
        return _env_problems(name, config)
    if name not in CHANGEABLE:
        return [f"pbt_space names {name}, which cannot change within a run. These can: {', '.join(CHANGEABLE)}."]
    missing = _missing(name, learner)
    return [f"pbt_space names {name}, which changes nothing {missing}. Leave it out."] if missing else []


def _env_problems(name: str, config: Config) -> list[str]:
    """An argument begins with the value of `env_kwargs`, and single environments take another one at a reset."""
    own = name.removeprefix(OF_ENV)
    vectorization = config.rollout.vectorization
    if not _is_number(config.run.env_arguments.get(own)):
        return [
            f"pbt_space names {name}, and env_kwargs={config.run.env_kwargs} has no number {own} to begin with. Add "
            f"it: --env_kwargs='{{\"{own}\": 0.5}}'."
        ]
    if vectorization not in ("auto", "none"):
        return [
            f"pbt_space names {name} with vectorization={vectorization}: environments that step as one share their "
            "arguments. Use --vectorization=none."
        ]
    return []


def _missing(name: str, learner: LearnerConfig) -> str:
    """Words for what a flag needs to have an effect and does not have."""
    short = ALGORITHMS.short(learner.algorithm)
    needs: Mapping[str, tuple[bool, str]] = {
        "learning_rate": (
            not learner.schedule.startswith("kl_adaptive"),
            f"with lr_schedule={learner.schedule}, which moves the learning rate by itself",
        ),
        "lr_schedule_kl_threshold": (
            learner.schedule.startswith("kl_adaptive"),
            f"with lr_schedule={learner.schedule}",
        ),
        "vtrace_rho": (learner.with_vtrace or short == "appo", "without with_vtrace=True"),
        "vtrace_c": (learner.with_vtrace or short == "appo", "without with_vtrace=True"),
        "importance_weight_max": (learner.objective != "ppo", "with objective=ppo"),
    }
    has_effect, words = needs.get(name, (True, ""))
    if not has_effect:
        return words
    is_unread = name in OF_ALGORITHMS and name not in READ.get(short, OF_ALGORITHMS)
    return f"with algorithm={learner.algorithm}" if is_unread else ""


def _entry_problems(name: str, entry: object) -> list[str]:
    """Sentences about the range of one flag."""
    if not isinstance(entry, dict) or not {"min", "max"} <= entry.keys() <= {"min", "max", "scale"}:
        return [f"pbt_space has {json.dumps(entry)} for {name}. Write it like {FORM}."]
    if not all(_is_number(entry[end]) for end in ("min", "max")):
        return [f"pbt_space: min and max of {name} must be finite numbers, found {json.dumps(entry)}."]
    if entry.get("scale", "log") not in SCALES:
        return [f"pbt_space: the scale of {name} must be log or linear, found {json.dumps(entry['scale'])}."]
    span = _span(entry)
    if span.min >= span.max:
        return [f"pbt_space: min={span.min:g} of {name} must be below max={span.max:g}. Exchange or change them."]
    allowed = Range(-math.inf) if name.startswith(OF_ENV) else _range_of(name)
    problems = [
        f"pbt_space: {end}={value:g} of {name} must be {allowed}."
        for end, value in (("min", span.min), ("max", span.max))
        if value not in allowed
    ]
    nearest = 1.0 - span.max if name in DECAYS else span.min
    if not problems and not span.is_linear and nearest <= 0.0:
        end = "max=1" if name in DECAYS else "min=0"
        problems = [f'pbt_space: {end} of {name} has no logarithm. Move it a little, or add "scale": "linear".']
    return problems


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _range_of(name: str) -> Range:
    """The range of the flag itself."""
    allowed = next(iter(numbers(typed_fields(LearnerConfig)[name], 0.5)))[1]
    assert allowed is not None, name
    return allowed


def _factor_problems(config: Config) -> list[str]:
    least, most = config.population.pbt_perturb_min, config.population.pbt_perturb_max
    return [f"pbt_perturb_min={least:g} is above pbt_perturb_max={most:g}. Exchange them."] if least > most else []


def _combination_problems(config: Config) -> list[str]:
    run, learner = config.run, config.learner
    reasons: Mapping[str, tuple[bool, str]] = {
        f"num_policies={run.num_policies}": (
            run.num_policies < 2,
            "a population has two policies or more. Use --num_policies=4",
        ),
        "self_play=True": (
            config.self_play.self_play,
            "policy 0 alone learns there. Leave one of them out",
        ),
        frozen_flag(config): (
            bool(run.frozen),
            "a policy that does not learn is neither replaced nor mutated. Leave one of them out",
        ),
        f"num_learners={learner.num_learners}": (
            learner.num_learners > 1,
            "a policy that takes over another one has one learner. Use --num_learners=1",
        ),
        "vectorization=tensors": (
            config.rollout.vectorization == "tensors",
            "simulators in tensors act with one policy. Use --vectorization=auto",
        ),
        f"replay={config.replay.replay}": (
            config.replay.replay != "none",
            "a buffer would hold transitions of the policy that was replaced. Use --replay=none",
        ),
        "normalize_rewards=True": (
            learner.normalize_rewards,
            "the deviation of rewards is not part of published weights, so a policy that takes over another one would "
            "see rewards of another size. Use --normalize_returns=True instead",
        ),
        f"algorithm={learner.algorithm}": (
            not _can_change(learner.algorithm),
            f"flags can change within a run of {' and '.join(ALGORITHMS_THAT_CHANGE)} only. Use --algorithm=ppo",
        ),
    }
    return [f"with_pbt=True with {flag}: {why}." for flag, (is_wrong, why) in reasons.items() if is_wrong]


def _can_change(algorithm: str) -> bool:
    short = ALGORITHMS.short(algorithm)
    return short in ALGORITHMS_THAT_CHANGE and ALGORITHMS.is_ours(short)


def _length_problems(config: Config) -> list[str]:
    """A run that ends before the first decision is one without a population."""
    population, limit = config.population, config.run.frame_limit
    first = max(population.pbt_start_mutation, population.pbt_period_env_steps)
    each = limit / max(1, config.run.num_policies)
    if first < each:
        return []
    return [
        f"train_for_env_steps={limit:.0f} gives each of {config.run.num_policies} policies about {each:.0f} frames. "
        f"The first decision comes after {first}. Lower --pbt_start_mutation and --pbt_period_env_steps."
    ]
