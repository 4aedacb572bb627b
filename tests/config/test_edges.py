"""Each edge of a flag: the value just beyond it is refused, and the value that the sentence recommends is taken."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from sf.config import Config, InferenceConfig, check
from sf.errors import ConfigError
from sf.run.sizes import resolve
from sf.run.topology import Sizes
from sf.spaces import ActionSpec, EnvInfo, LeafSpec
from tests.helpers.configs import env_info, make

STEPS = {"num_epochs": 2, "num_batches_per_epoch": 4, "batch_size": 512}
"""Eight optimizer steps on a batch, so that the newest data has lags from 0 to 7 and 3.5 on average."""
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # what else is set, the last value that is taken, the first one that is refused
    "bound of the lag": ({"learner": STEPS}, {"bound_policy_lag": 7}, {"bound_policy_lag": 6}),
    "target of the lag": ({"learner": STEPS}, {"target_policy_lag": 3.5}, {"target_policy_lag": 3.4}),
    "bound and target": (
        {"learner": STEPS | {"target_policy_lag": 9.0}}, {"bound_policy_lag": 9}, {"bound_policy_lag": 8},
    ),
    "adaptive rates": ({"learner": {"lr_adaptive_max": 0.01}}, {"lr_adaptive_min": 0.01}, {"lr_adaptive_min": 0.011}),
    "dual clip": ({}, {"ppo_dual_clip": 1.001}, {"ppo_dual_clip": 1.0}),
    "whole trajectories": ({"rollout": {"rollout": 32}}, {"batch_size": 1024, "num_batches_per_epoch": 1},
                           {"batch_size": 1000, "num_batches_per_epoch": 1}),
}  # fmt: skip
SIZES = {"num_workers": 2, "num_envs_per_worker": 32, "rollout": 32}


def decided(others: dict[str, Any], values: dict[str, Any]) -> Config:
    rollout = SIZES | others.get("rollout", {})
    config = make(rollout=rollout, learner=others.get("learner", {}) | values)
    return resolve(config, env_info(1), cores=2)


@pytest.mark.parametrize("case", CASES)
def test_the_last_value_is_taken_and_the_next_one_refused(case: str) -> None:
    others, taken, refused = CASES[case]
    check(decided(others, taken), env_info(1))
    with pytest.raises(ConfigError) as caught:
        check(decided(others, refused), env_info(1))
    (name, *_) = refused
    assert name in str(caught.value)
    for flag, value in re.findall(r"--(\w+)=([\d.]+\d)", str(caught.value)):
        if flag in refused:
            check(decided(others, refused | {flag: float(value) if "." in value else int(value)}), env_info(1))


@pytest.mark.parametrize(
    ("workers", "inference", "is_taken"), [(2, 2, True), (2, 3, False), (1, 1, True), (1, 2, False)]
)
def test_each_inference_worker_serves_a_rollout_worker(workers: int, inference: int, is_taken: bool) -> None:
    config = replace(
        make(rollout={"num_workers": workers}), inference=InferenceConfig(policy_workers_per_policy=inference)
    )
    if is_taken:
        check(config)
        return
    with pytest.raises(ConfigError, match=f"Use --policy_workers_per_policy={workers} or less, or --num_workers"):
        check(config)


PICTURE = EnvInfo("Toy-v0", 1, {"obs": LeafSpec((64, 64, 3), "uint8")}, ActionSpec.discrete(2))


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (4, 4), (8, 8), (9, 8), (64, 8)])
def test_a_learner_of_pictures_takes_all_cores_but_at_most_eight(cores: int, threads: int) -> None:
    config = resolve(make(rollout=SIZES), PICTURE, cores=cores)
    assert Sizes.of(config, PICTURE, cores=cores).learner_threads == threads
    config = resolve(make(rollout=SIZES), env_info(1), cores=cores)
    assert Sizes.of(config, env_info(1), cores=cores).learner_threads == 1


@pytest.mark.parametrize(
    ("is_async", "learners", "workers", "trajectories", "least"),
    [
        (True, 1, 5, 2, 3),
        (True, 1, 4, 2, 2),
        (True, 1, 1, 2, 1),
        (True, 1, 6, 20, 4),  # which have three slots of two trajectories each
        (False, 1, 5, 2, 5),
        (True, 2, 4, 4, 4),
    ],
)
def test_half_of_the_rollout_workers_are_enough_where_their_slots_hold_a_batch(
    is_async: bool, learners: int, workers: int, trajectories: int, least: int
) -> None:
    rollout = {"num_workers": workers, "num_envs_per_worker": 2, "worker_num_splits": 1, "rollout": 8}
    run, learner = (
        {"async_rl": is_async},
        {"batch_size": 8 * trajectories, "num_batches_per_epoch": 1, "num_learners": learners},
    )
    config = resolve(make(run=run, rollout=rollout, learner=learner), env_info(1), cores=2)
    sizes = Sizes.of(config, env_info(1), cores=2)
    assert (sizes.trajectories, sizes.least_rollout_workers) == (trajectories, least)
