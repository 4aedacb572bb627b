"""Settings and flags that do not go with an algorithm are told before anything starts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch

from sf.algorithms.appo import APPO
from sf.algorithms.discrete_sac import DiscreteSAC
from sf.algorithms.dqn import DQN
from sf.algorithms.ppg import PPG
from sf.algorithms.pqn import PQN
from sf.algorithms.rnd import RND
from sf.algorithms.sac import SAC
from sf.algorithms.td3 import TD3
from sf.config import (
    Config,
    LearnerConfig,
    ModelConfig,
    ReplayConfig,
    RolloutConfig,
    RunConfig,
    check,
    note_on_unread_flags,
    unread_by_ours,
)  # fmt: skip
from sf.config.algorithms import VALUES, values_of
from sf.errors import ConfigError
from sf.learner.acting_network import ActingNetwork
from sf.learner.off_policy_trial import try_update
from sf.learner.optimizer import FlatAdam
from sf.learner.trial import algorithm_of, begin, loss_terms_of
from sf.policy import ActorCritic
from sf.run.probes import fields_of_ours
from sf.run.sizes import resolve
from sf.spaces import ACTION_MASK, ActionColumn, ActionSpec, EnvInfo, LeafSpec

NUMBERS = ActionSpec((ActionColumn(low=-2.0, high=2.0),))
ENDLESS = ActionSpec((ActionColumn(low=-math.inf, high=math.inf),))
CHOICES = ActionSpec.discrete(3)


def env_info(action: ActionSpec, **leaves: LeafSpec) -> EnvInfo:
    return EnvInfo("Toy-v0", 1, leaves or {"obs": LeafSpec((3,), "float32")}, action)


def config(algorithm: str, run: dict[str, Any] | None = None, **flags: Any) -> Config:
    """As the command line makes it, with the flags that go with the algorithm."""
    parts: dict[str, dict[str, Any]] = {"learner": {"algorithm": algorithm}}
    roles: dict[str, Any] = {
        "learner": LearnerConfig,
        "model": ModelConfig,
        "replay": ReplayConfig,
        "rollout": RolloutConfig,
    }
    for name, value in {**values_of(algorithm), **flags}.items():
        home = next(role for role, kind in roles.items() if name in {each.name for each in fields(kind)})
        parts.setdefault(home, {})[name] = value
    made: dict[str, Any] = {role: roles[role](**given) for role, given in parts.items()}
    return Config(RunConfig("Toy-v0", **({"train_for_env_steps": 100_000} if run is None else run)), **made)


@pytest.mark.parametrize(
    ("algorithm", "settings", "sentence"),
    [
        (APPO, {"target_every": 0}, "target_every=0 of algorithm=appo must be at least 1"),
        (PPG, {"phase_batches": 0}, "phase_batches=0 of algorithm=ppg must be at least 1"),
        (DQN, {"num_steps": 0}, "num_steps=0 of algorithm=dqn must be at least 1"),
        (DQN, {"epsilon_start": 3}, "epsilon_start=3 of algorithm=dqn must be at least 0 and at most 1"),
        (PQN, {"epsilon_end": -1}, "epsilon_end=-1 of algorithm=pqn"),
        (TD3, {"policy_every": 0}, "policy_every=0 of algorithm=td3"),
        (TD3, {"exploration_noise": 0}, "exploration_noise=0 of algorithm=td3 must be above 0"),
        (SAC, {"tau": 1.5}, "tau=1.5 of algorithm=sac"),
        (DiscreteSAC, {"entropy_share": 2.0}, "entropy_share=2.0 of algorithm=discrete_sac"),
        (RND, {"num_features": 1}, "num_features=1 of algorithm=rnd must be at least 2"),
    ],
)
def test_a_setting_out_of_its_range(algorithm: Callable[..., Any], settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        algorithm(LearnerConfig(), **settings)


@pytest.mark.parametrize(
    ("made", "action", "sentence"),
    [
        (config("sac", action_bounds="scale"), NUMBERS, "action_bounds=scale with algorithm=sac.*action_bounds=tanh"),
        (config("td3", action_bounds="tanh"), NUMBERS, "action_bounds=tanh with algorithm=td3.*action_bounds=scale"),
        (config("td3"), ENDLESS, "algorithm=td3 needs actions with finite bounds"),
        (config("sac"), ENDLESS, r"^algorithm=sac needs actions with finite bounds; .*TransformAction.*=ppo\.$"),
        (config("ppg", bound_policy_lag="2b"), CHOICES, "bound_policy_lag=2b with algorithm=ppg"),
        (config("ppg", target_policy_lag=8.0), CHOICES, "target_policy_lag=8.0 with algorithm=ppg"),
        (config("drqn", use_rnn=False), CHOICES, "use_rnn=False with algorithm=drqn.*algorithm=dqn does without"),
        (config("sac", use_rnn=True), NUMBERS, "use_rnn=True with algorithm=sac.*algorithm=ppo has a memory"),
        (config("dqn", {}), CHOICES, "^algorithm=dqn: its random [^\n]*train_for_env_steps[^\n]*seconds.$"),
        (config("pqn", {}), CHOICES, "algorithm=pqn: its random actions become fewer"),
        (config("sac", {"train_for_env_steps": 2000}), NUMBERS, "learning_starts=2000 with 2,000 steps"),
        (config("td3", {"train_for_env_steps": 3000, "num_policies": 2}), NUMBERS, "with 1,500 steps for each policy"),
    ],
)  # fmt: skip
def test_flags_that_do_not_go_with_an_algorithm(made: Config, action: ActionSpec, sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){sentence}"):
        check(resolve(made, env_info(action), 2), env_info(action))


@pytest.mark.parametrize(("name", "action"), [("sac", NUMBERS), ("td3", NUMBERS), ("dqn", CHOICES), ("ppg", CHOICES)])
def test_the_plain_flags_go_with_it(name: str, action: ActionSpec) -> None:
    check(resolve(config(name), env_info(action), 2), env_info(action))


@pytest.mark.parametrize(
    ("algorithm", "flags", "unread"),
    [
        ("dqn", {}, []),
        ("dqn", {"gae_lambda": 0.5, "ppo_clip_ratio": 0.5, "gamma": 0.9}, ["gae_lambda", "ppo_clip_ratio"]),
        ("pqn", {"ppo_clip_ratio": 0.5, "gae_lambda": 0.5}, ["ppo_clip_ratio"]),
        ("appo", {"objective": "truncated", "vtrace_rho": 0.5}, ["objective"]),
        ("ppg", {"ppo_clip_ratio": 0.5}, []),
        ("ppo", {"with_vtrace": True}, []),
    ],
)
def test_flags_that_it_does_not_read_are_told(algorithm: str, flags: dict[str, Any], unread: list[str]) -> None:
    learner = config(algorithm, **flags).learner
    assert sorted(unread_by_ours(learner)) == sorted(unread)
    assert ("does not read" in note_on_unread_flags(learner, unread_by_ours(learner))) is bool(unread)


@pytest.mark.parametrize("name", sorted(VALUES))
def test_columns_that_are_known_without_torch_are_those_that_the_algorithm_asks_for(name: str) -> None:
    learner = LearnerConfig(algorithm=name)
    info = env_info(CHOICES, obs=LeafSpec((3,), "float32"))
    assert fields_of_ours(Config(RunConfig("CartPole-v1"), learner=learner), info) == algorithm_of(learner).fields(info)


def test_a_trial_with_a_mask_finds_every_action_legal() -> None:
    masked = env_info(CHOICES, obs=LeafSpec((3,), "float32"), **{ACTION_MASK: LeafSpec((3,), "int8")})
    policy = ActorCritic(masked, ModelConfig(exploration="epsilon_greedy", normalize_returns=False))
    try_update(DQN(LearnerConfig(algorithm="dqn", batch_size=8)), policy)


@pytest.mark.parametrize("algorithm", [RND, PPG])
def test_pictures_in_bfloat16(algorithm: Callable[..., Any]) -> None:
    pictures = env_info(CHOICES, obs=LeafSpec((36, 36, 3), "uint8"))
    policy = ActorCritic(pictures, ModelConfig(actor_critic_share_weights=False), bf16=True)
    made = algorithm(LearnerConfig(num_batches_per_epoch=1))
    begin(made, policy)
    loss_terms_of(made, policy)
    if algorithm is PPG:
        observations = {"obs": torch.randint(255, (6, 36, 36, 3), dtype=torch.uint8)}
        made._step(observations, torch.zeros(6), made._columns(observations, 1))


def test_a_copy_reads_observations_as_the_network_does() -> None:
    """Statistics are copied at once, and weights follow by a share."""
    policy = ActorCritic(env_info(CHOICES), ModelConfig(exploration="epsilon_greedy", normalize_returns=False))
    learner = LearnerConfig(algorithm="dqn", learning_rate=1e-3)
    acting = ActingNetwork(policy, FlatAdam(policy, learner), learner)
    algorithm: Any = DQN(learner, tau=0.25)
    algorithm.begin(acting)
    before = algorithm.target.policy_head.bias.clone()
    with torch.no_grad():
        policy.policy_head.bias.add_(1.0)
        for normalizer in policy.observation_normalizers.values():
            normalizer.set_moments(torch.full((3,), 1000.0), torch.full((3,), 100.0))
    acting.lead(algorithm.target, 0.25)
    torch.testing.assert_close(algorithm.target.policy_head.bias, before + 0.25)
    for own, normalizer in zip(
        algorithm.target.observation_normalizers.values(), policy.observation_normalizers.values(), strict=True
    ):
        assert torch.equal(own.mean, normalizer.mean)
        assert torch.equal(own.std, normalizer.std)


def test_a_policy_that_explores_says_with_which_probability_it_acts() -> None:
    policy = ActorCritic(env_info(CHOICES), ModelConfig(exploration="epsilon_greedy"))
    with torch.no_grad():
        policy.policy_head.weight.zero_()
        policy.policy_head.bias.copy_(torch.tensor([0.0, 1.0, 0.0]))
        policy.variables()["distribution.epsilon"].fill_(0.3)
    (logits,) = policy.distribution.columns(policy.policy_head.bias.detach().unsqueeze(0))[0]
    torch.testing.assert_close(logits.softmax(-1), torch.tensor([[0.1, 0.8, 0.1]]))
    policy.variables()["distribution.epsilon"].zero_()
    log_probs, entropy = policy.distribution.evaluate(policy.policy_head.bias.detach().unsqueeze(0), torch.tensor([1]))
    assert log_probs.item() == pytest.approx(0.0, abs=1e-6)
    assert entropy.item() == pytest.approx(0.0, abs=1e-6)
