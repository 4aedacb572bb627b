"""Updates of SAC, TD3, DQN and discrete SAC, against the same formulas with separate tensors and `torch.optim.Adam`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from sf.algorithms.discrete_sac import DiscreteSAC
from sf.algorithms.dqn import DQN, action_values
from sf.algorithms.sac import SAC
from sf.algorithms.td3 import TD3
from sf.config import LearnerConfig, ModelConfig
from sf.errors import ConfigError
from sf.learner.acting_network import ActingNetwork
from sf.learner.experience import Experience
from sf.learner.off_policy import OffPolicy
from sf.learner.off_policy_trial import try_update
from sf.learner.optimizer import FlatAdam
from sf.nets.categorical import MASKED_LOGIT
from sf.policy import ActorCritic
from sf.spaces import ActionSpec, EnvInfo, LeafSpec
from tests.helpers.updates import BOX, DISCRETE, OBS_SIZE, one_thread_and_seed

RATE, SIZE = 1e-2, 32
NAMES = {SAC: "sac", DQN: "dqn", TD3: "td3", DiscreteSAC: "discrete_sac"}
normal: Any = Normal
CONFIG = LearnerConfig(learning_rate=RATE, max_grad_norm=0.0, adam_eps=1e-8, algorithm="sac")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    one_thread_and_seed()


def acting_network(action: ActionSpec, config: LearnerConfig = CONFIG, **model: Any) -> ActingNetwork:
    info = EnvInfo("test", 1, {"obs": LeafSpec((OBS_SIZE,), "float32")}, action)
    policy = ActorCritic(info, ModelConfig(encoder_mlp_layers=(16, 16), normalize_returns=False, **model))
    return ActingNetwork(policy, FlatAdam(policy, config), config)


def begun(algorithm: OffPolicy, acting: ActingNetwork) -> Any:
    algorithm.begin(acting)
    return algorithm


def experience(actions: Tensor) -> Experience:
    return Experience(
        observations={"obs": torch.randn(SIZE, OBS_SIZE)},
        actions=actions,
        rewards=torch.randn(SIZE),
        next_observations={"obs": torch.randn(SIZE, OBS_SIZE)},
        discounts=0.99 * (torch.rand(SIZE) < 0.8),
        versions=torch.zeros(SIZE, dtype=torch.int64),
        places=torch.arange(SIZE),
        weights=torch.ones(SIZE),
    )


def sac() -> tuple[Any, ActingNetwork]:
    acting = acting_network(BOX, adaptive_stddev=True)
    return begun(SAC(CONFIG, tau=0.3, initial_temperature=0.7), acting), acting


@pytest.mark.more
def test_sac_takes_the_steps_of_separate_optimizers() -> None:
    algorithm, acting = sac()
    minibatch = experience(torch.randn(SIZE, 2))
    policy: Any = copy.deepcopy(acting.policy)
    critics = copy.deepcopy(algorithm.critics.module)
    targets = copy.deepcopy(critics)
    log_temperature = torch.tensor(0.7).log().requires_grad_()
    random = torch.get_rng_state()
    scalars = algorithm.update(minibatch)

    torch.set_rng_state(random)
    alpha = log_temperature.exp().detach()
    with torch.no_grad():
        next_params, _, _ = policy.forward(minibatch.next_observations, None)
        mean, log_std = policy.distribution.moments(next_params)
        u = mean + log_std.exp() * torch.randn_like(mean)
        log_probs = normal(mean, log_std.exp()).log_prob(u).sum(-1) - torch.log1p(-u.tanh().square()).sum(-1)
        inputs = policy.inputs(minibatch.next_observations)
        following = targets(inputs, u.tanh()).min(0).values - alpha * log_probs
        wanted = minibatch.rewards + minibatch.discounts * following
    optimizer = torch.optim.Adam(critics.parameters(), RATE)
    inputs = policy.inputs(minibatch.observations)
    first, second = critics(inputs, minibatch.actions.tanh())
    optimizer.zero_grad()
    critic_loss = 0.5 * (first - wanted).square().mean() + 0.5 * (second - wanted).square().mean()
    critic_loss.backward()
    optimizer.step()

    params, _, _ = policy.forward(minibatch.observations, None)
    values = policy.value_head(policy.encoder(inputs).detach()).squeeze(-1)
    mean, log_std = policy.distribution.moments(params)
    u = mean + log_std.exp() * torch.randn_like(mean)
    log_probs = normal(mean, log_std.exp()).log_prob(u).sum(-1) - torch.log1p(-u.tanh().square()).sum(-1)
    gains = critics(inputs, u.tanh()).min(0).values - alpha * log_probs
    of_policy = torch.optim.Adam(policy.parameters(), RATE)
    policy.flat_gradient.zero_()
    (-gains.mean() + 0.5 * (values - gains.detach()).square().mean()).backward()
    of_policy.step()
    of_temperature = torch.optim.Adam([log_temperature], RATE)
    (log_temperature * (-log_probs.detach().mean() - (-2.0))).backward()
    of_temperature.step()

    torch.testing.assert_close(scalars["critic_loss"].detach(), critic_loss.detach(), rtol=1e-4, atol=1e-5)
    close: Any = {"rtol": 1e-3, "atol": 1e-4}
    torch.testing.assert_close(list(algorithm.critics.module.parameters()), list(critics.parameters()), **close)
    torch.testing.assert_close(list(acting.policy.parameters()), list(policy.parameters()), **close)
    torch.testing.assert_close(algorithm.temperature().detach(), log_temperature.detach(), **close)
    for own, before, now in zip(
        algorithm.targets.parameters(), targets.parameters(), critics.parameters(), strict=True
    ):
        torch.testing.assert_close(own, 0.7 * before + 0.3 * now, **close)


def test_sac_moves_the_features_of_the_policy_by_the_policy_loss_alone() -> None:
    algorithm, acting = sac()
    minibatch = experience(torch.randn(SIZE, 2))
    _, _, values = algorithm._drawn(minibatch.observations)
    acting.zero_grad()
    values.sum().backward()
    moved = {
        name for name, variable in acting.policy.named_parameters() if variable.grad is not None and variable.grad.any()
    }
    assert moved == {"value_head.weight", "value_head.bias"}


def test_a_frozen_network_gets_no_gradient_and_trains_again_afterwards() -> None:
    algorithm, acting = sac()
    inputs, actions = (
        acting.inputs(
            {"obs": torch.randn(4, OBS_SIZE)},
        ),
        torch.randn(4, 2, requires_grad=True),
    )
    with algorithm.critics.frozen():
        algorithm.critics(inputs, actions).sum().backward()
    assert actions.grad is not None
    assert not any(parameter.grad.any() for parameter in algorithm.critics.module.parameters())
    algorithm.critics(inputs, actions).sum().backward()
    assert any(parameter.grad.any() for parameter in algorithm.critics.module.parameters())


def test_dqn_weighs_and_renews_priorities() -> None:
    config = LearnerConfig(learning_rate=RATE, max_grad_norm=0.0, algorithm="dqn")
    acting = acting_network(DISCRETE, config, exploration="epsilon_greedy")
    algorithm = begun(DQN(config, priority_alpha=0.5, priority_beta=0.4), acting)
    algorithm.priorities.take_in(torch.ones(SIZE, dtype=torch.bool), torch.arange(SIZE))
    minibatch = replace(experience(torch.randint(3, (SIZE,))), weights=torch.rand(SIZE))
    wanted = algorithm._value_targets(minibatch)
    params, values = acting.outputs(minibatch.observations)
    errors = (action_values(params, values).detach()[torch.arange(SIZE), minibatch.actions] - wanted).abs()
    scalars = algorithm.update(minibatch)
    huber = torch.where(errors < 1, 0.5 * errors.square(), errors - 0.5)
    torch.testing.assert_close(scalars["loss"].detach(), (minibatch.weights * huber).mean())
    torch.testing.assert_close(
        torch.from_numpy(algorithm.priorities._shares.shares(np.arange(SIZE))),
        (errors.to(torch.float64) + 1e-6).sqrt(),
        rtol=1e-4,
        atol=0,
    )
    algorithm.set_progress(0.5)
    algorithm.explore()
    assert algorithm.priorities.beta == pytest.approx(0.7)


@pytest.mark.parametrize("double", [True, False])
def test_dqn_takes_the_step_of_the_formula(double: bool) -> None:
    config = LearnerConfig(learning_rate=RATE, max_grad_norm=0.0, adam_eps=1e-8, algorithm="dqn")
    acting = acting_network(DISCRETE, config, exploration="epsilon_greedy")
    algorithm = begun(DQN(config, double=double, tau=0.25, target_every=1), acting)
    with torch.no_grad():
        algorithm.target.flat_parameters.add_(0.2 * torch.randn_like(algorithm.target.flat_parameters))
    minibatch = experience(torch.randint(3, (SIZE,)))
    policy, target = copy.deepcopy(acting.policy), copy.deepcopy(algorithm.target)
    algorithm.update(minibatch)

    def q(network: ActorCritic, observations: dict[str, Tensor]) -> Tensor:
        advantages, values, _ = network.forward(observations, None)
        return values.unsqueeze(-1) + advantages - advantages.mean(-1, keepdim=True)

    with torch.no_grad():
        following = q(target, minibatch.next_observations)
        best = (q(policy, minibatch.next_observations) if double else following).argmax(-1)
        wanted = minibatch.rewards + minibatch.discounts * following[torch.arange(SIZE), best]
    chosen = q(policy, minibatch.observations)[torch.arange(SIZE), minibatch.actions]
    errors = (chosen - wanted).abs()
    loss = torch.where(errors < 1, 0.5 * errors.square(), errors - 0.5).mean()
    optimizer = torch.optim.Adam(policy.parameters(), RATE)
    policy.flat_gradient.zero_()
    torch.autograd.backward(loss)
    optimizer.step()
    torch.testing.assert_close(list(acting.policy.parameters()), list(policy.parameters()), rtol=1e-3, atol=1e-4)
    for own, before, now in zip(algorithm.target.parameters(), target.parameters(), policy.parameters(), strict=True):
        torch.testing.assert_close(own, 0.75 * before + 0.25 * now, rtol=1e-3, atol=1e-4)


def test_a_mask_counts_for_no_mean() -> None:
    advantages = torch.tensor([[1.0, 3.0, MASKED_LOGIT]])
    values = action_values(advantages, torch.tensor([10.0]))
    assert values[0, :2].tolist() == [9.0, 11.0]
    assert values[0, 2] < -1e7


def test_epsilon_falls_and_stays() -> None:
    config = LearnerConfig(algorithm="dqn", learning_rate=RATE)
    acting = acting_network(DISCRETE, config, exploration="epsilon_greedy")
    algorithm = begun(DQN(config, epsilon_start=0.9, epsilon_end=0.1, epsilon_fraction=0.5), acting)
    seen = []
    for progress in (0.0, 0.25, 0.5, 0.9):
        algorithm.set_progress(progress)
        algorithm.explore()
        seen.append(acting.policy.variables()["distribution.epsilon"].item())
    assert seen == pytest.approx([0.9, 0.5, 0.1, 0.1])


@pytest.mark.parametrize(
    ("algorithm", "action", "model"),
    [
        (SAC, DISCRETE, {}), (SAC, BOX, {}), (DQN, BOX, {}), (DQN, DISCRETE, {}), (TD3, BOX, {}), (TD3, DISCRETE, {}),
        (DiscreteSAC, BOX, {}), (DiscreteSAC, DISCRETE, {"exploration": "epsilon_greedy"}),
    ],
)  # fmt: skip
def test_a_policy_of_another_kind_is_refused(algorithm: type[OffPolicy], action: ActionSpec, model: Any) -> None:
    with pytest.raises(ConfigError, match=f"algorithm={NAMES[algorithm]} "):
        algorithm(CONFIG).begin(acting_network(action, **model))


def test_td3_takes_the_steps_of_separate_optimizers() -> None:
    acting = acting_network(BOX, exploration="noise")
    algorithm: Any = begun(TD3(CONFIG, tau=0.3, policy_every=2, most_target_noise=0.1), acting)
    minibatches = [experience(torch.randn(SIZE, 2)) for _ in range(2)]
    policy: Any = copy.deepcopy(acting.policy)
    target, critics = copy.deepcopy(policy), copy.deepcopy(algorithm.critics.module)
    targets = copy.deepcopy(critics)
    random = torch.get_rng_state()
    steps = []
    for minibatch in minibatches:
        algorithm.update(minibatch)
        steps.append(acting.num_steps)
    assert steps == [0, 1]  # the policy moves with the second one

    torch.set_rng_state(random)
    of_critics = torch.optim.Adam(critics.parameters(), RATE)
    for minibatch in minibatches:
        with torch.no_grad():
            mean = target.forward(minibatch.next_observations, None)[0].tanh()
            noise = (0.2 * torch.randn_like(mean)).clamp(-0.1, 0.1)
            inputs = policy.inputs(minibatch.next_observations)
            following = targets(inputs, (mean + noise).clamp(-1, 1)).min(0).values
            wanted = minibatch.rewards + minibatch.discounts * following
        inputs = policy.inputs(minibatch.observations)
        first, second = critics(inputs, minibatch.actions.clamp(-1, 1))
        of_critics.zero_grad()
        ((first - wanted).square().mean() + (second - wanted).square().mean()).backward()
        of_critics.step()
    params, _, _ = policy.forward(minibatches[1].observations, None)
    values = policy.value_head(policy.encoder(inputs).detach()).squeeze(-1)
    gains = critics(inputs, params.tanh())[0]
    of_policy = torch.optim.Adam(policy.parameters(), RATE)
    policy.flat_gradient.zero_()
    (-gains.mean() + 0.5 * (values - gains.detach()).square().mean()).backward()
    of_policy.step()
    close: Any = {"rtol": 1e-3, "atol": 1e-4}
    torch.testing.assert_close(list(algorithm.critics.module.parameters()), list(critics.parameters()), **close)
    torch.testing.assert_close(list(acting.policy.parameters()), list(policy.parameters()), **close)
    for followers, leaders, starts in ((algorithm.targets, critics, targets), (algorithm.target, policy, target)):
        for own, before, now in zip(followers.parameters(), starts.parameters(), leaders.parameters(), strict=True):
            torch.testing.assert_close(own, 0.7 * before + 0.3 * now, **close)


def test_discrete_sac_takes_the_steps_of_separate_optimizers() -> None:
    acting = acting_network(DISCRETE)
    algorithm: Any = begun(DiscreteSAC(CONFIG, tau=0.3, entropy_share=0.4, initial_temperature=0.7), acting)
    minibatch = experience(torch.randint(3, (SIZE,)))
    policy: Any = copy.deepcopy(acting.policy)
    critics = copy.deepcopy(algorithm.critics.module)
    targets = copy.deepcopy(critics)
    algorithm.update(minibatch)

    log_temperature = torch.tensor(0.7).log().requires_grad_()
    alpha = log_temperature.exp().detach()
    with torch.no_grad():
        probs = policy.forward(minibatch.next_observations, None)[0].softmax(-1)
        of_targets = targets(policy.inputs(minibatch.next_observations)).min(0).values
        following = torch.zeros(SIZE)
        for choice in range(3):
            following += probs[:, choice] * (of_targets[:, choice] - alpha * probs[:, choice].log())
        wanted = minibatch.rewards + minibatch.discounts * following
    inputs = policy.inputs(minibatch.observations)
    both = critics(inputs)
    loss = sum(0.5 * (each[torch.arange(SIZE), minibatch.actions] - wanted).square().mean() for each in both.unbind())
    of_critics = torch.optim.Adam(critics.parameters(), RATE)
    of_critics.zero_grad()
    torch.autograd.backward(loss)
    of_critics.step()
    probs = policy.forward(minibatch.observations, None)[0].softmax(-1)
    values = policy.value_head(policy.encoder(inputs).detach()).squeeze(-1)
    gains = (probs * (both.detach().min(0).values - alpha * probs.log())).sum(-1)
    of_policy = torch.optim.Adam(policy.parameters(), RATE)
    policy.flat_gradient.zero_()
    (-gains.mean() + 0.5 * (values - gains.detach()).square().mean()).backward()
    of_policy.step()
    entropy = -(probs * probs.log()).sum(-1).detach().mean()
    of_temperature = torch.optim.Adam([log_temperature], RATE)
    (log_temperature * (entropy - 0.4 * torch.tensor(3.0).log())).backward()
    of_temperature.step()
    close: Any = {"rtol": 1e-3, "atol": 1e-4}
    torch.testing.assert_close(list(algorithm.critics.module.parameters()), list(critics.parameters()), **close)
    torch.testing.assert_close(list(acting.policy.parameters()), list(policy.parameters()), **close)
    torch.testing.assert_close(algorithm.temperature().detach(), log_temperature.detach(), **close)
    for own, before, now in zip(
        algorithm.targets.parameters(), targets.parameters(), critics.parameters(), strict=True
    ):
        torch.testing.assert_close(own, 0.7 * before + 0.3 * now, **close)


class Mine(OffPolicy):
    """Moves the policy, and answers what a test wants."""

    def __init__(self, answer: Callable[[Experience], Any], fails_in: str = "") -> None:
        super().__init__(CONFIG)
        self.answer, self.fails_in = answer, fails_in

    def begin(self, acting: ActingNetwork) -> None:
        assert self.fails_in != "begin"
        self.acting = acting

    def explore(self) -> None:
        assert self.fails_in != "explore"

    def update(self, minibatch: Experience) -> Any:
        self.acting.policy.flat.add_(1.0)
        return self.answer(minibatch)


def test_a_trial_of_an_update_draws_a_few_transitions_and_leaves_the_policy() -> None:
    sizes: list[int] = []

    def answer(minibatch: Experience) -> dict[str, Tensor]:
        sizes.append(len(minibatch))
        return {"mean": minibatch.rewards.mean(), "loss": minibatch.rewards.sum()}

    policy = acting_network(DISCRETE).policy
    before = policy.flat.clone()
    try_update(Mine(answer), policy)
    assert sizes == [4]
    assert torch.equal(policy.flat, before)


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        (Mine(lambda minibatch: [minibatch.rewards.mean()]), "update must return a dict of scalar tensors by name"),
        (Mine(lambda minibatch: {"mean": minibatch.rewards}), "update must return a dict of scalar tensors by name"),
        (Mine(lambda minibatch: {"lr": minibatch.rewards.mean()}), "lr are names of other curves of train/"),
        (
            Mine(lambda minibatch: {"mean": cast(Any, minibatch).nothing}),
            r"raised AttributeError in update\(minibatch\)",
        ),
        (Mine(lambda minibatch: {}, "begin"), r"raised AssertionError in begin\(acting\)"),
        (Mine(lambda minibatch: {}, "explore"), r"raised AssertionError in explore\(\)"),
    ],
)
def test_what_is_no_update_is_told_before_anything_is_trained(algorithm: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"^algorithm=Mine.*{sentence}"):
        try_update(algorithm, acting_network(DISCRETE).policy)
