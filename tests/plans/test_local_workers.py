"""Samples of workers of this process, rows D2 to D4, D11 and D15, and settings that workers refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sf.errors import ConfigError
from sf.plans import ParallelRollouts, WorkerSet
from sf.plans.policy import dummy_batch
from tests.helpers.planned import TEN_STEPS, CountingPolicy, TenSteps, TorchPull, check_columns

ORACLES: dict[str, Any] = json.loads((Path(__file__).parents[1] / "oracles.json").read_text())


def local(**settings: Any) -> WorkerSet:
    return WorkerSet(CountingPolicy, {"env": TEN_STEPS, "rollout_fragment_length": 15, "seed": 1, **settings})


def test_d2_d3_d4_columns_of_the_local_worker() -> None:
    with local(num_envs_per_worker=3) as workers:
        for _ in range(3):
            batch = workers.local_worker().sample()
            assert batch.count == 45
            check_columns(batch)
            assert (batch["some_value"] == 1.5).all()
            parts = batch.split_by_episode()
            assert len(parts) == len(set(batch["unroll_id"].tolist())) > 3, "one for each part of an episode"
            assert all(len(set(part["unroll_id"].tolist())) == 1 for part in parts)


def test_a_batch_of_zeros_has_the_types_of_a_sample() -> None:
    with local() as workers:
        sample, zeros = workers.local_worker().sample(), dummy_batch(workers.local_worker().get_policy())
        assert {name: (column.dtype, column.shape[1:]) for name, column in zeros.items()} == {
            name: (sample[name].dtype, sample[name].shape[1:]) for name in zeros
        }
        assert {zeros[name].dtype.name for name in ("eps_id", "unroll_id", "agent_index", "t")} == {"int64"}


@pytest.mark.parametrize("case", ORACLES["D11"]["cases"], ids=lambda case: "-".join(map(str, case["inputs"].values())))
def test_d11_rows_of_a_sample(case: dict[str, Any]) -> None:
    inputs, expected = case["inputs"], case["expected"]
    settings = {name: inputs[name] for name in ("batch_mode", "rollout_fragment_length")}
    with local(num_envs_per_worker=inputs["num_envs"], **settings) as workers:
        batch = workers.local_worker().sample()
        assert batch.count == expected["rows"]
        if "t" in expected:
            assert batch["t"].tolist() == expected["t"]
        assert workers.local_worker().sample().count >= inputs["rollout_fragment_length"]


def test_d15_d20_local_rollouts_step_nothing_before_next() -> None:
    with local() as workers:
        before = TenSteps.steps
        rollouts = ParallelRollouts(workers).for_each(lambda batch: batch.count)
        assert TenSteps.steps == before
        assert next(rollouts) == 15
        assert TenSteps.steps == before + 15


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_workers": -1}, "num_workers=-1 must be a whole number, 0 or more"),
        ({"rollout_fragment_length": 0}, "rollout_fragment_length=0 must be a whole number, 1 or more"),
        ({"batch_mode": "whole"}, "batch_mode='whole' must be 'truncate_episodes' or 'complete_episodes'"),
        ({"env": None}, "env is missing"),
        ({"num_worker": 2}, r"There is no setting num_worker\. Did you mean num_workers\?"),
        ({"rollout_fragment_lenght": 2}, r"Did you mean rollout_fragment_length\?"),
    ],
)
def test_settings_that_no_worker_can_have(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        local(**settings)


def test_settings_of_a_policy_may_be_named_nearly_as_those_of_workers() -> None:
    has_own = TorchPull.with_updates(get_default_config=lambda: {"num_worker": 1})
    for policies in (has_own, {"default_policy": (CountingPolicy, None, None, {"num_worker": 1})}):
        with WorkerSet(policies, {"env": TEN_STEPS, "num_worker": 2}) as workers:
            assert "num_worker" in workers.local_worker().get_policy().config


def test_whole_episodes_of_a_team_stay_together() -> None:
    settings = {
        "env": "examples.plans.environments:RockPaperScissors", "batch_mode": "complete_episodes",
        "rollout_fragment_length": 15, "seed": 1,
    }  # fmt: skip
    with WorkerSet({"a": (TorchPull,)}, settings, lambda agent: "a") as workers:
        batch = workers.local_worker().sample()
        assert (batch.env_steps(), batch.agent_steps()) == (20, 40)
        assert set(batch.policy_batches["a"]["agent_index"]) == {0, 1}
