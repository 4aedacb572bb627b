"""Acting in workers: what policies are asked, and what is stored of their answers."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from examples.plans.a2c import A2CPolicy
from examples.plans.ppo import PPOPolicy
from sf.errors import UsageError
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


class Growing(Policy):
    """A state and columns that begin as whole numbers and become fractions; two that stay what they are."""

    def get_initial_state(self) -> list[Any]:
        return [0]

    def compute_actions(self, obs_batch: Any, state_batches: Any = (), *rest: Any, **more: Any) -> Any:
        rows, t = len(obs_batch), np.asarray(obs_batch)[:, 0]
        step = self.config.get("step", 0.5) if t.any() else self.config.get("first", 0.5)
        value = [1.5 if time > 2 else 1 for time in t]
        extra = {"value": value, "index": np.arange(rows), "flag": t > 3, "small": t.astype(np.int8)}
        return np.zeros(rows, np.int64), [np.asarray(state_batches[0]) + step], extra


@pytest.mark.parametrize("first", [0.5, 0])
@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
def test_numbers_that_begin_whole_may_become_fractions(first: float, num_envs: int, batch_mode: str) -> None:
    settings = {
        "env": TEN_STEPS, "rollout_fragment_length": 20, "num_envs_per_worker": num_envs, "first": first,
        "batch_mode": batch_mode,
    }  # fmt: skip
    with WorkerSet({"a": (Growing,), "b": (Growing,)}, settings, lambda agent: "a") as workers:
        for _ in range(2):
            batch = workers.local_worker().sample().policy_batches["a"]
            t = batch["t"]
            assert batch["state_in_0"] == pytest.approx(np.where(t > 0, first + 0.5 * (t - 1), 0))
            assert batch["state_out_0"] == pytest.approx(first + 0.5 * t)
            assert batch["value"].tolist() == [1.5 if time > 2 else 1 for time in t]
            assert {name: batch[name].dtype for name in ("index", "flag", "small")} == {
                "index": np.int64, "flag": bool, "small": np.int8,
            }  # fmt: skip
            assert (batch["flag"] == (t > 3)).all()


class Speaking(Policy):
    """Gives something else than numbers, in the dummy batch or later."""

    def get_initial_state(self) -> list[Any]:
        return list(self.config.get("state", []))

    def compute_actions(self, obs_batch: Any, state_batches: Any = (), *rest: Any, **more: Any) -> Any:
        rows, is_first = len(obs_batch), not np.asarray(obs_batch).any()
        extra = self.config["before" if is_first else "later"]
        return np.zeros(rows, np.int64), list(state_batches), {name: [one] * rows for name, one in extra.items()}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"before": {"x": 1.0}, "later": {"x": [1.0, 2.0]}}, r"column 'x' in the shapes \[1, 2\], \[1\]"),
        ({"before": {"rewards": 1.0}}, "gave the extra column 'rewards', which every batch has"),
        ({"before": {"policy_version": 1}}, "gave the extra column 'policy_version', which every batch has"),
        ({"before": {"x": "a"}, "later": {"x": 1.0}}, "Column 'x' has texts in some batches and numbers in others"),
        ({"before": {}, "later": {"late": 1}}, "Acting of policy 'default_policy' gave a new column 'late'"),
        ({"before": {"early": 1}, "later": {}}, "gave no column 'early', unlike for a batch of zeros"),
    ],
)
def test_columns_that_cannot_be_stored_are_named(settings: dict[str, Any], message: str) -> None:
    with WorkerSet(Speaking, {"env": TEN_STEPS, **settings}) as workers, pytest.raises(UsageError, match=message):
        workers.local_worker().sample()


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.more)])
@pytest.mark.parametrize(
    ("first", "later"),
    [
        (np.int8(1), 1000),
        (np.uint8(1), -1),
        (np.float32(1), 1e300),
        (np.float32(1), 0.1),
        (True, 2.5),
        ("a", "longer"),
        (None, None),
        ({"a": 1}, {"b": (2, "c")}),
    ],
)
def test_columns_are_what_the_policy_gave(first: Any, later: Any, num_workers: int) -> None:
    """Columns have the widest type of a fragment; texts and objects are kept too."""
    settings = {"env": TEN_STEPS, "rollout_fragment_length": 5, "num_workers": num_workers}
    given = {"before": {"x": first}, "later": {"x": later}, "state": [first]}
    with WorkerSet(Speaking, {**settings, **given}) as workers:
        worker = workers.remote_workers()[0] if num_workers else workers.local_worker()
        batch = worker.sample()
    assert batch["x"].tolist() == [first] + [later] * 4
    assert batch["state_out_0"].tolist() == [first] * 5


class Counting(Policy):
    """Gives a column with too many values, or a state that grows out of its type."""

    def get_initial_state(self) -> list[Any]:
        return [self.config["state"]] if "state" in self.config else []

    def compute_actions(self, obs_batch: Any, state_batches: Any = (), *rest: Any, **more: Any) -> Any:
        rows = len(obs_batch)
        extra = {"x": np.arange(rows + self.config.get("more", 0) * (rows == 3))}  # the batch of zeros has 4
        following = [np.asarray(state) + self.config["step"] for state in state_batches]
        return np.zeros(rows, np.int64), following, extra


@pytest.mark.parametrize("more", [3, -2])
@pytest.mark.parametrize("length", [1, 25])
def test_a_column_has_one_value_for_each_row_that_a_policy_acts_for(more: int, length: int) -> None:
    settings = {"env": "examples.plans.environments:RockPaperScissors", "num_envs_per_worker": 3, "more": more}
    policies = {name: (Counting,) for name in "ab"}
    with WorkerSet(policies, {**settings, "rollout_fragment_length": length}, lambda agent: "ab"[agent]) as workers:
        local = workers.local_worker()
        with pytest.raises(UsageError, match=rf"column 'x' in the shape \[{3 + more}\] for 3 rows"):
            [local.sample() for _ in range(3)]


@pytest.mark.parametrize(
    ("state", "step"),
    [
        (np.int8(0), np.int64(100)),
        (np.float32(0), np.float64(0.1)),
        (np.float16(0), np.float32(1e5)),
        (np.float32(0), np.float32(0.1)),
    ],
)
def test_d3_each_state_is_the_one_that_the_step_before_has_led_to(state: Any, step: Any) -> None:
    settings = {"env": TEN_STEPS, "rollout_fragment_length": 8, "state": state, "step": step}
    with WorkerSet(Counting, settings) as workers:
        batch = workers.local_worker().sample()
    assert batch["state_in_0"][1:].tolist() == batch["state_out_0"][:-1].tolist()
    assert batch["state_out_0"][-1] == pytest.approx(8 * float(step), rel=1e-6)
    assert batch["state_out_0"].dtype == step.dtype


def answers(workers: WorkerSet) -> list[float]:
    """What each worker executes, the local one first."""
    each: list[Any] = [workers.local_worker(), *workers.remote_workers()]
    return [float(worker.sample()["actions"].mean()) for worker in each]


def test_what_functions_set_in_workers_takes_effect_everywhere() -> None:
    settings = {"env": ECHO, "rollout_fragment_length": 5, "num_workers": 1, "answer": 0.25}

    def answer(policy: Any, name: str) -> None:
        policy.config["answer"] = 0.5

    def replace(worker: Any) -> None:
        old = worker.policy_map["default_policy"]
        worker.policy_map["default_policy"] = Answering(old.observation_space, old.action_space, {"answer": 0.75})

    with WorkerSet(Answering, settings) as workers:
        assert answers(workers) == [0.25, 0.25]
        workers.foreach_policy(answer)
        assert answers(workers) == [0.5, 0.5]
        workers.foreach_worker(replace)
        assert answers(workers) == [0.75, 0.75]
        assert workers.local_worker().get_policy().config == {"answer": 0.75}


@pytest.mark.more
def test_exploration_is_switched_off_everywhere() -> None:
    """Also where a worker acts in NumPy."""
    settings = {"env": TEN_STEPS, "rollout_fragment_length": 200, "num_workers": 1, "seed": 1}

    def be_greedy(policy: Any, name: str) -> None:
        policy.config["explore"] = False

    with WorkerSet(A2CPolicy, settings) as workers:
        assert all(0 < share < 1 for share in answers(workers))
        workers.foreach_policy(be_greedy)
        each: list[Any] = [workers.local_worker(), *workers.remote_workers()]
        for worker in each:
            batch = worker.sample()
            assert (batch["actions"] == batch["action_dist_inputs"].argmax(1)).all()


def test_first_local_sample_leaves_threads_and_generators_of_the_program() -> None:
    def states() -> list[Any]:
        return [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]  # type: ignore[index]

    acted_with: set[int] = set()

    class Noting(PPOPolicy):  # type: ignore[misc]
        def compute_actions(self, *arguments: Any, **named: Any) -> Any:
            acted_with.add(torch.get_num_threads())
            return super().compute_actions(*arguments, **named)

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with WorkerSet(Noting, {"env": TEN_STEPS, "model": {"activation": "relu"}}) as workers:
            acted_with.clear()
            before = states()
            first, second = (workers.local_worker().sample() for _ in range(2))
            assert states() == before
            assert torch.get_num_threads() == 2
            assert acted_with == {1}, "for a few rows more threads take longer"
        assert (first["actions"] != second["actions"]).any(), "the own generators go on"
    finally:
        torch.set_num_threads(threads)


@pytest.mark.more
def test_functions_in_workers_may_sample() -> None:
    settings = {"env": ECHO, "rollout_fragment_length": 5, "num_workers": 1, "answer": 0.25, "num_envs_per_worker": 2}

    def sample(worker: Any) -> Any:
        first, second = worker.sample(), worker.sample()
        return first.count, second["t"].tolist(), float(second["actions"].mean())

    with WorkerSet(Answering, settings) as workers:
        before = workers.remote_workers()[0].sample()
        assert workers.foreach_worker(sample) == [(10, [5, 6, 7, 8, 9] * 2, 0.25)] * 2
        after = workers.remote_workers()[0].sample()
        assert (before["t"].tolist(), after["t"].tolist()) == ([0, 1, 2, 3, 4] * 2, [5, 6, 7, 8, 9] * 2)
        assert workers.foreach_worker(sample)[1] == (10, [5, 6, 7, 8, 9] * 2, 0.25)
