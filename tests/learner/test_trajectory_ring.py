"""Trajectories that are drawn again, and what a recurrent policy puts out for them, against loops over single steps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sf.config import ModelConfig
from sf.learner.batch import Batch
from sf.learner.trajectory_ring import DrawnTrajectories, TrajectoryRing
from sf.nets.initialization import orthogonal
from sf.policy import ActorCritic
from sf.replay import NothingToDraw
from sf.spaces import EnvInfo, LeafSpec
from tests.helpers.batches import make_batch
from tests.helpers.updates import DISCRETE, OBS_SIZE

STEPS, ENVS, STATE = 5, 3, 4


def batch(number: int, valid: Tensor | None = None) -> Batch:
    """Its actions, rewards, memories and versions say where they come from."""
    random = torch.Generator().manual_seed(number)
    shape, time, row = (STEPS, ENVS), torch.arange(STEPS).unsqueeze(-1), torch.arange(ENVS)
    kind = torch.rand(shape, generator=random)
    return make_batch(
        observations={"obs": torch.randn(STEPS + 1, ENVS, OBS_SIZE, generator=random)},
        initial_memory=(10 * number + row).unsqueeze(-1).expand(-1, STATE).to(torch.float32),
        streams=row,
        actions=100 * number + 10 * row + time,
        behavior_log_probs=torch.zeros(shape),
        values=torch.zeros(shape),
        rewards=torch.randn(shape, generator=random),
        terminated=kind < 0.2,
        truncated=kind > 0.8,
        bootstrap_values=torch.zeros(ENVS),
        final_values=torch.zeros(shape),
        policy_version=torch.full(shape, number),
        valid=torch.ones(shape, dtype=torch.bool) if valid is None else valid,
    )


def drawn(ring: TrajectoryRing, size: int = 200 * STEPS) -> DrawnTrajectories:
    (minibatch,) = ring.minibatches(1, size)
    assert isinstance(minibatch, DrawnTrajectories)
    return minibatch


def test_trajectories_come_back_whole_and_with_the_memory_that_they_began_with() -> None:
    torch.manual_seed(0)
    ring, batches = TrajectoryRing(1000), [batch(number) for number in range(3)]
    assert [ring.add(each) for each in batches] == [STEPS * ENVS] * 3
    assert ring.num_added == 3 * STEPS * ENVS
    minibatch, seen = drawn(ring), set()
    assert minibatch.rewards.shape == (STEPS, 200)
    assert len(minibatch) == 200 * STEPS
    for column, first in enumerate(minibatch.actions[0].tolist()):
        number, row = divmod(first // 10, 10)
        seen.add((number, row))
        origin = batches[number]
        assert torch.equal(minibatch.actions[:, column], origin.actions[:, row])
        assert torch.equal(minibatch.rewards[:, column], origin.rewards[:, row])
        assert torch.equal(minibatch.terminated[:, column], origin.terminated[:, row])
        assert torch.equal(minibatch.truncated[:, column], origin.truncated[:, row])
        assert torch.equal(minibatch.observations["obs"][:, column], origin.observations["obs"][:, row])
        assert minibatch.initial_memory[column].tolist() == [10 * number + row] * STATE
    assert len(seen) == 3 * ENVS
    assert minibatch.versions.tolist() == (minibatch.actions // 100).flatten().tolist()


def test_the_oldest_trajectories_make_room() -> None:
    ring = TrajectoryRing(2 * ENVS * STEPS + 1)
    for number in range(4):
        ring.add(batch(number))
    assert set(drawn(ring).versions.flatten().tolist()) == {2, 3}


def test_a_minibatch_has_at_least_one_trajectory() -> None:
    ring = TrajectoryRing(100)
    ring.add(batch(0))
    assert drawn(ring, size=1).rewards.shape == (STEPS, 1)
    assert drawn(ring, size=3 * STEPS - 1).rewards.shape == (STEPS, 2)


def test_trajectories_of_other_policies_are_not_drawn() -> None:
    valid = torch.zeros(STEPS, ENVS, dtype=torch.bool)
    ring = TrajectoryRing(100)
    assert ring.add(batch(0, valid)) == 0
    with pytest.raises(NothingToDraw, match="another policy"):
        drawn(ring)
    valid[2, 1] = True
    assert ring.add(batch(1, valid)) == 1
    minibatch = drawn(ring, size=2 * STEPS)
    assert set(minibatch.actions[0].tolist()) == {110}
    assert minibatch.versions.tolist() == [1, 1]  # of the steps that are its own
    assert not [*ring.minibatches(0, STEPS)]


@pytest.mark.parametrize("rnn_type", ["gru", "lstm"])
@pytest.mark.parametrize("burn_in", [0, 2])
def test_outputs_are_those_of_the_policy_step_by_step(rnn_type: str, burn_in: int) -> None:
    torch.manual_seed(1)
    info = EnvInfo("test", 1, {"obs": LeafSpec((OBS_SIZE,), "float32")}, DISCRETE)
    size = STATE // (2 if rnn_type == "lstm" else 1)
    model = ModelConfig(encoder_mlp_layers=(8,), use_rnn=True, rnn_type=rnn_type, rnn_size=size)  # type: ignore[arg-type]
    policy = ActorCritic(info, model)
    orthogonal(policy.policy_head.weight, policy.policy_head.bias, 1.0)
    ring = TrajectoryRing(1000)
    ring.add(batch(0))
    minibatch = drawn(ring, size=7 * STEPS)
    params, values = minibatch.outputs(policy, burn_in)
    state, over = minibatch.initial_memory, minibatch.terminated | minibatch.truncated
    for time in range(STEPS + 1):
        if time:
            state = state * ~over[time - 1].unsqueeze(-1)
        of_step, value, state = policy.forward({"obs": minibatch.observations["obs"][time]}, state)
        if time >= burn_in:
            torch.testing.assert_close(params[time - burn_in], of_step)
            torch.testing.assert_close(values[time - burn_in], value)
    observed = minibatch.observations["obs"].requires_grad_()
    minibatch.outputs(policy, burn_in)[1].sum().backward()  # type: ignore[no-untyped-call]
    assert observed.grad is not None
    assert not observed.grad[:burn_in].any()
    assert observed.grad[burn_in:].any()
