"""Recurrent policies: initial weights and state, resets inside sequences, whole trajectories, ratio 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sf.config import LearnerConfig, ModelConfig
from sf.learner.batcher import Batcher
from sf.learner.minibatches import Selection
from sf.learner.update import Update
from sf.nets.recurrent import Memory
from sf.policy import ActorCritic, Sequences
from sf.spaces import ActionSpec, EnvInfo, LeafSpec
from tests.helpers.batches import make_batch
from tests.helpers.lab import Lab, make_lab, step_until

KINDS: list[dict[str, Any]] = [
    {"rnn_type": "lstm"},
    {"rnn_type": "gru"},
    {"rnn_type": "lstm", "rnn_num_layers": 2},
    {"rnn_type": "gru", "actor_critic_share_weights": False},
]


def make_policy(**changes: Any) -> ActorCritic:
    info = EnvInfo("test", 1, {"obs": LeafSpec((3,), "float32")}, ActionSpec.discrete(2))
    config = {"use_rnn": True, "rnn_size": 8, "encoder_mlp_layers": (8,), **changes}
    return ActorCritic(info, ModelConfig(**config))


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_c32_orthogonal_weights_and_zero_biases(kind: Any) -> None:
    memory = Memory(8, ModelConfig(rnn_type=kind, rnn_size=8))
    for name, parameter in memory.named_parameters():
        if "bias" in name:
            assert torch.count_nonzero(parameter) == 0
        else:
            torch.testing.assert_close(parameter.T @ parameter, torch.eye(8), atol=1e-5, rtol=0)


@pytest.mark.parametrize("config", KINDS)
def test_c33_initial_state_is_zero(config: dict[str, Any]) -> None:
    policy = make_policy(**config)
    state = policy.get_initial_state(5)
    assert state.shape == (5, policy.state_size)
    assert policy.state_size == ModelConfig(use_rnn=True, rnn_size=8, **config).memory_size
    assert torch.count_nonzero(state) == 0
    observations = {"obs": torch.randn(5, 3)}
    assert torch.equal(policy.values(observations), policy.values(observations, state))


def test_c33_number_of_parameters(oracles: dict[str, Any]) -> None:
    for inputs, expected in ((case["inputs"], case["expected"]) for case in oracles["C33"]["cases"]):
        image = LeafSpec((inputs["frames"], 84, 84), "uint8")
        config = ModelConfig(
            encoder_conv_architecture="convnet_atari",
            nonlinearity="relu",
            use_rnn=True,
            rnn_type="lstm",
            rnn_size=inputs["lstm_size"],
            normalize_returns=False,
        )
        policy = ActorCritic(EnvInfo("atari", 1, {"obs": image}, ActionSpec.discrete(inputs["num_actions"])), config)
        assert policy.flat_parameters.numel() == expected["parameters"]


@pytest.mark.parametrize("config", KINDS)
def test_c34_outputs_after_a_done_are_those_of_a_fresh_sequence(config: dict[str, Any]) -> None:
    policy = make_policy(**config)
    steps, rows = 6, 4
    observations, actions = torch.randn(steps, rows, 3), torch.zeros(steps * rows, dtype=torch.int64)
    resets = torch.zeros(steps, rows, dtype=torch.bool)
    resets[3, 1] = True
    whole = policy.evaluate(
        {"obs": observations.flatten(0, 1)}, actions, Sequences(torch.randn(rows, policy.state_size), resets)
    )
    fresh = policy.evaluate(
        {"obs": observations[3:, 1]},
        actions[:3],
        Sequences(policy.get_initial_state(1), torch.zeros(3, 1, dtype=torch.bool)),
    )
    values = whole.normalized_values.view(steps, rows)
    torch.testing.assert_close(values[3:, 1], fresh.normalized_values)
    assert not torch.allclose(values[3:, 0], fresh.normalized_values)


@pytest.mark.parametrize("config", KINDS)
def test_no_rows_at_all_are_answered(config: dict[str, Any]) -> None:
    """With two policies a group may have no agent of one of them."""
    policy = make_policy(**config)
    step = policy.act({"obs": torch.zeros(0, 3)}, policy.get_initial_state(0))
    assert step.action.shape == (0,)
    assert step.state.shape == (0, policy.state_size)


@pytest.mark.parametrize("shuffle", [True, False])
def test_c35_minibatches_are_whole_columns_in_the_order_of_time(shuffle: bool) -> None:
    steps, trajectories = 5, 8
    selection = Selection(torch.ones(steps, trajectories, dtype=torch.bool), torch.zeros(steps, trajectories), 10)
    parts = selection.deal(4, shuffle, whole_trajectories=True)
    for part in parts:
        rows = part.counted.view(steps, 2)
        assert torch.equal(rows // trajectories, torch.arange(steps).unsqueeze(-1).expand(steps, 2))
        assert torch.equal(rows % trajectories, part.columns.expand(steps, 2))  # type: ignore[union-attr]
    assert sorted(torch.cat([part.counted for part in parts]).tolist()) == list(range(steps * trajectories))


@pytest.mark.parametrize("oldest", [3, 10])
def test_steps_that_train_are_found_among_those_of_their_columns(oldest: int) -> None:
    torch.manual_seed(0)
    steps, trajectories = 5, 8
    own, ages = torch.rand(steps, trajectories) < 0.7, torch.randint(0, 6, (steps, trajectories))
    for part in Selection(own, ages, oldest).deal(4, True, whole_trajectories=True):
        assert part.columns is not None
        assert part.trained is not None
        rows = (torch.arange(steps).unsqueeze(-1) * trajectories + part.columns).flatten()
        assert torch.equal(rows if part.kept is None else rows[part.kept], part.trained)
        assert torch.equal(part.trained, rows[(own & (ages < oldest)).flatten()[rows]])


@pytest.mark.parametrize("shuffle", [False, True])
def test_c35_every_epoch_deals_the_columns_anew(shuffle: bool) -> None:
    torch.manual_seed(0)
    selection = Selection(torch.ones(5, 16, dtype=torch.bool), torch.zeros(5, 16), 10)
    orders = []
    for _ in range(3):
        columns = [part.columns for part in selection.deal(4, shuffle, whole_trajectories=True)]
        orders.append(tuple(torch.cat(columns).tolist()))  # type: ignore[arg-type]
    assert len(set(orders)) == (3 if shuffle else 1)
    assert (tuple(range(16)) in orders) != shuffle


def next_batch(lab: Lab, roles: list[Any]) -> Any:
    """A dataset that real rollout and inference workers have collected."""
    learner = roles[0]
    batcher: Batcher = learner.source
    others = roles[1:]
    step_until(others, lambda: len(lab.slots.waiting_for(0)) * lab.slots.topology.rows >= batcher.trajectories)
    return batcher.next()


@pytest.mark.parametrize("config", KINDS)
def test_c36_ratio_is_one_in_the_first_minibatch_over_random_ends(tmp_path: Path, config: dict[str, Any]) -> None:
    flags = {"use_rnn": True, "rnn_size": 16, "rollout": 16, "num_envs_per_worker": 8, **config}
    lab = make_lab(tmp_path, "CartPole-v1", **flags)
    roles = lab.build_all()
    num_ends = 0
    for iteration in range(4):  # episodes of CartPole end within 16 to 60 random steps
        batch = next_batch(lab, roles)
        assert (iteration == 0) == (torch.count_nonzero(batch.initial_memory) == 0)
        num_ends += int(batch.resets[1:].sum())
        policy: ActorCritic = roles[0].network
        with torch.no_grad():
            evaluation = policy.evaluate(
                {name: leaf[:-1].flatten(0, 1) for name, leaf in batch.observations.items()},
                batch.actions.flatten(),
                Sequences(batch.initial_memory, batch.resets[:-1]),
            )
        ratios = (evaluation.log_probs - batch.behavior_log_probs.flatten()).exp()
        torch.testing.assert_close(ratios, torch.ones_like(ratios), atol=1e-5, rtol=0)
        values = policy.denormalize(evaluation.normalized_values).view_as(batch.values)
        torch.testing.assert_close(values, batch.values, atol=1e-4, rtol=1e-4)
        roles[0]._train(batch)
    assert num_ends > 10
    for role in roles:
        role.close()


@pytest.mark.parametrize("config", KINDS)
def test_c33_next_trajectory_goes_on_where_the_last_one_ended(tmp_path: Path, config: dict[str, Any]) -> None:
    """The value of the last observation is asked for once more, which is no step of the memory."""
    lab = make_lab(tmp_path, "CartPole-v1", use_rnn=True, rnn_size=8, rollout=4, num_envs_per_worker=4, **config)
    roles = lab.build_all()
    policy: ActorCritic = roles[0].network
    num_ends = 0
    state = policy.get_initial_state(4)
    for _ in range(8):
        batch = next_batch(lab, roles)
        order = batch.streams.argsort()
        torch.testing.assert_close(batch.initial_memory[order], state, atol=1e-5, rtol=1e-5)
        for t in range(4):
            step = policy.act({"obs": batch.observations["obs"][t, order]}, state)
            ended = (batch.terminated | batch.truncated)[t, order]
            num_ends += int(ended.sum())
            state = torch.where(ended.unsqueeze(-1), 0.0, step.state)
        roles[0].source.release(True)
    assert num_ends > 0
    for role in roles:
        role.close()


def test_values_of_final_and_last_observations_know_the_past(tmp_path: Path) -> None:
    """The value after a truncation belongs to the episode that was cut, not to the next one."""
    lab = make_lab(
        tmp_path,
        "sf/Counter-v0",
        env_kwargs='{"episode_steps": 5, "truncate": true}',
        use_rnn=True,
        rnn_size=8,
        num_envs_per_worker=2,
    )
    roles = lab.build_all()
    batch = next_batch(lab, roles)
    policy: ActorCritic = roles[0].network
    assert batch.truncated.any()
    state, column = batch.initial_memory[:1], 0
    for t in range(8):
        step = policy.act({"obs": batch.observations["obs"][t, :1]}, state)
        torch.testing.assert_close(step.info.value_prediction, batch.values[t, :1], atol=1e-5, rtol=1e-5)
        state = step.state
        if batch.truncated[t, column]:
            break
    final = {"obs": batch.observations["obs"][t, :1] + torch.tensor([0, 0, 1])}  # the environment counts its steps
    torch.testing.assert_close(policy.values(final, state), batch.final_values[t, :1], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(policy.values(final), batch.final_values[t, :1], atol=1e-5)
    for role in roles:
        role.close()


def test_steps_that_do_not_train_are_gone_through_all_the_same() -> None:
    torch.manual_seed(0)
    policy = make_policy()
    steps, rows = 4, 3
    shape = (steps, rows)
    state = torch.randn(rows, policy.state_size)
    ages = torch.zeros(shape, dtype=torch.int64)
    ages[0, 1] = -20  # twenty versions old
    batch = make_batch(
        observations={"obs": torch.randn(steps + 1, rows, 3)},
        initial_memory=state,
        streams=torch.arange(rows),
        actions=torch.zeros(shape, dtype=torch.int64),
        behavior_log_probs=torch.full(shape, -0.7),
        values=torch.zeros(shape),
        rewards=torch.randn(shape),
        terminated=torch.zeros(shape, dtype=torch.bool),
        truncated=torch.zeros(shape, dtype=torch.bool),
        bootstrap_values=torch.zeros(rows),
        final_values=torch.zeros(shape),
        policy_version=ages,
        valid=torch.ones(shape, dtype=torch.bool),
    )
    update = Update(policy, LearnerConfig(num_batches_per_epoch=1, num_epochs=1, max_policy_lag=10))
    seen = []
    original = update._step

    def spy(evaluation: Any, minibatch: Any, *rest: Any) -> None:
        seen.append((evaluation.log_probs.detach().clone(), len(minibatch)))
        original(evaluation, minibatch, *rest)

    update._step = spy  # type: ignore[assignment]
    expected = policy.evaluate(
        {"obs": batch.observations["obs"][:-1].flatten(0, 1)},
        batch.actions.flatten(),
        Sequences(state, batch.resets[:-1]),
    ).log_probs.detach()
    list(update.steps(batch))
    ((log_probs, count),) = seen
    assert count == steps * rows - 1
    torch.testing.assert_close(log_probs.sort().values, expected[torch.arange(12) != 1].sort().values)


@pytest.mark.parametrize("async_rl", [True, False])
def test_memory_begins_anew_where_an_episode_ended_with_the_trajectory(tmp_path: Path, async_rl: bool) -> None:
    """Also where a group has a single slot, so that the new trajectory overwrites the old one."""
    flags = {"rollout": 20, "use_rnn": True, "rnn_size": 8, "async_rl": async_rl, "batch_size": 160}
    lab = make_lab(tmp_path, "tests.environments.fault:Fault-v0", **flags)
    roles = lab.build_all()
    assert async_rl or lab.shared.topology.slots_per_group == 1
    seen = []
    assemble = roles[0].source.next

    def looked_at() -> Any:
        if (batch := assemble()) is not None:
            seen.append(batch.initial_memory.clone())
            assert batch.terminated[-1].all(), "episodes have the length of trajectories"
        return batch

    roles[0].source.next = looked_at
    step_until(roles, lambda: len(seen) == 4)
    assert all((memory == 0).all() for memory in seen)
    assert (lab.slots.memory != 0).any()
