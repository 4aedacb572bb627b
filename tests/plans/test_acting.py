"""Acting in workers: what policies are asked, and what is stored of their answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from examples.plans.a2c import A2CPolicy
from examples.plans.ppo import PPOPolicy
from sf.plans import Policy, WorkerSet
from tests.helpers.planned import ECHO, TEN_STEPS


@pytest.mark.parametrize("policy", [A2CPolicy, PPOPolicy])
@pytest.mark.parametrize("second", [{}, {"explore": False}])
def test_policy_to_which_no_agent_belongs_is_not_asked(policy: Any, second: dict[str, Any]) -> None:
    """The second one acts with torch where it does not explore."""
    policies = {"a": (policy,), "b": (policy, None, None, second)}
    with WorkerSet(policies, {"env": TEN_STEPS, "seed": 1}, lambda agent: "a") as workers:
        batch = workers.local_worker().sample()
        assert {name: own.count for name, own in batch.policy_batches.items()} == {"a": 200}
        assert batch.count == 200


class Answering(Policy):
    """Always the same action."""

    def compute_actions(self, obs_batch: Any, *rest: Any, **more: Any) -> Any:
        return np.full((len(obs_batch), 1), self.config["answer"], np.float32), [], {}


@pytest.mark.parametrize(
    ("normalizes", "answer", "executed"), [(False, 1.0, 1.0), (False, 3.0, 2.0), (True, 1.0, 2.0), (True, -0.5, -1.0)]
)
def test_actions_of_a_box_are_scaled_to_its_bounds_or_only_clipped(
    normalizes: bool, answer: float, executed: float
) -> None:
    settings = {"env": ECHO, "rollout_fragment_length": 5, "normalize_actions": normalizes, "answer": answer}
    with WorkerSet(Answering, settings) as workers:
        batch = workers.local_worker().sample()
    assert batch["new_obs"][:, 0] == pytest.approx(executed)
    assert batch["actions"][:, 0] == pytest.approx(answer), "as the policy drew it"
