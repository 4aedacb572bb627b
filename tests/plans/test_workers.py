"""Workers of this process and of others: rows D1 to D4, D11 to D13, D20, and what breaks."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from sf.errors import ConfigError, RestartsSpent, UsageError
from sf.plans import (
    Concurrently,
    LocalIterator,
    LSTMModel,
    OperatorFailed,
    ParallelRollouts,
    QModel,
    SampleBatch,
    TorchModel,
    WorkerSet,
)
from sf.plans.actor_critic import add_advantages
from sf.plans.numpy_acting import act_in_numpy
from sf.plans.policy import dummy_batch
from tests.helpers.planned import CRASHING, TEN_STEPS, CountingPolicy, TenSteps, TorchPull

ORACLES: dict[str, Any] = json.loads((Path(__file__).parents[1] / "oracles.json").read_text())
COLUMNS = {"obs", "new_obs", "actions", "rewards", "dones", "infos", "eps_id", "unroll_id", "agent_index", "t"}


@pytest.fixture
def workers() -> Iterator[WorkerSet]:
    """One local and two remote ones."""
    settings = {"env": TEN_STEPS, "num_workers": 2, "num_envs_per_worker": 2, "rollout_fragment_length": 15, "seed": 1}
    with WorkerSet(CountingPolicy, settings) as workers:
        yield workers


def local(**settings: Any) -> WorkerSet:
    return WorkerSet(CountingPolicy, {"env": TEN_STEPS, "rollout_fragment_length": 15, "seed": 1, **settings})


def check_columns(batch: SampleBatch) -> None:
    """Rows D2 to D4, of the counting policy in episodes of ten steps."""
    assert batch.keys() >= COLUMNS
    assert {len(column) for column in batch.values()} == {batch.count}
    same = (batch["eps_id"][1:] == batch["eps_id"][:-1]) & (batch["agent_index"][1:] == batch["agent_index"][:-1])
    assert (batch["new_obs"][:-1][same] == batch["obs"][1:][same]).all()
    assert (batch["obs"][:, 0] == batch["t"]).all()
    assert (batch["t"] == batch["state_in_0"]).all(), "the state begins anew with the episode"
    assert (batch["state_out_0"] == batch["state_in_0"] + 1).all()
    assert (batch["state_in_0"][1:][same] == batch["state_out_0"][:-1][same]).all()
    assert (batch["dones"] == (batch["t"] == 9)).all()
    assert (batch["other_value"][:, 0] == 10 * batch["t"]).all()


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


@pytest.mark.more
def test_d12_remote_workers_have_the_weights_of_the_local_one(workers: WorkerSet) -> None:
    workers.local_worker().set_weights({"default_policy": {"w": 4.5}})
    workers.sync_weights()
    assert workers.foreach_worker(lambda worker: worker.get_weights()) == [{"default_policy": {"w": 4.5}}] * 3
    assert (
        workers.foreach_policy(lambda policy, name: (name, policy.get_weights()["w"])) == [("default_policy", 4.5)] * 3
    )
    assert workers.trainable_policies() == ["default_policy"]
    assert len(set(workers.foreach_worker(lambda _: os.getpid()))) == 3
    batches = [worker.sample() for worker in workers.remote_workers()]
    for batch in batches:
        check_columns(batch)
        assert batch.count == 30
        assert (batch["some_value"] == 4.5).all()
    assert not set(batches[0]["eps_id"]) & set(batches[1]["eps_id"]), "no two workers use the same number"
    workers.add_workers(1)
    assert len(workers.foreach_worker(lambda _: None)) == 4


def test_d13_manual_loop(workers: WorkerSet) -> None:
    for _ in range(3):
        futures = [worker.remote.sample() for worker in workers.remote_workers()]
        batch = SampleBatch.concat_samples([future.result() for future in futures])
        workers.local_worker().learn_on_batch(batch)
        workers.sync_weights()
    assert workers.local_worker().get_policy().learned == [60, 60, 60]
    assert workers.foreach_worker(lambda worker: worker.get_weights()) == [{"default_policy": {"w": 4.5}}] * 3


@pytest.mark.more
def test_a_sample_says_how_many_optimizer_steps_led_to_the_policy_that_acted(workers: WorkerSet) -> None:
    (first, _) = workers.remote_workers()
    assert set(first.sample()["policy_version"]) == {0}
    for _ in range(2):
        workers.local_worker().learn_on_batch(SampleBatch({"obs": np.zeros((3, 1))}))
    waiting = first.remote.sample().result()
    assert set(waiting["policy_version"]) == {0}, "nothing was pushed"
    workers.sync_weights()
    assert set(first.sample()["policy_version"]) == {2}


@pytest.mark.more
def test_d12_weights_of_one_remote_worker_are_set_until_others_are_pushed(workers: WorkerSet) -> None:
    first, second = workers.remote_workers()
    first.set_weights({"default_policy": {"w": 6.5}}, {"timestep": 7})
    assert first.apply(lambda worker: worker.global_vars) == {"timestep": 7}
    assert first.get_weights(["default_policy"]) == {"default_policy": {"w": 6.5}}
    for _ in range(2):
        assert set(first.sample()["some_value"]) == {6.5}
    assert set(second.sample()["some_value"]) == {1.5}
    workers.sync_weights()
    assert set(first.sample()["some_value"]) == {1.5}


class Holding(CountingPolicy):
    """Weights of any form."""

    held: Any = None

    def get_weights(self) -> Any:
        return self.held

    def set_weights(self, weights: Any) -> None:
        self.held = weights


def test_d1_weights_of_any_type_keep_their_bits_in_shared_memory() -> None:
    """They may grow, and become of other types."""
    wide = torch.arange(100_000)
    with WorkerSet(Holding, {"env": TEN_STEPS, "num_workers": 1, "rollout_fragment_length": 15}) as workers:
        for weights in (
            None,
            {"w": 3, "x": 0.1, "flag": True, "name": "heavy"},
            {"a": np.arange(6, dtype=np.float64).reshape(2, 3), "b": [np.int64(2), np.float32(0.3)], "w": 0.5},
            [wide[5:8], {"c": (1, 2)}],
        ):
            workers.local_worker().get_policy().held = weights
            workers.sync_weights()
            (found,) = workers.remote_workers()[0].get_weights().values()
            np.testing.assert_equal(found, [np.arange(5, 8), {"c": (1, 2)}] if isinstance(weights, list) else weights)
            workers.remote_workers()[0].sample()


def test_d20_modes(workers: WorkerSet) -> None:
    bulk = ParallelRollouts(workers, mode="bulk_sync")
    assert [batch.count for batch in bulk.take(2)] == [60, 60]
    assert bulk.shared_metrics.get().counters["num_steps_sampled"] == 120
    assert bulk.shared_metrics.get().counters["num_agent_steps_sampled"] == 120
    bulk.close()
    one_by_one = ParallelRollouts(workers, mode="async", num_async=2)
    assert [batch.count for batch in one_by_one.take(4)] == [30, 30, 30, 30]
    one_by_one.close()
    raw = ParallelRollouts(workers, mode="raw")
    assert not isinstance(raw, LocalIterator)
    sums = raw.for_each(lambda batch: (os.getpid(), float(batch["rewards"].sum()))).gather_sync()
    found = sums.take(4)
    assert {total for _, total in found} == {30.0}
    assert len({pid for pid, _ in found} | {os.getpid()}) == 3, "the function runs in the workers"
    sums.close()
    with pytest.raises(ValueError, match="must be 'bulk_sync', 'async' or 'raw'"):
        ParallelRollouts(workers, mode="sync")


def test_d15_d20_local_rollouts_step_nothing_before_next() -> None:
    with local() as workers:
        before = TenSteps.steps
        rollouts = ParallelRollouts(workers).for_each(lambda batch: batch.count)
        assert TenSteps.steps == before
        assert next(rollouts) == 15
        assert TenSteps.steps == before + 15


@pytest.mark.more
def test_worker_that_is_killed_is_replaced_and_counted(workers: WorkerSet) -> None:
    first, second = workers.remote_workers()
    first.sample()
    processes = workers.fragments.processes
    pid = processes.pids()["rollout-1"]
    future = second.remote.sample()
    os.kill(pid, signal.SIGKILL)
    check_columns(future.result())
    check_columns(second.sample())
    assert second.apply(lambda _: os.getpid()) != pid
    assert processes.faults()["faults/restarts"] == 1


@pytest.mark.more
def test_transforms_survive_the_worker(workers: WorkerSet) -> None:
    raw = ParallelRollouts(workers, mode="raw")
    counts = raw.for_each(lambda batch: batch.count).gather_async()
    assert next(counts) == 30
    processes = workers.fragments.processes
    os.kill(processes.pids()["rollout-0"], signal.SIGKILL)
    assert counts.take(6) == [30] * 6
    counts.close()


@pytest.mark.more
def test_environment_that_crashes_again_and_again_in_one_worker_ends_the_plan_in_order() -> None:
    settings = {
        "env": CRASHING, "env_config": {"only": 1}, "num_workers": 2, "rollout_fragment_length": 50,
        "faults": {"max_restarts": 1}, "seed": 1,
    }  # fmt: skip
    with WorkerSet(CountingPolicy, settings) as workers, pytest.raises(RestartsSpent, match="died more than 1 times"):
        ParallelRollouts(workers, mode="bulk_sync").take(2)


@pytest.mark.more
def test_exception_in_a_function_that_workers_were_sent(workers: WorkerSet) -> None:
    with pytest.raises(OperatorFailed, match="worker 0 was sent raised ZeroDivisionError"):
        workers.foreach_worker(lambda worker: 1 / worker.worker_index if hasattr(worker, "worker_index") else 0)
    assert workers.remote_workers()[0].sample().count == 30, "the worker goes on"


@pytest.mark.more
def test_result_of_a_function_that_cannot_be_sent_back(workers: WorkerSet) -> None:
    with pytest.raises(OperatorFailed, match="worker 0 was sent raised TypeError: cannot pickle"):
        workers.foreach_worker(lambda worker: threading.Lock() if getattr(worker, "worker_index", 1) == 0 else None)
    assert workers.remote_workers()[0].sample().count == 30, "the worker goes on"


@pytest.mark.more
def test_nothing_is_left_behind(workers: WorkerSet) -> None:
    workers.remote_workers()[0].remote.sample()
    processes = workers.fragments.processes
    pids = list(processes.pids().values())
    workers.stop()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


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


def test_policy_that_cannot_be_sent_is_refused() -> None:
    class Locked(CountingPolicy):
        held = threading.Lock()

    settings = {"env": TEN_STEPS, "num_workers": 1}
    with WorkerSet(Locked, settings) as workers, pytest.raises(UsageError, match="cannot be sent"):
        workers.remote_workers()


@pytest.mark.more
def test_torch_policy_acts_in_workers_as_here() -> None:
    settings = {"env": "CartPole-v1", "num_workers": 1, "rollout_fragment_length": 20, "seed": 1}
    with WorkerSet(TorchPull, settings) as workers:
        batch = workers.remote_workers()[0].sample()
        logits = workers.local_worker().get_policy().model(_tensors(batch))[0].detach().numpy()
        np.testing.assert_allclose(logits, batch["action_dist_inputs"], atol=1e-6)
        assert set(batch["actions"]) == {0, 1}


def _tensors(batch: SampleBatch) -> dict[str, Any]:
    return {"obs": torch.as_tensor(batch["obs"])}


@pytest.mark.more
@pytest.mark.parametrize("num_workers", [0, 1])
def test_fragment_at_once_has_the_advantages_of_its_trajectories(num_workers: int) -> None:
    """A remote worker steps all environments as one, and has rows between two episodes that train nothing."""
    from examples.plans.a2c import A2CPolicy

    def one_by_one(*arguments: Any) -> SampleBatch:
        return add_advantages(*arguments)

    found = []
    for policy_class in (A2CPolicy, A2CPolicy.with_updates(postprocess_fn=one_by_one)):
        settings = {
            "env": "CartPole-v1",
            "num_workers": num_workers,
            "num_envs_per_worker": 16,
            "rollout_fragment_length": 40,
            "seed": 3,
            "lambda": 0.9,
        }
        with WorkerSet(policy_class, settings) as workers:
            worker = workers.remote_workers()[0] if num_workers else workers.local_worker()
            found.append([worker.sample() for _ in range(2)])
    assert (found[0][0].count < 16 * 40) == bool(num_workers)
    for at_once, each in zip(*found, strict=True):
        assert at_once["dones"].any()
        assert (at_once["obs"] == each["obs"]).all()
        for name in ("advantages", "value_targets"):
            np.testing.assert_allclose(at_once[name], each[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("env", "activation"), [("CartPole-v1", "tanh"), ("CartPole-v1", "relu"), ("Pendulum-v1", "elu")]
)
def test_acting_in_numpy_is_acting_with_torch(env: str, activation: str) -> None:
    """One choice, and a number of a Box."""
    from examples.plans.a2c import A2CPolicy

    settings = {"env": env, "num_envs_per_worker": 16, "rollout_fragment_length": 100, "seed": 3}
    with WorkerSet(A2CPolicy, {**settings, "model": {"activation": activation}}) as workers:
        policy = workers.local_worker().get_policy()
        act = act_in_numpy(policy, np.random.default_rng(1))
        assert act is not None
        policy.set_weights({name: weight + 0.05 for name, weight in policy.get_weights().items()})
        batch = workers.local_worker().sample()
        with torch.inference_mode():
            logits, _ = policy.model({"obs": torch.as_tensor(batch["obs"])})
            wanted = {
                "action_dist_inputs": logits, "vf_preds": policy.model.value_function(),
                "action_logp": policy.dist_class(logits).logp(torch.as_tensor(batch["actions"])),
            }  # fmt: skip
        for name, values in wanted.items():
            np.testing.assert_allclose(batch[name], values.numpy(), rtol=1e-4, atol=1e-5)
        obs = np.repeat(batch["obs"][:1], 40_000, 0)
        inputs = wanted["action_dist_inputs"][0].numpy()
        mean = inputs[0] if env == "Pendulum-v1" else np.exp(inputs[1]) / np.exp(inputs).sum()
        assert act(obs)[0].mean() == pytest.approx(mean, abs=0.1 if env == "Pendulum-v1" else 0.01)
        other = A2CPolicy.with_updates(
            extra_action_out_fn=lambda *_: {"vf_preds": torch.zeros(1).expand(len(_[1]["obs"]))}
        )
        spaces = policy.observation_space, policy.action_space
        assert act_in_numpy(other(*spaces, {}), np.random.default_rng(1)) is None
        replaced = A2CPolicy(*spaces, {})
        replaced.compute_actions = lambda *_: None  # of this object only
        assert act_in_numpy(replaced, np.random.default_rng(1)) is None
        assert act_in_numpy(CountingPolicy(*spaces, {}), np.random.default_rng(1)) is None


def test_values_of_actions_are_acted_with_in_numpy_but_for_the_share_that_is_drawn() -> None:
    from examples.plans.dqn import DQNPolicy

    policy = DQNPolicy(gym.spaces.Box(-1, 1, (4,), np.float32), gym.spaces.Discrete(3), {})
    act = act_in_numpy(policy, np.random.default_rng(1))
    assert act is not None
    obs = np.random.default_rng(2).random((6000, 4), np.float32)
    best = policy.model({"obs": torch.as_tensor(obs)})[0].argmax(-1).numpy()
    for steps, share in ((0, 1.0), (7500, 0.505), (15_000, 0.01)):
        policy.on_global_var_update({"timestep": steps})
        actions, extra = act(obs)
        assert extra == {}
        assert (actions == best).mean() == pytest.approx(1 - share * 2 / 3, abs=0.03)
        assert (policy.compute_actions(obs)[0] == best).mean() == pytest.approx(1 - share * 2 / 3, abs=0.03)
    policy.config["explore"] = False
    assert act_in_numpy(policy, np.random.default_rng(1)) is None
    assert (policy.compute_actions(obs)[0] == best).all()


@pytest.mark.parametrize("model", [TorchModel, LSTMModel, QModel])
def test_networks_of_plans_are_those_of_training(model: Any) -> None:
    """So pictures go through convolutions, and categories are counted from where they start."""
    for space in (gym.spaces.Box(0, 255, (64, 64, 3), np.uint8), gym.spaces.Discrete(5, start=2)):
        network = model(space, gym.spaces.Discrete(3), 3, {})
        rows = torch.as_tensor(np.stack([space.sample() for _ in range(4)]))
        states = [torch.zeros(4, *state.shape) for state in network.get_initial_state()]
        assert network({"obs": rows}, states)[0].shape == (4, 3)
        assert any(isinstance(part, torch.nn.Conv2d) for part in network.modules()) == (space.shape != ())


@pytest.mark.more
def test_worker_that_dies_in_an_async_union_is_replaced(workers: WorkerSet) -> None:
    """A union asks without waiting, and supervision must not depend on a wait."""
    first, second = ParallelRollouts(workers).duplicate(2)
    together = Concurrently([first, second], mode="async")
    next(together)
    processes = workers.fragments.processes
    os.kill(processes.pids()["rollout-1"], signal.SIGKILL)
    assert len(together.take(6)) == 6
    together.close()
    assert processes.faults()["faults/restarts"] == 1


@pytest.mark.more
def test_items_of_a_slot_that_is_filled_again_are_kept() -> None:
    settings = {"env": TEN_STEPS, "num_workers": 1, "rollout_fragment_length": 1, "seed": 1}
    with WorkerSet(CountingPolicy, settings) as workers:
        counts = ParallelRollouts(workers, mode="raw").for_each(lambda batch: batch.count).gather_async(6)
        assert counts.take(400) == [1] * 400
        counts.close()


def test_function_that_fails_in_a_worker_is_named_and_nothing_hangs(workers: WorkerSet) -> None:
    def divides(batch: SampleBatch) -> float:
        return 1 / 0

    failing = ParallelRollouts(workers, mode="raw").for_each(divides).gather_async()
    with pytest.raises(OperatorFailed, match=r"In worker \d: The operator divides raised ZeroDivisionError"):
        next(failing)
    assert ParallelRollouts(workers).take(1)[0].count == 60, "the workers go on"


def test_iterator_that_was_closed_leaves_its_workers_to_the_next_one(workers: WorkerSet) -> None:
    first = ParallelRollouts(workers, mode="async", num_async=2)
    next(first)
    second = ParallelRollouts(workers, mode="async")
    with pytest.raises(UsageError, match="Another iterator reads these remote workers"):
        next(second)
    first.close()
    second = ParallelRollouts(workers, mode="async", num_async=2)
    workers.local_worker().set_weights({"default_policy": {"w": 8.5}})
    for batch in second.take(8):
        check_columns(batch)
        assert set(batch["some_value"]) == {8.5}, "nothing of the closed iterator comes after it"
    second.close()


@pytest.mark.more
def test_workers_that_were_stopped_do_not_begin_again(workers: WorkerSet) -> None:
    worker = workers.remote_workers()[0]
    worker.sample()
    workers.stop()
    with pytest.raises(UsageError, match="These workers were stopped"):
        worker.sample()


@pytest.mark.more
def test_remote_functions_on_whole_episodes_are_refused() -> None:
    settings = {"env": TEN_STEPS, "num_workers": 1, "batch_mode": "complete_episodes", "rollout_fragment_length": 5}
    with WorkerSet(CountingPolicy, settings) as workers:
        with pytest.raises(UsageError, match="batch_mode='complete_episodes' puts them together elsewhere"):
            ParallelRollouts(workers, mode="raw").for_each(len).gather_sync().take(1)
        assert ParallelRollouts(workers).take(1)[0]["t"].tolist() == list(range(10))


def test_d24_remote_policies_know_the_steps_of_the_plan(workers: WorkerSet) -> None:
    workers.local_worker().set_global_vars({"timestep": 40})
    workers.sync_weights()
    assert workers.foreach_worker(lambda worker: worker.global_vars) == [{"timestep": 40}] * 3


def test_whole_episodes_of_a_team_stay_together() -> None:
    settings = {
        "env": "examples.plans.environments:RockPaperScissors", "batch_mode": "complete_episodes",
        "rollout_fragment_length": 15, "seed": 1,
    }  # fmt: skip
    with WorkerSet({"a": (TorchPull,)}, settings, lambda agent: "a") as workers:
        batch = workers.local_worker().sample()
        assert (batch.env_steps(), batch.agent_steps()) == (20, 40)
        assert set(batch.policy_batches["a"]["agent_index"]) == {0, 1}
