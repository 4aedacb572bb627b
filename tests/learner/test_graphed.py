"""Recorded minibatches against those that go through the network as it is written; here a recording computes anew."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sf.config import LearnerConfig
from sf.learner.dataset import Transitions
from sf.learner.graphed import MOST_RECORDINGS, Graphed, as_written
from sf.learner.ppo import PPO
from sf.learner.propagation import Recorded, WrittenOut
from sf.nets.fast.recorded import Anew
from sf.policy import Sequences
from tests.helpers.networks import make_policy
from tests.nets.test_acting import CASES


class Counted(Anew):
    def __init__(self) -> None:
        self.count = 0

    def warm_up(self, compute: Any) -> None:
        self.count += 1
        super().warm_up(compute)


def graphed_by(policy: Any, recorder: Anew) -> Graphed:
    algorithm = PPO(LearnerConfig())
    return Graphed(Recorded(policy.evaluate, algorithm), policy, algorithm, recorder)


def minibatch_of(policy: Any, rows: int, generator: torch.Generator) -> Transitions:
    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    leaves = policy.info.observations
    seen = {key: drawn(rows, *leaf.shape).abs().to(getattr(torch, leaf.dtype)) for key, leaf in leaves.items()}
    actions = policy.act(seen, generator=generator).action.clone()
    columns: Any = {name: drawn(rows) for name in ("old_values", "advantages", "value_targets", "returns")}
    return Transitions(seen, actions=actions, behavior_log_probs=-drawn(rows).abs(), **columns)


@pytest.mark.parametrize("name", CASES)
def test_a_recorded_step_is_that_of_the_network(name: str) -> None:
    action, settings = CASES[name]
    policy = make_policy(action, **settings)
    plain: Any = Recorded(policy.evaluate, PPO(LearnerConfig()))
    recorder, generator = Counted(), torch.Generator().manual_seed(0)
    act = Graphed(plain, policy, PPO(LearnerConfig()), recorder)
    for step, rows in enumerate((6, 6, 9, 6, 9, 9, 6)):
        minibatch = minibatch_of(policy, rows, generator)
        sequences: tuple[Sequences, ...] = ()
        if policy.state_size:
            state = torch.randn(rows // 3, policy.state_size, generator=generator)
            sequences = (Sequences(state, torch.rand(3, rows // 3, generator=generator) < 0.2),)
        results = []
        for way in (plain, act):
            policy.flat_gradient.fill_(step)  # what is there is added to
            evaluation = way.evaluate(minibatch.observations, minibatch.actions, *sequences)
            way.backward(evaluation, minibatch)
            results.append((policy.flat_gradient.clone(), [part.detach().clone() for part in evaluation[:4]]))
        (gradient, numbers), (own_gradient, own_numbers) = results
        torch.testing.assert_close(own_gradient, gradient)
        torch.testing.assert_close(own_numbers, numbers)
        with torch.no_grad():
            policy.flat.add_(0.01 * torch.randn(policy.flat.shape, generator=generator))
    assert recorder.count == 2, "each size when it comes for the second time"


def test_written_out_gradients_are_recorded_as_well() -> None:
    policy, generator = make_policy(CASES["choice"][0]), torch.Generator().manual_seed(0)
    plain = WrittenOut(policy, PPO(LearnerConfig(native_update=False)))
    act = Graphed(plain, policy, PPO(LearnerConfig()), Anew())
    for _ in range(3):
        minibatch, gradients = minibatch_of(policy, 5, generator), []
        for way in (plain, act):
            policy.flat_gradient.zero_()
            way.backward(way.evaluate(minibatch.observations, minibatch.actions), minibatch)
            gradients.append(policy.flat_gradient.clone())
        torch.testing.assert_close(*gradients)


def test_few_sizes_are_recorded_and_none_that_fails() -> None:
    policy, generator = make_policy(CASES["choice"][0]), torch.Generator().manual_seed(0)
    recorder = Counted()
    act = graphed_by(policy, recorder)
    for _ in range(3):
        for rows in range(1, 20):
            minibatch = minibatch_of(policy, rows, generator)
            act.backward(act.evaluate(minibatch.observations, minibatch.actions), minibatch)
    assert recorder.count == MOST_RECORDINGS

    class Failing(Anew):
        def capture(self, compute: Any) -> Any:
            raise RuntimeError("operation not permitted when stream is capturing")

    act = graphed_by(policy, Failing())
    for _ in range(4):
        minibatch = minibatch_of(policy, 4, generator)
        policy.flat_gradient.zero_()
        act.backward(act.evaluate(minibatch.observations, minibatch.actions), minibatch)
        assert policy.flat_gradient.abs().sum() > 0
    assert as_written(act) is act.plain
    assert as_written(act.plain) is act.plain


def test_coefficients_that_change_end_the_recording() -> None:
    """As of an algorithm that lets a bonus shrink."""
    policy, generator = make_policy(CASES["choice"][0]), torch.Generator().manual_seed(0)
    algorithm = PPO(LearnerConfig())
    act = Graphed(Recorded(policy.evaluate, algorithm), policy, algorithm, recorder := Counted())
    minibatch = minibatch_of(policy, 6, generator)
    for step in range(6):
        if step == 3:
            algorithm.config = LearnerConfig(exploration_loss_coeff=0.5)
        gradients = []
        for way in (Recorded(policy.evaluate, algorithm), act):
            policy.flat_gradient.zero_()
            way.backward(way.evaluate(minibatch.observations, minibatch.actions), minibatch)
            gradients.append(policy.flat_gradient.clone())
        torch.testing.assert_close(*gradients)
    assert recorder.count == 1
    assert not act._recordings
