"""Deep Q-learning of a recurrent policy: its targets and its step against slow loops."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from sf.algorithms.dqn import DQN
from sf.algorithms.drqn import DRQN, n_step_targets
from sf.config import LearnerConfig, ModelConfig
from sf.errors import ConfigError
from sf.learner.acting_network import ActingNetwork
from sf.learner.off_policy_trial import try_update
from sf.learner.optimizer import FlatAdam
from sf.learner.trajectory_ring import DrawnTrajectories
from sf.policy import ActorCritic
from sf.spaces import EnvInfo, LeafSpec
from tests.helpers.updates import DISCRETE, OBS_SIZE, one_thread_and_seed

GAMMA, RATE, STEPS, ROWS = 0.9, 1e-2, 7, 6
CONFIG = LearnerConfig(algorithm="drqn", learning_rate=RATE, max_grad_norm=0.0, adam_eps=1e-8, gamma=GAMMA)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    one_thread_and_seed()


def acting_network() -> ActingNetwork:
    info = EnvInfo("test", 1, {"obs": LeafSpec((OBS_SIZE,), "float32")}, DISCRETE)
    model = ModelConfig(
        encoder_mlp_layers=(8,), use_rnn=True, rnn_size=5, exploration="epsilon_greedy", normalize_returns=False
    )
    policy = ActorCritic(info, model)
    return ActingNetwork(policy, FlatAdam(policy, CONFIG), CONFIG)


def trajectories() -> DrawnTrajectories:
    kind = torch.rand(STEPS, ROWS)
    return DrawnTrajectories(
        observations={"obs": torch.randn(STEPS + 1, ROWS, OBS_SIZE)},
        actions=torch.randint(2, (STEPS, ROWS)),
        rewards=torch.randn(STEPS, ROWS),
        terminated=kind < 0.2,
        truncated=kind > 0.8,
        valid=torch.rand(STEPS, ROWS) < 0.9,
        initial_memory=torch.randn(ROWS, 5),
        versions=torch.zeros(STEPS * ROWS, dtype=torch.int64),
    )


def slow_target(
    start: int, rewards: list[float], ends: list[bool], cuts: list[bool], values: list[float], steps: int
) -> float:
    """One row, one step after the other."""
    total, discount, time = 0.0, 1.0, start
    while time < start + steps and time < len(rewards) and not cuts[time]:
        total += discount * rewards[time]
        discount *= GAMMA
        time += 1
        if ends[time - 1]:
            return total
    return total + discount * values[time]


@pytest.mark.parametrize("num_steps", [1, 2, 3, 20])
def test_targets_are_those_of_a_slow_loop(num_steps: int) -> None:
    drawn, values = trajectories(), torch.randn(STEPS + 1, ROWS)
    found = n_step_targets(drawn.rewards, drawn.terminated, drawn.truncated, values, GAMMA, num_steps)
    for row in range(ROWS):
        columns = (column[:, row].tolist() for column in (drawn.rewards, drawn.terminated, drawn.truncated, values))
        rewards, ends, cuts, of_row = columns
        expected = [slow_target(start, rewards, ends, cuts, of_row, num_steps) for start in range(STEPS)]
        torch.testing.assert_close(found[:, row], torch.tensor(expected))


def q_values(policy: ActorCritic, drawn: DrawnTrajectories, time: int, state: Tensor) -> tuple[Tensor, Tensor]:
    """[B, n] of one step, and the state after it."""
    advantages, value, state = policy.forward({"obs": drawn.observations["obs"][time]}, state)
    return value.unsqueeze(-1) + advantages - advantages.mean(-1, keepdim=True), state


def unrolled(policy: ActorCritic, drawn: DrawnTrajectories, burn_in: int) -> list[Tensor]:
    """[B, n] after the first steps, whose state has no gradient."""
    state, found = drawn.initial_memory, []
    for time in range(STEPS + 1):
        if time:
            state = state * ~(drawn.terminated | drawn.truncated)[time - 1].unsqueeze(-1)
        if time == burn_in:
            state = state.detach()
        values, state = q_values(policy, drawn, time, state)
        found.append(values)
    return found[burn_in:]


@pytest.mark.parametrize(("burn_in", "double"), [(0, True), (3, True), (3, False), (STEPS + 5, True)])
def test_it_takes_the_step_of_a_slow_loop(burn_in: int, double: bool) -> None:
    acting, drawn = acting_network(), trajectories()
    algorithm = DRQN(CONFIG, burn_in_share=min(1.0, burn_in / STEPS), num_steps=2, double=double, tau=0.3)
    algorithm.begin(acting)
    with torch.no_grad():
        algorithm.target.flat_parameters.add_(0.1 * torch.randn_like(algorithm.target.flat_parameters))
    policy, target = copy.deepcopy(acting.policy), copy.deepcopy(algorithm.target)
    before = target.flat_parameters.clone()
    scalars = algorithm.update(drawn)

    burn_in = min(burn_in, STEPS - 1)
    present, later = unrolled(policy, drawn, burn_in), unrolled(target, drawn, burn_in)
    losses = []
    for row in range(ROWS):
        best = [int((now if double else then)[row].argmax()) for now, then in zip(present, later, strict=True)]
        values = [then[row, choice].item() for then, choice in zip(later, best, strict=True)]
        rewards, ends, cuts = (
            column[burn_in:, row].tolist() for column in (drawn.rewards, drawn.terminated, drawn.truncated)
        )
        for start in range(STEPS - burn_in):
            if cuts[start] or not drawn.valid[burn_in + start, row]:
                continue
            wanted = torch.tensor(slow_target(start, rewards, ends, cuts, values, 2))
            chosen = present[start][row, drawn.actions[burn_in + start, row]]
            losses.append(functional.smooth_l1_loss(chosen, wanted))
    loss = torch.stack(losses).mean()
    torch.testing.assert_close(scalars["loss"], loss)
    optimizer = torch.optim.Adam(policy.parameters(), RATE)
    policy.flat_gradient.zero_()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    torch.testing.assert_close(acting.policy.flat_parameters, policy.flat_parameters, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        algorithm.target.flat_parameters, before.lerp(policy.flat_parameters, 0.3), rtol=1e-4, atol=1e-5
    )


def test_a_minibatch_without_anything_to_learn_takes_no_step() -> None:
    """Where steps of the own policy lie in the burn-in alone, Adam would go on in the direction of its last steps."""
    acting, drawn = acting_network(), trajectories()
    algorithm = DRQN(CONFIG, burn_in_share=0.5)
    algorithm.begin(acting)
    assert algorithm.update(drawn)["loss"] > 0.0
    before, steps = acting.policy.flat_parameters.clone(), acting.num_steps
    valid = torch.zeros(STEPS, ROWS, dtype=torch.bool)
    valid[: STEPS // 2] = True
    assert algorithm.update(DrawnTrajectories(**{**vars(drawn), "valid": valid})) == {}
    torch.testing.assert_close(acting.policy.flat_parameters, before, rtol=0, atol=0)
    assert acting.num_steps == steps


def test_its_trial_draws_trajectories_and_that_of_dqn_refuses_a_memory() -> None:
    policy = acting_network().policy
    before = policy.flat.clone()
    try_update(DRQN(CONFIG), policy)
    assert torch.equal(policy.flat, before)
    with pytest.raises(ConfigError, match="algorithm=dqn draws single transitions, but use_rnn=True needs whole"):
        try_update(DQN(replace(CONFIG, algorithm="dqn")), policy)


class Broken(DRQN):
    """Its ring does what it is told."""

    def __init__(self, add: Callable[[Any], int], draws: list[object]) -> None:
        super().__init__(CONFIG)
        self.add_to_ring, self.draws = add, draws

    def ring(self, size: int) -> Any:
        return SimpleNamespace(add=self.add_to_ring, minibatches=lambda *arguments: self.draws)


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (Broken(lambda batch: int(batch["mine"].sum()), []), r"raised KeyError in ring\(size\).add\(batch\)"),
        (Broken(len, None), r"raised TypeError in ring\(size\)"),  # type: ignore[arg-type]
        (Broken(lambda batch: 0, []), "must yield one minibatch with observations, actions"),
        (Broken(lambda batch: 0, [torch.zeros(3)]), "must yield one minibatch with observations, actions"),
    ],
)
def test_a_ring_that_is_none_is_told_before_anything_is_trained(broken: DRQN, sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"^algorithm=Broken.*{sentence}"):
        try_update(broken, acting_network().policy)
