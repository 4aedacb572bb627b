"""Acting in workers: what policies are asked, and what is stored of their answers."""

from __future__ import annotations

from typing import Any

import pytest

from examples.plans.a2c import A2CPolicy
from examples.plans.ppo import PPOPolicy
from sf.plans import WorkerSet
from tests.helpers.planned import TEN_STEPS


@pytest.mark.parametrize("policy", [A2CPolicy, PPOPolicy])
@pytest.mark.parametrize("second", [{}, {"explore": False}])
def test_policy_to_which_no_agent_belongs_is_not_asked(policy: Any, second: dict[str, Any]) -> None:
    """The second one acts with torch where it does not explore."""
    policies = {"a": (policy,), "b": (policy, None, None, second)}
    with WorkerSet(policies, {"env": TEN_STEPS, "seed": 1}, lambda agent: "a") as workers:
        batch = workers.local_worker().sample()
        assert {name: own.count for name, own in batch.policy_batches.items()} == {"a": 200}
        assert batch.count == 200
