"""The plans in `examples/plans`: rows D10, D36 to D38, D40 to D45."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from examples.plans.a2c import A2C, A2CPolicy
from examples.plans.a3c import A3C
from examples.plans.dqn import DQN
from examples.plans.ppo import PPO
from examples.plans.ppo_and_dqn import PPOAndDQN
from examples.plans.rock_paper_scissors import LSTMPlayer, Player
from sf.plans import (
    ApplyGradients,
    AsyncGradients,
    ConcatBatches,
    LocalIterator,
    ParallelRollouts,
    SampleBatch,
    StandardMetricsReporting,
    Trainer,
    TrainOneStep,
    WorkerSet,
    build_trainer,
)

CARTPOLE: dict[str, Any] = {"env": "CartPole-v1", "seed": 1, "num_workers": 0}


def train(trainer: Trainer, steps: int) -> dict[str, Any]:
    """Until so many steps were sampled."""
    while (result := trainer.train())["timesteps_total"] < steps:
        pass
    return result


def test_d36_a2c_trains_once_per_batch_and_nothing_before_the_first_next() -> None:
    seen: list[str] = []

    def plan(workers: WorkerSet, config: Any) -> LocalIterator:
        def look(batch: Any) -> Any:
            seen.append(type(batch).__name__)
            return batch

        rollouts: Any = ParallelRollouts(workers, mode="bulk_sync")
        steps = rollouts.combine(ConcatBatches(config["train_batch_size"])).for_each(look)
        return StandardMetricsReporting(steps.for_each(TrainOneStep(workers)), workers, config)

    with A2C.with_updates(execution_plan=plan)({**CARTPOLE, "train_batch_size": 400}) as trainer:
        assert seen == []
        result = trainer.train()
        assert seen == ["SampleBatch"]
        assert result["info"]["num_steps_trained"] == result["timesteps_total"] == 400


@pytest.mark.more
def test_d36_a2c_learns() -> None:
    with A2C({**CARTPOLE, "num_envs_per_worker": 8, "rollout_fragment_length": 20, "train_batch_size": 160}) as trainer:
        assert train(trainer, 25_000)["episode_reward_mean"] > 50


@pytest.mark.more
def test_d37_a3c_learns_and_gradients_are_no_older_than_the_last_one_of_their_worker() -> None:
    """So at equal pace a gradient is one step old for each other worker in flight."""
    came_from: list[tuple[int, int]] = []
    led_to: dict[int, int] = {}
    expected: list[tuple[int, int]] = []

    def plan(workers: WorkerSet, config: Any) -> LocalIterator:
        def before(item: Any) -> Any:
            metrics = LocalIterator.get_metrics()
            came_from.append((metrics.current_actor.index, metrics.info["steps_of_gradients"]))
            return item

        def after(_: Any) -> None:
            worker = came_from[-1][0]
            expected.append((worker, led_to.get(worker, 0)))
            led_to[worker] = workers.local_worker().num_steps

        gradients = AsyncGradients(workers).for_each(before)
        return StandardMetricsReporting(
            gradients.for_each(ApplyGradients(workers, update_all=False)).for_each(after), workers, config
        )

    settings = {**CARTPOLE, "num_workers": 2, "num_envs_per_worker": 4}
    with A3C.with_updates(execution_plan=plan)(settings) as trainer:
        assert train(trainer, 16_000)["episode_reward_mean"] > 35
        counted = trainer.workers.local_worker().lag_counted
        assert counted.steps == trainer.workers.local_worker().num_steps == len(came_from) >= 200
    assert {worker for worker, _ in came_from} == {0, 1}
    for (_, steps), (_, least) in zip(came_from, expected, strict=True):
        assert steps >= least


@pytest.mark.more
def test_d37_ppo_takes_the_plan_of_a3c() -> None:
    settings = {**CARTPOLE, "num_workers": 1, "rollout_fragment_length": 20}
    with PPO.with_updates(execution_plan=A3C.execution_plan)(settings) as trainer:
        result = train(trainer, 200)
        assert result["info"]["num_steps_trained"] >= 200
        assert "kl" in result["info"]["learner"]["default_policy"]


def test_d38_d41_dqn_stores_and_trains_in_turn() -> None:
    settings = {"rollout_fragment_length": 4, "train_batch_size": 64, "training_intensity": None}
    with DQN({**CARTPOLE, **settings, "learning_starts": 64}) as trainer:
        before = trainer.train()["info"]
        after = train(trainer, before["num_steps_sampled"] + 1600)["info"]
        stored = (after["num_steps_sampled"] - before["num_steps_sampled"]) / 16
        trained = (after["num_steps_trained"] - before["num_steps_trained"]) / 64
        assert stored == pytest.approx(trained, abs=1)
        assert after["num_target_updates"] >= 3
        model = trainer.get_policy().model
        target, online = model.target.state_dict(), model.network.state_dict()
        assert {name: weight.shape for name, weight in target.items()} == {name: w.shape for name, w in online.items()}
        trainer.get_policy().update_target()
        assert all((target[name] == online[name]).all() for name in online)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_d41_dqn_solves_cartpole(seed: int) -> None:
    best = 0.0
    with DQN({"env": "CartPole-v1", "num_workers": 0, "seed": seed, "min_iter_time_s": 2.0}) as trainer:
        for _ in range(300):
            result = trainer.train()
            best = max(best, result["episode_reward_mean"])
            if best >= 475 or result["timesteps_total"] > 600_000:
                break
    assert best >= 475


@pytest.mark.more
def test_d40_ppo_improves_and_adapts_its_penalty() -> None:
    settings = {**CARTPOLE, "rollout_fragment_length": 256}
    with PPO(settings) as trainer:
        first = trainer.train()["episode_reward_mean"]
        result = train(trainer, 25_000)
        assert result["episode_reward_mean"] > max(50, 2 * first)
        assert trainer.get_policy().kl_coeff != 0.2


@pytest.mark.more
def test_d42_two_algorithms_in_one_run() -> None:
    with PPOAndDQN({"seed": 1}) as trainer:
        local = trainer.workers.local_worker()
        before = local.get_weights()
        batch = local.sample()
        assert set(batch.policy_batches["ppo"]["agent_index"]) == {0, 2}
        assert set(batch.policy_batches["dqn"]["agent_index"]) == {1, 3}
        assert batch.agent_steps() > batch.env_steps() == 50
        result = train(trainer, 4_000)
        after = local.get_weights()
        for policy in ("ppo", "dqn"):
            assert any(not np.array_equal(before[policy][name], after[policy][name]) for name in before[policy]), policy
        assert result["episode_reward_mean"] > 150, "of four agents together"
        assert result["policy_reward_mean"].keys() == {"ppo", "dqn"}


def test_d43_mapping_holds_for_an_episode_and_heuristics_do_not_learn() -> None:
    with Player({"seed": 1, "train_batch_size": 800}) as trainer:
        batch = trainer.workers.local_worker().sample()
        parts = batch.policy_batches
        assert parts.keys() == {"player", "always_same", "beat_last"}
        same, beats = (set(parts[name]["eps_id"]) for name in ("always_same", "beat_last"))
        assert not same & beats
        assert same | beats == set(parts["player"]["eps_id"])
        assert set(parts["player"]["agent_index"]) == {0}
        moves = parts["always_same"].split_by_episode()
        assert all(len(set(episode["actions"])) == 1 for episode in moves)
        result = trainer.train()
        assert result["info"]["learner"].keys() == {"player"}


@pytest.mark.slow
def test_d44_memoryless_player_finds_the_best_answers() -> None:
    with Player({"seed": 1}) as trainer:
        train(trainer, 40_000)
        answers = [int(trainer.compute_single_action(last, "player")) for last in range(3)]
        returns: list[float] = []
        while len(returns) < 1500:
            trainer.workers.local_worker().sample()
            returns += [reward for _, reward in _of_player(trainer)]
    assert answers == [1, 2, 0]
    assert 4.0 <= np.mean(returns) <= 4.9, "4.5 is the most that can be had; the mean of 1,500 has a deviation of 0.12"


def _of_player(trainer: Trainer) -> list[tuple[str, float]]:
    return [pair for episode in trainer.workers.new_episodes() for pair in episode.by_policy if pair[0] == "player"]


@pytest.mark.slow
def test_d44_player_that_remembers_passes_the_one_that_does_not() -> None:
    with LSTMPlayer({"seed": 1}) as trainer:
        assert train(trainer, 120_000)["policy_reward_mean"]["player"] > 6  # 4.5 without memory


def test_d45_one_policy_in_both_seats_is_zero_sum() -> None:
    settings = {
        "env": "examples.plans.environments:RockPaperScissors", "seed": 1, "rollout_fragment_length": 40, "gamma": 0.99,
    }  # fmt: skip
    with WorkerSet(A2CPolicy, settings) as workers:
        batch = workers.local_worker().sample()
        assert batch.agent_steps() == 80
        for episode in workers.new_episodes():
            (_, first), (_, second) = episode.by_policy
            assert first + second == episode.reward == 0
        first, second = (batch["rewards"][batch["agent_index"] == seat] for seat in (0, 1))
        assert (first == -second).all()
        assert (first != 0).any()


def returns_after(steps: int, rewards_to_go: bool) -> float:
    """A policy gradient on discounted returns, or on the rewards of single steps."""

    def postprocess(policy: Any, batch: SampleBatch, others: Any = None, episode: Any = None) -> SampleBatch:
        returns = np.cumsum(batch["rewards"][::-1])[::-1] if rewards_to_go else batch["rewards"]
        batch["advantages"] = np.asarray(returns, np.float32).copy()
        return batch

    def loss(policy: Any, model: Any, dist_class: Any, batch: SampleBatch) -> Any:
        logits, _ = model.from_batch(batch)
        return -(dist_class(logits, model).logp(batch["actions"]) * batch["advantages"]).mean()

    policy = A2CPolicy.with_updates(
        loss_fn=loss, postprocess_fn=postprocess, stats_fn=None, extra_grad_process_fn=None, extra_action_out_fn=None,
        get_default_config=lambda: {"lr": 0.004},
    )  # fmt: skip

    def plan(workers: WorkerSet, config: Any) -> LocalIterator:
        rollouts: Any = ParallelRollouts(workers)
        return StandardMetricsReporting(rollouts.for_each(TrainOneStep(workers)), workers, config)

    settings = {"env": "CartPole-v0", "seed": 1, "batch_mode": "complete_episodes", "rollout_fragment_length": 400}
    with build_trainer("PG", default_policy=policy, execution_plan=plan)(settings) as trainer:
        return float(train(trainer, steps)["episode_reward_mean"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*The environment CartPole-v0 is out of date")
def test_d10_returns_learn_what_rewards_of_single_steps_do_not() -> None:
    with_returns, without = returns_after(62_400, rewards_to_go=True), returns_after(62_400, rewards_to_go=False)
    assert with_returns > 5 * without, (with_returns, without)
