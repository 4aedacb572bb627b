"""Trainers of plans: checkpoints that they go on from (row D46), settings, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from examples.plans.a2c import A2C
from examples.plans.ppo import PPO
from sf.errors import CheckpointError, ConfigError, EnvError, SfError, UsageError
from sf.plans import (
    LocalIterator,
    ParallelRollouts,
    StandardMetricsReporting,
    TrainOneStep,
    WorkerSet,
    build_trainer,
)
from sf.plans.saved_state import storable
from tests.helpers.planned import TEN_STEPS, CountingPolicy
from tests.plans.test_plans import CARTPOLE, train


def test_d46_iterations_and_restored_counters(tmp_path: Path) -> None:
    settings = {**CARTPOLE, "num_envs_per_worker": 2, "rollout_fragment_length": 50, "train_batch_size": 100}
    with A2C(settings) as trainer:
        assert [trainer.train()["training_iteration"] for _ in range(2)] == [1, 2]
        path = trainer.save(tmp_path)
        weights = trainer.workers.local_worker().get_weights()
    with A2C(settings) as other:
        other.restore(path)
        np.testing.assert_equal(other.workers.local_worker().get_weights(), weights)
        result = other.train()
        assert result["training_iteration"] == 3
        assert result["timesteps_total"] == result["info"]["num_steps_trained"] == 300
    with PPO(CARTPOLE) as third, pytest.raises(CheckpointError, match="cannot be gone on from"):
        third.restore(tmp_path / "nothing.pt")


def test_d46_a_damaged_checkpoint_leaves_the_one_before(tmp_path: Path) -> None:
    """As a power failure would leave it; a path of `save` names one, and all are kept unless told otherwise."""
    settings = {**CARTPOLE, "rollout_fragment_length": 50, "train_batch_size": 50}
    with A2C(settings) as trainer:
        paths = []
        for _ in range(3):
            trainer.train()
            paths.append(Path(trainer.save(tmp_path)))
        assert all(path.exists() for path in paths)
        trainer.save(tmp_path, keep=2)
        assert [path.exists() for path in paths] == [False, True, True]
    (paths[2] / "tensors.safetensors").write_bytes(b"")
    with A2C(settings) as other:
        with pytest.raises(CheckpointError, match="cannot be gone on from"):
            other.restore(paths[2])
        other.restore(tmp_path)
        assert other.iteration == 2


@pytest.mark.more
@pytest.mark.parametrize("num_workers", [0, 1])
def test_d46_restore_in_the_middle_goes_back_in_everything(tmp_path: Path, num_workers: int) -> None:
    settings = {
        "env": TEN_STEPS, "num_workers": num_workers, "rollout_fragment_length": 40, "train_batch_size": 120,
        "timesteps_per_iteration": 240,
    }  # fmt: skip
    with A2C.with_updates(default_policy=CountingPolicy)(settings) as trainer:
        assert trainer.train()["timesteps_total"] == 240
        path, learned = trainer.save(tmp_path), trainer.get_policy().learned
        train(trainer, 4_100)
        for worker in trainer.workers.remote_workers():
            worker.sample()  # its episodes are of before the restore
        learned.clear()
        trainer.restore(path)
        assert trainer.workers.foreach_worker(lambda worker: worker.global_vars) == [{"timestep": 240}] * (
            1 + num_workers
        )
        result = trainer.train()
        assert (result["timesteps_total"], result["training_iteration"], learned) == (480, 2, [120, 120])
        assert result["episodes_this_iter"] == 24
        assert trainer.workers.local_worker().lag.min == 0, "weights are published under their step"
        with A2C.with_updates(default_policy=CountingPolicy)(settings) as other:
            other.restore(path)
            assert other.train()["timesteps_total"] == 480


class Owning(CountingPolicy):
    """Without weights in its state, which holds everything that a checkpoint takes."""

    kept: Any = None

    def get_state(self) -> dict[str, Any]:
        table = {(0, 1): np.arange(3), 2: (1, np.float32(0.5)), "seen": {1, "b"}, "nothing": None}
        random = np.random.default_rng(3).bit_generator.state
        return {"w": self.w, "table": table, "random": random, "tensor": torch.ones(2), **(self.kept or {})}

    def set_state(self, state: Any) -> None:
        self.w, self.kept = state["w"], state


def test_d46_state_of_a_policy_from_scratch_comes_back_as_it_was(tmp_path: Path) -> None:
    with A2C.with_updates(default_policy=Owning)({"env": TEN_STEPS}) as trainer:
        policy = trainer.get_policy()
        wanted, policy.w = {**policy.get_state(), "w": 7.5}, 7.5
        trainer.restore(trainer.save(tmp_path))
        np.testing.assert_equal({**policy.kept, "tensor": 0}, {**wanted, "tensor": 0})
        assert isinstance(policy.kept["tensor"], torch.Tensor)
        assert isinstance(policy.kept["table"][2], tuple)
        policy.kept = {"file": Path()}
        with pytest.raises(UsageError, match="policies/default_policy/file is a PosixPath"):
            trainer.save(tmp_path)


class Pair(NamedTuple):
    one: int
    two: int


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"pair": Pair(1, 2)}, "The state/pair is a Pair. A checkpoint takes numbers"),
        ({"seen": {np.int64(3)}}, r"The state/seen is a set of NumPy's numbers. Keep those of Python in it"),
        ({"seen": {(np.float32(3), 1)}}, "The state/seen is a set of NumPy's numbers"),
    ],
)
def test_d46_state_that_would_come_back_as_another_one_is_refused(state: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        storable(state, "The state")
    assert storable({"seen": {(3.0, 1), "a"}}, "The state") == {"seen": {(3.0, 1), "a"}}


def test_settings_that_a_trainer_does_not_have_are_named() -> None:
    with pytest.raises(ConfigError, match="A2C has no setting lear_rate"):
        A2C({**CARTPOLE, "lear_rate": 1.0})
    with pytest.raises(ConfigError, match="Empty has no default_policy"):
        build_trainer("Empty", execution_plan=A2C.execution_plan)({"env": TEN_STEPS})


def test_trainer_of_a_policy_from_scratch() -> None:
    def plan(workers: WorkerSet, config: Any) -> LocalIterator:
        rollouts: Any = ParallelRollouts(workers)
        return StandardMetricsReporting(rollouts.for_each(TrainOneStep(workers)), workers, config)

    trainer = build_trainer("Count", default_policy=CountingPolicy, execution_plan=plan)
    with trainer({"env": TEN_STEPS, "rollout_fragment_length": 10}) as counting:
        assert counting.train()["info"]["learner"] == {"default_policy": {"w": 2.5}}


def test_plan_without_a_report_and_operators_that_return_nothing_are_named() -> None:
    def bare(workers: WorkerSet, config: Any) -> Any:
        return ParallelRollouts(workers)

    def none(workers: WorkerSet, config: Any) -> Any:
        return None

    def forgets(batch: Any) -> None:
        """Returns nothing."""

    def forgetful(workers: WorkerSet, config: Any) -> LocalIterator:
        train = ParallelRollouts(workers).for_each(forgets).for_each(TrainOneStep(workers))
        return StandardMetricsReporting(train, workers, config)

    settings = {"env": TEN_STEPS, "rollout_fragment_length": 10}
    for plan, message in (
        (bare, "gave a SampleBatch, expected a result. End it with StandardMetricsReporting"),
        (forgetful, "TrainOneStep raised AttributeError.*does the operator before it return its item"),
        (none, "returned a NoneType, expected the iterator"),
    ):
        cls = build_trainer("Bare", default_policy=CountingPolicy, execution_plan=plan)
        with pytest.raises(SfError, match=message), cls(settings) as trainer:
            trainer.train()


def test_agents_that_come_within_an_episode_are_refused() -> None:
    env = "tests.environments.coming:test/Comers"
    with (
        WorkerSet(CountingPolicy, {"env": env}) as workers,
        pytest.raises(EnvError, match="Agent 1 of environment 0 is"),
    ):
        workers.local_worker().sample()


def test_policies_that_do_not_exist_are_named() -> None:
    with WorkerSet(CountingPolicy, {"env": TEN_STEPS}) as workers, pytest.raises(UsageError, match="no policy 'other'"):
        TrainOneStep(workers, ["other"])
    policies = {"a": (CountingPolicy,)}
    workers = WorkerSet(policies, {"env": TEN_STEPS}, policy_mapping_fn=lambda agent: "b")
    with workers, pytest.raises(UsageError, match="policy_mapping_fn returned 'b' for agent 0, but the policies are a"):
        workers.local_worker().sample()
