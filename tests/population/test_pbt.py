"""The rules of population-based training against a slow reading of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from sf.config import PopulationConfig
from sf.config.pbt_space import ValueRange
from sf.population.pbt import Decision, PopulationRules

SPACE = {"learning_rate": ValueRange(1e-5, 1e-2), "gamma": ValueRange(0.9, 0.999), "target_kl": ValueRange(1e-3, 1.0)}
FIRST = {"learning_rate": 1e-3, "gamma": 0.99, "target_kl": 0.0}
QUICK: dict[str, Any] = {"with_pbt": True, "pbt_period_env_steps": 100, "pbt_start_mutation": 300}


def rules(num_policies: int = 4, seed: int = 0, **flags: Any) -> PopulationRules:
    return PopulationRules(PopulationConfig(**QUICK | flags), SPACE, [FIRST] * num_policies, seed)


def look(population: PopulationRules, frames: Sequence[int], scores: Sequence[float | None]) -> list[Decision]:
    return population.decide(frames, lambda policy: scores[policy])


def all_at_once(population: PopulationRules, scores: Sequence[float]) -> dict[int, Decision]:
    """The decisions about all policies in their first period."""
    look(population, [0] * len(scores), scores)
    return {each.policy_id: each for each in look(population, [1000] * len(scores), scores)}


@pytest.mark.parametrize(
    ("frames", "due"),
    [([299, 0, 0, 0], []), ([300, 0, 0, 0], [0]), ([300, 299, 301, 10_000], [0, 2, 3])],
)
def test_each_policy_is_decided_about_by_its_own_frames(frames: list[int], due: list[int]) -> None:
    population = rules()
    look(population, [0] * 4, [1.0] * 4)
    assert [each.policy_id for each in look(population, frames, [1.0] * 4)] == due


def test_periods_begin_with_the_last_decision() -> None:
    population, decided = rules(), []
    for frames in range(0, 1000, 30):
        decided += [each.frames for each in look(population, [frames, 0, 0, 0], [1.0] * 4)]
    assert decided == [300, 420, 540, 660, 780, 900]


def test_a_period_that_is_longer_than_the_start_comes_first() -> None:
    population, decided = rules(pbt_period_env_steps=500), []
    for frames in range(0, 1200, 100):
        decided += [each.frames for each in look(population, [frames, 0, 0, 0], [1.0] * 4)]
    assert decided == [500, 1000]


@pytest.mark.parametrize("missing", [None, math.nan, math.inf])
def test_nothing_happens_while_a_policy_has_no_score(missing: float | None) -> None:
    population = rules()
    look(population, [0] * 4, [1.0] * 4)
    assert look(population, [300] * 4, [1.0, 2.0, 3.0, missing]) == []
    assert look(population, [300] * 4, [1.0, 2.0, 3.0, 4.0]) == [], "nothing was learned since the last look"
    assert len(look(population, [310] * 4, [1.0, 2.0, 3.0, 4.0])) == 4


def test_scores_are_asked_for_when_a_decision_is_due() -> None:
    def score(policy: int) -> float:
        raise AssertionError("nothing is due")

    population = rules()
    population.decide([0] * 4, score)
    population.decide([299] * 4, score)


def slowly(
    scores: Sequence[float], fraction: float, gap: float, absolute: float
) -> tuple[set[int], dict[int, Callable[[int], bool]]]:
    """The best policies, and for each of the worst whether it may take over another one."""
    number, better = 0, {p: sum((s, -q) > (scores[p], -p) for q, s in enumerate(scores)) for p in range(len(scores))}
    while number < fraction * len(scores):
        number += 1
    number = min(number, len(scores) // 2)
    best = {policy for policy, rank in better.items() if rank < number}

    def may(policy: int) -> Callable[[int], bool]:
        def takes(source: int) -> bool:
            difference = scores[source] - scores[policy]
            relative = difference / abs(scores[source]) if scores[source] else math.inf
            return difference > absolute and relative > gap

        return takes

    return best, {policy: may(policy) for policy, rank in better.items() if rank >= len(scores) - number}


@pytest.mark.parametrize("seed", range(40))
def test_ranks_and_gaps_are_those_of_a_slow_reading(seed: int) -> None:
    random = np.random.default_rng(seed)
    number = int(random.integers(2, 9))
    scores = [float(score) for score in random.choice([-20.0, -1.0, 0.0, 1.0, 19.0, 20.0, 21.0, 30.0], number)]
    fraction, gap, absolute = float(random.uniform(0.05, 0.5)), float(random.choice([0.0, 0.1])), 0.5
    population = rules(
        number, seed, pbt_replace_fraction=fraction, pbt_replace_reward_gap=gap,
        pbt_replace_reward_gap_absolute=absolute, pbt_mutation_rate=1.0,
    )  # fmt: skip
    best, worst = slowly(scores, fraction, gap, absolute)
    decided = all_at_once(population, scores)
    assert len(decided) == number
    for policy, decision in decided.items():
        assert decision.before == FIRST
        assert decision.scores == tuple(scores)
        if policy in best:
            assert (decision.kind, decision.source, decision.after) == ("kept", None, FIRST)
        elif decision.source is None:
            assert decision.kind == "mutated"
            assert policy not in worst or not all(worst[policy](source) for source in best)
        else:
            assert decision.kind == "replaced"
            assert decision.source in best
            assert worst[policy](decision.source)


@pytest.mark.parametrize(
    ("own", "best", "gap", "absolute", "source"),
    [
        (89.0, 100.0, 0.1, 0.0, 0),
        (90.0, 100.0, 0.1, 0.0, None),  # not by more than the gap
        (-120.0, -100.0, 0.1, 0.0, 0),  # relative to the size of the score
        (-105.0, -100.0, 0.1, 0.0, None),
        (-1.0, 0.0, 0.5, 0.0, 0),
        (89.0, 100.0, 0.1, 11.0, None),
        (88.9, 100.0, 0.1, 11.0, 0),
        (5.0, 5.0, 0.0, 0.0, None),  # nobody takes over an equal
    ],
)
def test_a_policy_is_replaced_where_both_gaps_are_exceeded(
    own: float, best: float, gap: float, absolute: float, source: int | None
) -> None:
    population = rules(2, pbt_replace_reward_gap=gap, pbt_replace_reward_gap_absolute=absolute)
    assert all_at_once(population, [best, own])[1].source == source


def test_values_mutate_by_a_factor_within_their_range() -> None:
    population = rules(2, pbt_mutation_rate=1.0, pbt_perturb_min=1.2, pbt_perturb_max=3.0)
    ups = 0
    look(population, [0, 0], [1.0, 0.99])
    for step in range(1, 200):
        (decision,) = look(population, [0, 1000 * step], [1.0, 0.99])
        before, after = decision.before, decision.after
        for old, new, low, high in (
            (before["learning_rate"], after["learning_rate"], 1e-5, 1e-2),
            (1 - before["gamma"], 1 - after["gamma"], 0.001, 0.1),
        ):
            factor = max(new / old, old / new)
            assert low * (1 - 1e-9) <= new <= high * (1 + 1e-9)
            is_at_end = math.isclose(new, low) or math.isclose(new, high)
            assert is_at_end or 1.2 * (1 - 1e-9) <= factor <= 3.0 * (1 + 1e-9)
            ups += new > old
        assert after["target_kl"] == 0.0, "what is off stays off"
    assert 120 < ups < 280


def test_a_value_outside_of_its_range_comes_in_with_its_first_mutation() -> None:
    population = PopulationRules(
        PopulationConfig(**QUICK, pbt_mutation_rate=1.0), {"learning_rate": ValueRange(1e-4, 1e-2)},
        [{"learning_rate": 1e-6}] * 2, 0,
    )  # fmt: skip
    decided = all_at_once(population, [1.0, 0.99])
    assert decided[0].after == {"learning_rate": 1e-6}
    assert decided[1].after == {"learning_rate": 1e-4}


def test_a_rate_says_how_often_a_value_mutates() -> None:
    population = rules(2, pbt_mutation_rate=0.25)
    look(population, [0, 0], [1.0, 0.99])
    changed = 0
    for step in range(1, 400):
        (decision,) = look(population, [0, 1000 * step], [1.0, 0.99])
        has_changed = decision.after != decision.before
        assert decision.kind == ("mutated" if has_changed else "kept")
        changed += decision.before["gamma"] != decision.after["gamma"]
    assert 70 < changed < 130


def test_without_mutations_a_policy_has_the_values_that_it_takes_over() -> None:
    population = rules(2, pbt_mutation_rate=0.0)
    population.values[0] |= {"learning_rate": 5e-3}
    assert all_at_once(population, [1.0, 0.0])[1].after == FIRST | {"learning_rate": 5e-3}
    assert population.values[1] == population.values[0]


def test_first_values_are_drawn_from_the_space() -> None:
    spaces = SPACE | {"max_grad_norm": ValueRange(0.0, 1.0, is_linear=True)}
    population = PopulationRules(PopulationConfig(pbt_draw_initial=True), spaces, [FIRST] * 500, 3)
    for name, span in spaces.items():
        assert all(span.min <= values[name] <= span.max for values in population.values)
    rates = np.log10([values["learning_rate"] for values in population.values])
    assert abs(np.median(rates) + 3.5) < 0.3
    distances = np.log10([1 - values["gamma"] for values in population.values])
    assert abs(np.median(distances) + 2) < 0.2
    assert abs(np.median([values["max_grad_norm"] for values in population.values]) - 0.5) < 0.1


def history(population: PopulationRules, steps: range) -> list[Decision]:
    decided = []
    for step in steps:
        scores = [math.sin(step * (policy + 1)) for policy in range(4)]
        decided += look(population, [100 * step + policy for policy in range(4)], scores)
    return decided


def test_a_seed_repeats_all_decisions() -> None:
    first, again, other = (history(rules(seed=seed, pbt_replace_fraction=0.2), range(50)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert {each.kind for each in first} == {"kept", "mutated", "replaced"}


def test_a_population_goes_on_from_its_state() -> None:
    whole = history(rules(seed=1), range(50))
    begun, resumed = rules(seed=1), rules(seed=7)
    first = history(begun, range(20))
    resumed.load_json(json.loads(json.dumps(begun.to_json())))
    look(resumed, [100 * 19 + policy for policy in range(4)], [0.0] * 4)
    assert first + history(resumed, range(20, 50)) == whole


def test_a_state_of_other_policies_and_names_is_taken_as_far_as_it_goes() -> None:
    state = rules(2).to_json()
    state["values"] = [{"learning_rate": 0.5, "adam_eps": 1.0}, {"gamma": 0.95}]
    population = rules(3)
    population.load_json(state)
    assert population.values == [FIRST | {"learning_rate": 0.5}, FIRST | {"gamma": 0.95}, FIRST]


def test_a_run_that_was_killed_goes_back_and_decides_again() -> None:
    population = rules(2)
    state = population.to_json() | {"decided_frames": [5000, 5000]}
    population.load_json(state)
    look(population, [1000, 1000], [1.0, 1.0])
    assert look(population, [1050, 1050], [1.0, 1.0]) == []
    assert len(look(population, [1100, 1100], [1.0, 1.0])) == 2
