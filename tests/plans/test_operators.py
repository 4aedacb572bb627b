"""Operators: rows D21 to D30, D35 and D39."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sf.errors import UsageError
from sf.plans import (
    ApplyGradients,
    AsyncGradients,
    AverageGradients,
    ComputeGradients,
    ConcatBatches,
    LocalIterator,
    LocalReplayBuffer,
    MultiAgentBatch,
    NotReady,
    ParallelRollouts,
    Replay,
    SampleBatch,
    SelectExperiences,
    StandardizeFields,
    StandardMetricsReporting,
    StoreToReplayBuffer,
    TrainOneStep,
    TrainTFMultiGPU,
    UpdateTargetNetwork,
    WorkerSet,
    turns_of,
)
from sf.plans.policy_map import PolicyMap
from tests.helpers.planned import TEN_STEPS, CountingPolicy, TorchPull

ORACLES: dict[str, Any] = json.loads((Path(__file__).parents[1] / "oracles.json").read_text())
of = LocalIterator.of


def rows(count: int, **columns: Any) -> SampleBatch:
    return SampleBatch({"obs": np.arange(count), **columns})


@pytest.fixture
def alone() -> Iterator[WorkerSet]:
    """Without remote workers."""
    with WorkerSet(CountingPolicy, {"env": TEN_STEPS, "rollout_fragment_length": 100, "seed": 1}) as workers:
        yield workers


@pytest.fixture(scope="module")
def together() -> Iterator[WorkerSet]:
    """With two remote ones."""
    settings = {"env": TEN_STEPS, "num_workers": 2, "rollout_fragment_length": 100, "seed": 1}
    with WorkerSet(CountingPolicy, settings) as workers:
        yield workers


def test_d21_batches_of_a_hundred_become_one_of_a_thousand() -> None:
    found = of([rows(100) for _ in range(25)]).combine(ConcatBatches(1000))
    assert [batch.count for batch in found.take(9)] == [1000, 1000]
    timer = found.shared_metrics.get().timers["sample"]
    assert timer.mean > 0
    assert timer.mean_throughput > 0


def test_d21_counts_environment_or_agent_steps() -> None:
    team = MultiAgentBatch({"a": rows(20), "b": rows(20)}, 10)
    by_env = of([team] * 4).combine(ConcatBatches(40)).take(9)
    by_agent = of([team] * 4).combine(ConcatBatches(40, count_steps_by="agent_steps")).take(9)
    assert [batch.env_steps() for batch in by_env] == [40]
    assert [batch.agent_steps() for batch in by_agent] == [40] * 4
    with pytest.raises(ValueError, match="must be 'env_steps' or 'agent_steps'"):
        ConcatBatches(40, count_steps_by="rows")


def test_d22_selected_policies_keep_the_count_of_environment_steps() -> None:
    team = MultiAgentBatch({name: rows(20) for name in "abc"}, 10)
    kept = SelectExperiences(["a", "c"])(team)
    assert kept.policy_batches.keys() == {"a", "c"}
    assert kept.count == 10
    plain = rows(3)
    assert SelectExperiences(["a"])(plain) is plain
    with pytest.raises(TypeError, match="a list of policies"):
        SelectExperiences("a")
    with pytest.raises(UsageError, match="names d, but the policies are a, b, c"):
        SelectExperiences(["a", "d"])(team)
    assert not SelectExperiences(["b"])(kept).policy_batches, "of a policy that was left out before"
    with pytest.raises(UsageError, match="names d, but the policies are a, b, c"):
        SelectExperiences(["d"])(kept)
    some = MultiAgentBatch({"a": rows(20)}, 10, ["a", "b"])
    assert not SelectExperiences(["b"])(some).policy_batches, "of a policy that has not acted in this batch"


def test_all_lag_of_a_plan_counts_as_waiting() -> None:
    policies = PolicyMap({})
    for policies.num_steps, acted in ((3, [0, 3, 3]), (5, [3, 4])):
        policies.note_lag(np.array(acted))
    counted = policies.lag_counted
    assert policies.lag == (1.0, 1.5, 2.0)
    assert (counted.steps, counted.total, counted.acting, counted.queued, counted.largest) == (2, 2.5, 0.0, 2.5, 3.0)
    assert counted.counts[:5].tolist() == [2, 1, 1, 1, 0]
    policies.note_lag(np.array([5]))
    assert counted.counts[0] == 2, "what was counted does not change any more"


def test_d23_standardized_fields() -> None:
    values = np.random.default_rng(1).normal(5, 3, 1000).astype(np.float32)
    batch: Any = StandardizeFields(["advantages"])(rows(1000, advantages=values))
    assert abs(batch["advantages"].mean()) < 1e-3
    assert abs(batch["advantages"].std() - 1) < 1e-3
    np.testing.assert_allclose(batch["advantages"], (values - values.mean()) / values.std(), rtol=1e-4, atol=1e-5)
    same: Any = StandardizeFields(["advantages"])(rows(4, advantages=np.full(4, 2.0)))
    assert same["advantages"].tolist() == [0.0] * 4
    assert batch["obs"].tolist() == list(range(1000))
    whole: Any = StandardizeFields(["advantages"])(rows(4, advantages=np.array([1, 1, 2, 3])))
    np.testing.assert_allclose(whole["advantages"], [-0.905, -0.905, 0.302, 1.508], atol=1e-3)
    with pytest.raises(KeyError, match="no column 'returns'"):
        StandardizeFields(["returns"])(batch)


@pytest.mark.more
def test_d24_one_step(together: WorkerSet) -> None:
    before = together.local_worker().get_weights()["default_policy"]["w"]
    train = of([rows(100)]).for_each(TrainOneStep(together))
    ((batch, info),) = train.take(1)
    assert batch.count == 100
    assert info == {"default_policy": {"w": before + 1}}
    counters = train.shared_metrics.get().counters
    assert (counters["num_steps_trained"], counters["num_agent_steps_trained"]) == (100, 100)
    assert train.shared_metrics.get().timers["learn"].mean > 0
    weights = together.foreach_worker(lambda worker: worker.get_weights())
    assert weights == [{"default_policy": {"w": before + 1}}] * 3


def test_d24_passes_over_minibatches(alone: WorkerSet) -> None:
    train = of([rows(100)]).for_each(TrainOneStep(alone, num_sgd_iter=3, sgd_minibatch_size=40))
    train.take(1)
    assert alone.local_worker().get_policy().learned == [40, 40, 20] * 3


def test_d25_one_device_learns_as_one_step_does() -> None:
    batch = SampleBatch(
        {"obs": np.random.default_rng(1).normal(size=(40, 1)).astype(np.float32), "actions": [0, 1] * 20}
    )
    found = []
    makes: list[Callable[[WorkerSet], Any]] = [
        lambda workers: TrainOneStep(workers, None, 2, 10),
        lambda workers: TrainTFMultiGPU(workers, sgd_minibatch_size=10, num_sgd_iter=2),
    ]
    for make in makes:
        with WorkerSet(TorchPull, {"env": TEN_STEPS, "seed": 7}) as workers:
            start = {"default_policy": {name: 0 * w + 0.1 for name, w in _weights(workers).items()}}
            workers.local_worker().set_weights(start)
            of([batch]).for_each(make(workers)).take(1)
            found.append(_weights(workers))
    np.testing.assert_equal(found[0], found[1])
    with WorkerSet(TorchPull, {"env": TEN_STEPS}) as workers, pytest.raises(ValueError, match="one of 16 devices"):
        TrainTFMultiGPU(workers, sgd_minibatch_size=10, num_sgd_iter=1, num_devices=16)


def _weights(workers: WorkerSet) -> dict[str, Any]:
    weights: dict[str, Any] = workers.local_worker().get_weights()["default_policy"]
    return weights


def test_d26_gradients_of_the_workers(together: WorkerSet) -> None:
    gradients = AsyncGradients(together)
    found = gradients.take(3)
    assert found == [([1.0, 100.0], 100)] * 3
    assert gradients.shared_metrics.get().counters["num_steps_sampled"] == 300
    assert gradients.shared_metrics.get().current_actor in together.remote_workers()
    gradients.close()


def test_d27_gradients_are_applied_and_only_their_worker_is_updated(together: WorkerSet) -> None:
    together.sync_weights()
    for worker in together.remote_workers():
        worker.sample()  # else one that has not begun a fragment since takes the newest weights
    before = together.local_worker().get_weights()["default_policy"]["w"]

    def when_both_are_full(item: Any) -> Any:
        """The other worker has begun its fragment, so that it has taken its weights before."""
        (other,) = {0, 1} - {LocalIterator.get_metrics().current_actor.index}
        while together.fragments._wanted[other] and not together.fragments.wait({other}, 0.1):
            pass  # it may have been taken already
        return item

    apply = AsyncGradients(together).for_each(when_both_are_full).for_each(ApplyGradients(together, update_all=False))
    next(apply)
    (actor,) = [apply.shared_metrics.get().current_actor]
    apply.close()
    acted = {worker.index: set(worker.sample()["some_value"]) for worker in together.remote_workers()}
    assert acted == {worker.index: {before + (worker is actor)} for worker in together.remote_workers()}
    assert apply.shared_metrics.get().counters["num_steps_trained"] == 100


def test_d27_steps_of_gradients_that_are_dropped_do_not_count(alone: WorkerSet) -> None:
    def team(_: int) -> MultiAgentBatch:
        return MultiAgentBatch({"default_policy": rows(20)}, 10)

    compute = of([0, 1, 2, 3]).for_each(team).for_each(ComputeGradients(alone))
    apply = compute.batch(2).for_each(AverageGradients()).batch(2).for_each(lambda two: two[0])
    applied = apply.for_each(ApplyGradients(alone))
    applied.take(1)
    counters = applied.shared_metrics.get().counters
    assert (counters["num_steps_trained"], counters["num_agent_steps_trained"]) == (20, 40)


def test_d27_errors(alone: WorkerSet) -> None:
    gradients = [([1.0, 0.0], 10)]
    with pytest.raises(ValueError, match="needs the worker"):
        of(gradients).for_each(ApplyGradients(alone, update_all=False)).take(1)
    with pytest.raises(ValueError, match=r"takes \(gradients, count\), but got list"):
        ApplyGradients(alone)([1.0])


def test_d28_average_of_gradients(alone: WorkerSet) -> None:
    case = ORACLES["D28"]["cases"][0]
    pairs = [([gradient], count) for gradient, count in zip(*case["inputs"].values(), strict=True)]
    assert AverageGradients()(pairs) == ([case["expected"]["gradient"]], case["expected"]["count"])
    nested = AverageGradients()([({"a": [1.0, None]}, 1), ({"a": [3.0, None]}, 2)])
    assert nested == ({"a": [2.0, None]}, 3)
    gradients = (
        of([rows(100) for _ in range(4)]).for_each(ComputeGradients(alone)).batch(4).for_each(AverageGradients())
    )
    assert gradients.take(1) == [([1.0, 100.0], 400)]


def test_d29_replay_waits_for_enough_steps() -> None:
    buffer = LocalReplayBuffer(learning_starts=200, buffer_size=1000, replay_batch_size=100, seed=1)
    store, replay = StoreToReplayBuffer(local_buffer=buffer), Replay(local_buffer=buffer)
    assert buffer.replay() is None
    assert isinstance(next(replay), NotReady)
    batch = rows(100)
    assert store(batch) is batch
    assert buffer.replay() is None
    store(batch)
    drawn = next(replay)
    assert drawn.count == 100
    both: dict[str, Any] = {"local_buffer": buffer, "actors": [buffer]}
    for wrong in ({}, both):
        with pytest.raises(ValueError, match="either local_buffer or actors"):
            StoreToReplayBuffer(**wrong)
        with pytest.raises(ValueError, match="either local_buffer or actors"):
            Replay(**wrong)


def test_d29_several_buffers_share_what_is_stored() -> None:
    buffers = [LocalReplayBuffer(learning_starts=0, replay_batch_size=5, seed=1) for _ in range(3)]
    store = StoreToReplayBuffer(actors=buffers)
    for _ in range(60):
        store(rows(1))
    assert all(buffer.num_added > 5 for buffer in buffers)
    assert [batch.count for batch in Replay(actors=buffers).take(6)] == [5] * 6


def test_d30_frequencies_follow_the_priorities() -> None:
    buffer = LocalReplayBuffer(learning_starts=1, buffer_size=4, replay_batch_size=40_000, seed=1)
    buffer.add_batch(rows(4))
    priorities = np.array([1.0, 2.0, 4.0, 0.0])
    buffer.update_priorities({"default_policy": (np.arange(4), priorities)})
    drawn = buffer.replay()
    assert isinstance(drawn, SampleBatch)
    shares = np.bincount(drawn["obs"], minlength=4) / drawn.count
    expected = (priorities + 1e-6) ** 0.6 / ((priorities + 1e-6) ** 0.6).sum()
    assert shares == pytest.approx(expected, abs=0.01)
    weights = (4 * expected[drawn["obs"]]) ** -0.4 / (4 * expected.min()) ** -0.4
    assert drawn["weights"] == pytest.approx(weights, rel=1e-3)
    uniform = LocalReplayBuffer(
        learning_starts=1, buffer_size=4, replay_batch_size=40_000, prioritized_replay_alpha=0.0, seed=1
    )
    uniform.add_batch(rows(4))
    drawn = uniform.replay()
    assert isinstance(drawn, SampleBatch)
    assert np.bincount(drawn["obs"]) / drawn.count == pytest.approx([0.25] * 4, abs=0.01)


def test_an_error_that_is_not_finite_is_refused_and_not_later_a_draw() -> None:
    buffer = LocalReplayBuffer(learning_starts=1, buffer_size=4, replay_batch_size=2, seed=1)
    buffer.add_batch(rows(4))
    with pytest.raises(ValueError, match="Expected a finite priority of 0 or more for each of 2 places, found"):
        buffer.update_priorities({"default_policy": (np.arange(2), np.array([0.0, np.nan]))})
    buffer.update_priorities({"default_policy": (np.arange(2), np.array([0.0, 1.0]))})
    assert buffer.replay().count == 2


def test_d30_first_priorities_of_rows_and_the_least_one() -> None:
    settings: dict[str, Any] = {"learning_starts": 1, "buffer_size": 8, "replay_batch_size": 40_000, "seed": 1}
    buffer = LocalReplayBuffer(**settings, prioritized_replay_alpha=1.0)
    buffer.add_batch(rows(2, weights=np.array([3.0, 1.0])))
    drawn: Any = buffer.replay()
    assert np.bincount(drawn["obs"]) / drawn.count == pytest.approx([0.75, 0.25], abs=0.01)
    buffer.add_batch(rows(2))
    drawn = buffer.replay()
    assert np.bincount(drawn["batch_indexes"]) / drawn.count == pytest.approx([0.5, 1 / 6, 1 / 6, 1 / 6], abs=0.01)
    buffer = LocalReplayBuffer(**settings, prioritized_replay_alpha=1.0, prioritized_replay_eps=0.5)
    buffer.add_batch(rows(2))
    buffer.update_priorities({"default_policy": (np.arange(2), np.array([0.0, 1.0]))})
    drawn = buffer.replay()
    assert np.bincount(drawn["obs"]) / drawn.count == pytest.approx([0.25, 0.75], abs=0.01)


def test_d30_column_of_a_buffer_keeps_what_later_batches_have_in_it() -> None:
    buffer = LocalReplayBuffer(learning_starts=1, buffer_size=8, replay_batch_size=100, seed=1)
    for value in (np.array([1]), np.array([2.5]), np.array([2**40 + 0.5])):
        buffer.add_batch(rows(1, value=value, name=np.array([str(value[0])])))
    drawn: Any = buffer.replay()
    assert set(drawn["value"]) == {1.0, 2.5, 2**40 + 0.5}
    assert set(drawn["name"]) == {"1", "2.5", str(2**40 + 0.5)}
    with pytest.raises(UsageError, match="Store more, name, value in every batch or in none"):
        buffer.add_batch(rows(1, more=np.zeros(1)))


def test_d30_oldest_rows_leave_first_and_modes() -> None:
    buffer = LocalReplayBuffer(learning_starts=1, buffer_size=10, replay_batch_size=500, seed=1)
    for start in range(0, 24, 4):
        buffer.add_batch(SampleBatch({"obs": np.arange(start, start + 4)}))
    drawn = buffer.replay()
    assert isinstance(drawn, SampleBatch)
    assert set(drawn["obs"]) == set(range(14, 24))
    team = [MultiAgentBatch({name: SampleBatch({"obs": np.full(4, step)}) for name in "ab"}, 4) for step in range(5)]
    lockstep = LocalReplayBuffer(learning_starts=1, buffer_size=12, replay_batch_size=8, replay_mode="lockstep", seed=1)
    for batch in team:
        lockstep.add_batch(batch)
    for _ in range(20):
        drawn = lockstep.replay()
        assert isinstance(drawn, MultiAgentBatch)
        assert drawn.policy_batches["a"]["obs"].tolist() == drawn.policy_batches["b"]["obs"].tolist()
        assert set(drawn.policy_batches["a"]["obs"]) <= {2, 3, 4}
    with pytest.raises(ValueError, match="must be 'independent' or 'lockstep'"):
        LocalReplayBuffer(replay_mode="both")


def test_d35_results_come_after_the_time_and_the_steps(alone: WorkerSet) -> None:
    config = {"min_iter_time_s": 0.3, "timesteps_per_iteration": 200}
    train = ParallelRollouts(alone).for_each(TrainOneStep(alone))
    start = time.monotonic()
    results = StandardMetricsReporting(train, alone, config).take(2)
    assert time.monotonic() - start > 0.6
    first, second = results
    assert first["episode_reward_mean"] == first["episode_len_mean"] == first["episode_reward_max"] == 10.0
    assert second["timesteps_total"] - first["timesteps_total"] >= 200
    assert first["info"]["num_steps_sampled"] == first["timesteps_total"] >= 200
    assert first["timers"].keys() >= {"learn_time_ms", "learn_throughput"}
    assert "w" in first["info"]["learner"]["default_policy"]


@pytest.mark.parametrize("case", ORACLES["D39"]["cases"], ids=lambda case: str(case["inputs"]["training_intensity"]))
def test_d39_training_intensity(case: dict[str, Any]) -> None:
    inputs = case["inputs"]
    config = {name: inputs[name] for name in inputs if name != "num_envs"} | {"num_envs_per_worker": inputs["num_envs"]}
    assert turns_of(config) == case["expected"]["weights"]


def test_d41_target_follows_each_due_update_only(alone: WorkerSet) -> None:
    updates: list[int] = []
    metrics_at: list[int] = []

    def note(item: Any) -> Any:
        metrics_at.append(LocalIterator.get_metrics().counters["num_steps_sampled"])
        return item

    policy: Any = alone.local_worker().get_policy()
    policy.update_target = lambda: updates.append(metrics_at[-1])
    plan = ParallelRollouts(alone).for_each(note).for_each(UpdateTargetNetwork(alone, 250))
    plan.take(10)
    assert updates == [300, 600, 900]
    counters = plan.shared_metrics.get().counters
    assert (counters["num_target_updates"], counters["last_target_update_ts"]) == (3, 900)
