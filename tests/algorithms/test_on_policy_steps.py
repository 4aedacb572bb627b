"""APPO, PPG, PQN and RND on small batches, against the same formulas in loops and with `torch.optim.Adam`."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Normal, kl_divergence

from sf.algorithms.appo import APPO
from sf.algorithms.ppg import PPG
from sf.algorithms.pqn import PQN
from sf.algorithms.rnd import RND, discounted_sums
from sf.config import LearnerConfig
from sf.errors import ConfigError
from sf.learner.algorithm import Algorithm
from sf.learner.batch import Batch
from sf.learner.minibatches import NO_AGES, ages_of_all
from sf.learner.peers import Peers
from sf.learner.training import MOST_SKIPPED_IN_A_ROW, NonFiniteGradient
from sf.learner.trial import begin
from sf.learner.update import Update
from sf.nets import columns
from sf.policy import ActorCritic
from tests.helpers.updates import BOX, act, learner_config, make_policy, one_thread_and_seed

RATE = 1e-2
CLOSE: Any = {"rtol": 1e-4, "atol": 1e-5}
distribution: Any = Categorical
normal: Any = Normal


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    one_thread_and_seed()


def config(**flags: Any) -> LearnerConfig:
    return learner_config(learning_rate=RATE, max_grad_norm=0.0, **flags)


def moved(policy: ActorCritic) -> None:
    """Makes the policy another one than acted."""
    with torch.no_grad():
        policy.flat_parameters.add_(0.1 * torch.randn_like(policy.flat_parameters))


def steps_of(update: Update, batch: Batch) -> list[int]:
    return [report.version for report in update.steps(batch)]


# RND


def test_rnd_rewards_what_the_predictor_does_not_know() -> None:
    policy, flags = make_policy(normalize_returns=False), config(gae_lambda=0.8)
    algorithm: Any = RND(flags, extrinsic_coeff=3.0, intrinsic_coeff=0.5, intrinsic_gamma=0.9)
    begin(algorithm, policy)
    batch = act(policy)
    plain = Algorithm(flags).prepare(batch, policy)
    transitions = algorithm.prepare(batch, policy)

    steps, number = batch.rewards.shape
    inputs = [policy.inputs({"obs": leaf}) for leaf in batch.observations["obs"]]
    with torch.no_grad():
        errors = [0.5 * (algorithm.predictor(leaf)[0] - algorithm.random(leaf)[0]).square().mean(-1) for leaf in inputs]
        values = [algorithm.value(leaf)[0] for leaf in inputs]
    sums = []
    for b in range(number):
        total = 0.0
        for t in range(steps):
            total = 0.9 * total + errors[t + 1][b].item()
            sums.append(total)
    deviation = torch.tensor(sums, dtype=torch.float64).std(correction=0).item()
    expected, targets = torch.zeros(steps, number), torch.zeros(steps, number)
    for b in range(number):
        advantage = 0.0
        for t in reversed(range(steps)):  # no end of an episode stops it
            delta = errors[t + 1][b].item() / deviation + 0.9 * values[t + 1][b].item() - values[t][b].item()
            advantage = delta + 0.9 * 0.8 * advantage
            expected[t, b], targets[t, b] = advantage, advantage + values[t][b].item()
    torch.testing.assert_close(transitions["bonus_targets"], targets.flatten(), **CLOSE)
    torch.testing.assert_close(transitions.advantages, 3.0 * plain.advantages + 0.5 * expected.flatten(), **CLOSE)
    torch.testing.assert_close(transitions.value_targets, plain.value_targets)  # of the reward alone


def test_rnd_trains_predictor_and_value_and_leaves_the_random_network() -> None:
    policy = make_policy()
    algorithm: Any = RND(config(), predictor_share=1.0, learning_rate=RATE)
    update = Update(policy, config(), algorithm=algorithm)
    batch = act(policy)
    networks = {name: copy.deepcopy(getattr(algorithm, name).state_dict()) for name in ("random", "predictor", "value")}
    inputs = policy.inputs({"obs": batch.observations["obs"].flatten(0, 1)})

    def errors() -> float:
        with torch.no_grad():
            return float((algorithm.predictor(inputs) - algorithm.random(inputs)).square().mean())

    first = errors()
    assert steps_of(update, batch) == [1]
    assert errors() < first
    for name, before in networks.items():
        after = getattr(algorithm, name).state_dict()
        assert (name == "random") == all(torch.equal(before[key], after[key]) for key in before)
    assert not algorithm.predictor._variables.gradient.any()  # forgotten after the step


def test_rnd_takes_the_steps_of_separate_optimizers() -> None:
    policy = make_policy(normalize_input=False)
    algorithm: Any = RND(config(), predictor_share=1.0, learning_rate=2 * RATE)
    update = Update(policy, config(), algorithm=algorithm)
    batch = act(policy)
    predictor, value = copy.deepcopy(algorithm.predictor.module), copy.deepcopy(algorithm.value.module)
    transitions = algorithm.prepare(batch, policy)
    algorithm.scale._moments.count.zero_()  # as before that call
    assert steps_of(update, batch) == [1]
    inputs = {"obs": transitions.observations["obs"]}
    for network, rate, own, loss in (
        (
            predictor,
            2 * RATE,
            algorithm.predictor,
            0.5 * (predictor(inputs) - algorithm.random(inputs)).square().mean(),
        ),
        (value, RATE, algorithm.value, 0.5 * (value(inputs)[0] - transitions["bonus_targets"]).square().mean()),
    ):
        optimizer = torch.optim.Adam(network.parameters(), rate, eps=1e-8)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(
            list(own.module.parameters()), list(network.parameters()), rtol=1e-3, atol=1e-4, check_stride=False
        )


def test_discounted_sums_begin_anew_in_each_trajectory() -> None:
    sums = discounted_sums(torch.tensor([[1.0, 0.0], [2.0, 4.0], [0.0, 8.0]]), 0.5)
    assert sums.tolist() == [[1.0, 0.0], [2.5, 4.0], [1.25, 10.0]]


# APPO


def test_appo_weighs_by_the_target_network() -> None:
    policy, flags = make_policy(normalize_returns=False), config(ppo_clip_ratio=0.2)
    algorithm: Any = APPO(flags, most_weight=1.1)
    begin(algorithm, policy)
    batch = act(policy)
    moved(algorithm.target)
    moved(policy)
    transitions = algorithm.prepare(batch, policy)
    evaluation = policy.evaluate(transitions.observations, transitions.actions)
    losses = algorithm.loss(evaluation, transitions)

    target_logits = algorithm.target.evaluate(transitions.observations, transitions.actions)
    expected = []
    for i, advantage in enumerate(transitions.advantages.tolist()):
        acted = transitions.behavior_log_probs[i].exp().item()
        target = target_logits.log_probs[i].exp().item()
        present = evaluation.log_probs[i].exp().item()
        ratio = min(acted / target, 1.1) * present / acted
        expected.append(min(advantage * ratio, advantage * min(max(ratio, 0.8), 1.2)))
    torch.testing.assert_close(losses.terms["policy_loss"].item(), -sum(expected) / len(expected), **CLOSE)

    rewards, steps = batch.rewards, len(batch.rewards)
    observations = batch.observations["obs"]
    values = algorithm.target.values({"obs": observations.flatten(0, 1)}).view(steps + 1, -1)
    ratios = (target_logits.log_probs.view(rewards.shape) - batch.behavior_log_probs).exp().detach()
    for b in range(rewards.shape[1]):
        corrected = values[steps, b].item()
        for t in reversed(range(steps)):
            ended = bool(batch.terminated[t, b] or batch.truncated[t, b])
            plain = values[t + 1, b].item()
            if batch.terminated[t, b]:
                plain = 0.0
            elif batch.truncated[t, b]:
                plain = batch.final_values[t, b].item()
            delta = rewards[t, b].item() + flags.gamma * plain - values[t, b].item()
            correction = 0.0 if ended or t == steps - 1 else corrected - plain
            weight = min(1.0, ratios[t, b].item())
            corrected = values[t, b].item() + weight * delta + flags.gamma * weight * correction
            row = t * rewards.shape[1] + b
            torch.testing.assert_close(transitions.returns[row].item(), corrected, **CLOSE)


def test_appo_copies_the_policy_every_second_batch() -> None:
    policy = make_policy()
    algorithm: Any = APPO(config(), target_every=2)
    update = Update(policy, config(), algorithm=algorithm)
    first = policy.flat.clone()
    steps_of(update, act(policy))
    assert torch.equal(algorithm.target.flat, first)
    again: Any = APPO(config(), target_every=2)  # a resumed run goes on with the count
    begin(again, policy)
    again.load_state_dict(algorithm.state_dict())
    assert not torch.equal(again.target.flat, policy.flat)
    again.after_batch(None, None)
    assert torch.equal(again.target.flat, policy.flat)
    steps_of(update, act(policy))
    assert torch.equal(algorithm.target.flat, policy.flat)


# PPG


def test_ppg_phase_comes_after_its_batches_and_counts_as_steps() -> None:
    flags = config(num_batches_per_epoch=2)
    policy = make_policy(actor_critic_share_weights=False)
    update = Update(policy, flags, algorithm=PPG(flags, phase_batches=3, phase_epochs=2))
    versions, lags = [], []
    for _ in range(4):
        reports = list(update.steps(act(policy, version=update.version)))
        versions.append([report.version for report in reports])
        lags.append([report.lag_max for report in reports])
    assert versions[:2] == [[1, 2], [3, 4]]
    assert versions[2] == list(range(5, 7 + 12))  # and 2 epochs of 3 batches of 2 minibatches
    assert versions[3] == [19, 20]
    assert lags[2][-1] == 17  # in step 18 the first batch is that old
    assert update.lag_counts.sum() == 4 * 48 + 2 * 3 * 48


def test_ppg_step_is_that_of_separate_optimizers() -> None:
    flags = config()
    policy = make_policy(actor_critic_share_weights=False, normalize_returns=False)
    algorithm: Any = PPG(flags, clone_coeff=0.5)
    begin(algorithm, policy)
    observations, returns = {"obs": torch.randn(32, 4)}, torch.randn(32)
    with torch.no_grad():
        before = policy.forward(observations, None)[0]
    moved(policy)
    copied: Any = copy.deepcopy(policy)
    head = copy.deepcopy(algorithm.head.module)
    algorithm._step(observations, returns, [(before,)])

    inputs = copied.inputs(observations)
    params, values, _ = copied.forward(observations, None)
    clone = kl_divergence(distribution(logits=before), distribution(logits=params)).mean()
    of_head = 0.5 * (head(copied.encoder(inputs)).squeeze(-1) - returns).square().mean()
    loss = of_head + 0.5 * clone + 0.5 * (values - returns).square().mean()
    optimizers = torch.optim.Adam(copied.parameters(), RATE, eps=1e-5), torch.optim.Adam(head.parameters(), RATE)
    copied.flat_gradient.zero_()
    head.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    torch.testing.assert_close(list(policy.parameters()), list(copied.parameters()), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(list(algorithm.head.module.parameters()), list(head.parameters()), rtol=1e-3, atol=1e-4)


def test_ppg_divergence_of_numbers() -> None:
    policy = make_policy(BOX)
    before, now = torch.randn(5, 2), torch.randn(5, 2)
    earlier = [tuple(part.detach() for part in column) for column in policy.distribution.columns(before)]
    deviations = policy.variables()["distribution.log_std"].exp()
    with torch.no_grad():  # also the deviations that no observation changes are those of before the phase
        policy.variables()["distribution.log_std"].add_(0.3)
    found = columns.kl_divergence(earlier, policy.distribution.columns(now))
    wider = policy.variables()["distribution.log_std"].exp()
    expected = kl_divergence(normal(before, deviations), normal(now, wider)).sum(-1)
    torch.testing.assert_close(found.detach(), expected)


def test_a_ppg_phase_leaves_free_deviations_where_they_are() -> None:
    """The penalty is least where they are equal, however far the means are apart for a while."""
    policy = make_policy(BOX, actor_critic_share_weights=False)
    algorithm = PPG(config(), phase_batches=1, phase_epochs=30)
    begin(algorithm, policy)
    before = policy.variables()["distribution.log_std"].clone()
    transitions = algorithm.prepare(act(policy), policy)
    for _ in algorithm.after_batch(transitions, torch.zeros(len(transitions), dtype=torch.int64)):
        pass
    moved = (policy.variables()["distribution.log_std"] - before).abs().max()
    assert moved < 5 * RATE, "thirty steps of Adam could go 30 times the rate"


def test_ppg_with_one_network_is_refused() -> None:
    with pytest.raises(ConfigError, match="algorithm=ppg needs a network for the policy and one for the value"):
        begin(PPG(config()), make_policy(actor_critic_share_weights=True))


# PQN


def test_pqn_learns_q_lambda_returns() -> None:
    policy, flags = make_policy(exploration="epsilon_greedy", normalize_returns=False), config(gae_lambda=0.6)
    algorithm = PQN(flags)
    begin(algorithm, policy)
    batch = act(policy)
    transitions = algorithm.prepare(batch, policy)
    steps, number = batch.rewards.shape

    def q(observations: Tensor) -> Tensor:
        scores, values, _ = policy.forward({"obs": observations}, None)
        return (values.unsqueeze(-1) + scores - scores.amax(-1, keepdim=True)).detach()

    best = torch.stack([q(leaf).amax(-1) for leaf in batch.observations["obs"]])
    for b in range(number):
        later = best[steps, b].item()
        for t in reversed(range(steps)):
            following = 0.4 * best[t + 1, b].item() + 0.6 * later
            if batch.truncated[t, b]:
                following = batch.final_values[t, b].item()
            if batch.terminated[t, b]:
                following = 0.0
            later = batch.rewards[t, b].item() + flags.gamma * following
            torch.testing.assert_close(transitions.returns[t * number + b].item(), later, **CLOSE)
    evaluation = policy.evaluate(transitions.observations, transitions.actions)
    chosen = q(transitions.observations["obs"]).gather(-1, transitions.actions.unsqueeze(-1)).squeeze(-1)
    expected = 0.5 * (chosen - transitions.returns).square().mean()
    torch.testing.assert_close(algorithm.loss(evaluation, transitions).total.detach(), expected)


def test_pqn_values_of_all_actions_stay_when_the_unit_of_returns_changes() -> None:
    """The learning rate is 0, so the statistics of returns are all that changes."""
    flags = learner_config(learning_rate=0.0, max_grad_norm=0.0)
    policy = make_policy(exploration="epsilon_greedy", normalize_returns=True, normalize_input=False)
    with torch.no_grad():
        policy.policy_head.weight.mul_(100.0)  # scores that differ
    update = Update(policy, flags, algorithm=PQN(flags))
    observations = {"obs": torch.randn(16, 4)}

    def q() -> Tensor:
        scores, values, _ = policy.forward(observations, None)
        return policy.denormalize(values.unsqueeze(-1) + scores - scores.amax(-1, keepdim=True)).detach()

    assert policy.return_normalizer is not None
    before, unit = q(), policy.return_normalizer.std.item()
    when_published = [q() for _ in update.steps(act(policy))]
    assert policy.return_normalizer.std.item() != pytest.approx(unit, rel=0.1)
    for seen in (*when_published, q()):
        torch.testing.assert_close(seen, before, rtol=1e-4, atol=1e-4)


def test_pqn_explores_less_and_less() -> None:
    policy = make_policy(exploration="epsilon_greedy", normalize_returns=False)
    algorithm = PQN(config(), epsilon_start=0.9, epsilon_end=0.1, epsilon_fraction=0.5)
    begin(algorithm, policy)
    seen = [policy.variables()["distribution.epsilon"].item()]
    for fraction in (0.25, 0.5, 0.9):
        algorithm.set_progress(fraction)
        assert policy.variables()["distribution.epsilon"].item() == seen[-1], "this version has acted by it"
        algorithm.after_step(8)
        seen.append(policy.variables()["distribution.epsilon"].item())
    assert seen == pytest.approx([0.9, 0.5, 0.1, 0.1])


def test_pqn_with_a_policy_that_is_sampled_is_refused() -> None:
    with pytest.raises(ConfigError, match="algorithm=pqn chooses the best of several actions"):
        begin(PQN(config()), make_policy())


# What all of them share


def test_a_step_that_is_skipped_leaves_no_gradient_in_the_networks_beside() -> None:
    """The step after it is that of a run without the skipped one."""
    found = []
    for skips in (True, False):
        one_thread_and_seed()
        policy = make_policy(normalize_input=False, normalize_returns=False)
        algorithm: Any = RND(config(), predictor_share=1.0)
        update = Update(policy, config(), algorithm=algorithm)
        batch = act(policy)
        if skips:
            broken = batch.with_columns(rewards=torch.full_like(batch.rewards, torch.nan))
            assert steps_of(update, broken) == []
            assert update.num_skipped == 1
            algorithm.scale._moments.count.zero_()  # as before that batch
        assert steps_of(update, batch) == [1]
        found.append(algorithm.predictor.flat.clone())
    torch.testing.assert_close(*found)


def test_networks_beside_that_are_never_finite_end_the_run() -> None:
    policy = make_policy()
    algorithm: Any = RND(config(), predictor_share=1.0)
    update = Update(policy, config(), algorithm=algorithm)
    with torch.no_grad():
        algorithm.predictor.flat.fill_(torch.nan)
        algorithm.random._variables.vector.zero_()
    batch = act(policy)
    algorithm._coeffs = (1.0, 0.0)
    for _ in range(MOST_SKIPPED_IN_A_ROW - 1):
        assert steps_of(update, batch) == []
    with pytest.raises(NonFiniteGradient):
        steps_of(update, batch)


def test_ages_are_those_of_all_learners_also_of_one_without_a_share() -> None:
    class TwoShares(Peers):
        def gather(self, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
            return [tensors, (torch.tensor([2.0, 14.0, 9.0, 3.0], dtype=torch.float64),)]

    assert ages_of_all(np.array([1, 4]), TwoShares()) == (1.0, 19 / 5, 9.0)
    assert ages_of_all(np.array([], np.int64), TwoShares()) == (2.0, 14 / 3, 9.0)
    assert ages_of_all(np.array([], np.int64)) == NO_AGES
