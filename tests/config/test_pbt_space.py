"""What a population may look like is checked before anything starts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sf.config import LearnerConfig, check
from sf.config.pbt_space import CHANGEABLE, ValueRange, space_of
from sf.errors import ConfigError
from tests.helpers.lab import make_config

RATE = {"min": 1e-5, "max": 1e-2}


def population(**flags: Any) -> Any:
    return make_config(**{"num_policies": 4, "with_pbt": True} | flags)


def spaced(**entries: Any) -> str:
    return json.dumps(entries)


def test_a_population_of_the_defaults_is_taken() -> None:
    check(population())
    check(population(algorithm="appo"))
    check(population(lr_schedule="linear", train_for_env_steps=100_000_000))


def test_nothing_is_checked_without_a_population() -> None:
    check(make_config(pbt_space="nothing", pbt_perturb_min=3.0))


def test_a_space_is_read_by_name() -> None:
    text = spaced(learning_rate=RATE, gamma={"min": 0, "max": 1, "scale": "linear"})
    assert space_of(text) == {"learning_rate": ValueRange(1e-5, 1e-2), "gamma": ValueRange(0.0, 1.0, is_linear=True)}


def test_names_that_can_change_are_numbers_of_the_learner() -> None:
    for name in CHANGEABLE:
        other: dict[str, Any] = {name: 0.875}
        assert replace(LearnerConfig(), **other) != LearnerConfig()


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "one policy": ({"num_policies": 1}, "with_pbt=True with num_policies=1: a population has two policies or more."),
    "frozen": ({"frozen_policies": '{"1": "x"}'}, "neither replaced nor mutated"),
    "learners": ({"num_learners": 2}, "has one learner. Use --num_learners=1."),
    "tensors": ({"vectorization": "tensors"}, "act with one policy. Use --vectorization=auto."),
    "replay": ({"replay": "staleness"}, "transitions of the policy that was replaced. Use --replay=none."),
    "rewards": ({"normalize_rewards": True}, "Use --normalize_returns=True instead."),
    "algorithm": ({"algorithm": "rnd"}, "with_pbt=True with algorithm=rnd: flags can change within a run of ppo and"),
    "no JSON": ({"pbt_space": "x"}, "pbt_space='x' is not a JSON object of flags. Write it like --pbt_space='{"),
    "nothing": ({"pbt_space": "{}"}, "is not a JSON object of flags"),
    "unknown": ({"pbt_space": spaced(rate=RATE)}, "rate, which cannot change within a run. These can: learning_rate,"),
    "a size": ({"pbt_space": spaced(batch_size=RATE)}, "batch_size, which cannot change within a run"),
    "environment": ({"pbt_space": spaced(**{"env.wind": RATE})}, "has no number wind to begin with. Add it: --env_kw"),
    "together": (
        {"pbt_space": spaced(**{"env.wind": RATE}), "env_kwargs": '{"wind": 1e-3}', "vectorization": "native"},
        "pbt_space names env.wind with vectorization=native: environments that step as one share their arguments.",
    ),
    "adaptive": ({"lr_schedule": "kl_adaptive_epoch"}, "learning_rate, which changes nothing with lr_schedule=kl_ad"),
    "no V-trace": ({"pbt_space": spaced(vtrace_rho=RATE)}, "changes nothing without with_vtrace=True. Leave it out."),
    "not read": (
        {"algorithm": "appo", "pbt_space": spaced(gae_lambda={"min": 0.8, "max": 0.9})},
        "gae_lambda, which changes nothing with algorithm=appo",
    ),
    "no range": ({"pbt_space": spaced(gamma=0.9)}, "pbt_space has 0.9 for gamma. Write it like {"),
    "no number": ({"pbt_space": spaced(gamma={"min": True, "max": 0.9})}, "min and max of gamma must be finite"),
    "more": ({"pbt_space": spaced(gamma={"min": 0.8, "max": 0.9, "step": 1})}, "pbt_space has {"),
    "scale": ({"pbt_space": spaced(gamma={"min": 0.8, "max": 0.9, "scale": "x"})}, 'log or linear, found "x"'),
    "order": ({"pbt_space": spaced(gamma={"min": 0.9, "max": 0.9})}, "min=0.9 of gamma must be below max=0.9."),
    "beyond": ({"pbt_space": spaced(gamma={"min": 0.9, "max": 2})}, "max=2 of gamma must be at least 0 and at most 1"),
    "logarithm": ({"pbt_space": spaced(gamma={"min": 0.9, "max": 1})}, "max=1 of gamma has no logarithm"),
    "zero": ({"pbt_space": spaced(target_kl={"min": 0, "max": 1})}, "min=0 of target_kl has no logarithm"),
    "factors": ({"pbt_perturb_min": 2.0}, "pbt_perturb_min=2 is above pbt_perturb_max=1.5. Exchange them."),
    "too short": ({"train_for_env_steps": 40_000_000}, "gives each of 4 policies about 10000000 frames. The first"),
    "share": ({"pbt_replace_fraction": 0.6}, "pbt_replace_fraction=0.6 must be above 0 and at most 0.5."),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_a_population_is_refused(case: str) -> None:
    flags, sentence = WRONG[case]
    with pytest.raises(ConfigError) as caught:
        check(population(**flags))
    assert sentence in str(caught.value)
