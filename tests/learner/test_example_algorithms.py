"""The algorithms of the examples: their losses, and that they learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sf
from examples.algorithms.auxiliary_loss import Foresight, PPOWithForesight
from examples.algorithms.decoupled_ppo import DecoupledPPO
from examples.algorithms.policy_gradient import PolicyGradient
from sf.config import ModelConfig
from sf.errors import ConfigError, ExitCode
from sf.learner.algorithm import Algorithm
from sf.learner.dataset import evaluate_batch
from sf.learner.ppo import PPO
from sf.learner.trial import loss_terms_of
from sf.learner.update import Update
from sf.plugins import register_model
from sf.policy import ActorCritic
from sf.spaces import EnvInfo, LeafSpec
from tests.helpers.commands import run
from tests.helpers.updates import DISCRETE, act, learner_config, make_policy, one_thread_and_seed, train

EXAMPLES = "examples.algorithms"


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    one_thread_and_seed()


def foresight_policy(**config: Any) -> ActorCritic:
    register_model("foresight", Foresight)
    info = EnvInfo("test", 1, {"obs": LeafSpec((4,), "float32")}, DISCRETE)
    return ActorCritic(info, ModelConfig(encoder="foresight", **config))


@pytest.mark.parametrize("config", [{}, {"use_rnn": True, "rnn_size": 64}])
def test_a_head_of_the_user_learns_what_its_loss_asks_for(config: dict[str, Any]) -> None:
    """The curve is the mean over the last minibatch, and the error of the head falls below that of saying 0."""
    policy = foresight_policy(**config)
    flags = learner_config(num_epochs=40, learning_rate=3e-3, max_grad_norm=0.0)
    update = Update(policy, flags, algorithm=PPOWithForesight(flags))
    update.want_summary = True
    batch = act(policy)
    goes_on = ~(batch.terminated | batch.truncated)
    change = (batch.observations["obs"][1:] - batch.observations["obs"][:-1])[goes_on]
    train(update, batch)
    summary = update.summary()
    assert summary["foresight_loss"] < 0.6 * change.square().mean().item()
    assert summary["loss"] == pytest.approx(
        summary["policy_loss"] + 0.5 * summary["value_loss"] + summary["exploration_loss"] + summary["foresight_loss"],
        abs=1e-5,
    )


def test_an_episode_that_ends_says_nothing_about_the_next_observation() -> None:
    config, policy = learner_config(), foresight_policy()
    algorithm, batch = PPOWithForesight(config), act(policy)
    transitions = algorithm.prepare(batch, policy)
    evaluation = policy.evaluate(transitions.observations, transitions.actions)
    before = algorithm.loss(evaluation, transitions).terms["foresight_loss"].item()
    ended = (batch.terminated | batch.truncated).flatten()
    assert ended.any()
    transitions["change"][ended] = 1e6
    assert algorithm.loss(evaluation, transitions).terms["foresight_loss"].item() == before


class Heads(Foresight):
    """Heads that are what a test says."""

    found: Any = None

    def heads(self, features: Tensor) -> Any:
        return self.found(features) if callable(self.found) else self.found


@pytest.mark.parametrize(
    ("found", "settings", "sentence"),
    [
        (lambda features: features, {}, r"encoder=heads: heads must return a dict .* but returned <class 'torch.Tens"),
        (lambda features: {"a": 1.0}, {}, r"must return a tensor of 6 rows as 'a', .* but it is 1\.0\."),
        (lambda features: {"a": features[:1]}, {}, r"tensor of 6 rows as 'a', .* a tensor of shape \[1, 64\] without"),
        (
            lambda features: {"a": features.missing},
            {},
            r"encoder=heads raised AttributeError in heads\(features\), w",
        ),
        (
            lambda features: {"a": features @ torch.zeros(64, 2)},
            {"use_rnn": True, "rnn_size": 16},
            r"raised RuntimeError in heads\(features\), with features \[6, 16\] of the recurrent layers, because of",
        ),
    ],
)
def test_heads_are_tried_before_a_run(found: Any, settings: dict[str, Any], sentence: str) -> None:
    register_model("heads", Heads)
    info = EnvInfo("test", 1, {"obs": LeafSpec((4,), "float32")}, DISCRETE)
    policy = ActorCritic(info, ModelConfig(encoder="heads", **settings))
    policy.encoder.found = found
    with pytest.raises(ConfigError, match=sentence):
        loss_terms_of(PPO(learner_config()), policy)


def slow_decoupled(now: Any, proximal: Any, behavior: Any, advantages: Any) -> float:
    """The decoupled objective of the paper, one transition after the other, with a clip ratio of 0.3."""
    total = 0.0
    for i in range(len(now)):
        correction = min(np.exp(proximal[i] - behavior[i]), 10.0)
        ratio = np.exp(now[i] - proximal[i])
        total -= correction * min(ratio * advantages[i], np.clip(ratio, 0.7, 1.3) * advantages[i])
    return total / len(now)


def test_decoupled_loss_is_the_one_of_the_paper() -> None:
    config = learner_config(ppo_clip_ratio=0.3)
    policy = make_policy()
    batch = act(policy)
    with torch.no_grad():  # the policy has moved since it acted, and moves again after the batch was prepared
        policy.flat_parameters.add_(0.1 * torch.randn_like(policy.flat_parameters))
    algorithm = DecoupledPPO(config)
    transitions = algorithm.prepare(batch, policy)
    proximal = evaluate_batch(batch, policy)[0].flatten()
    with torch.no_grad():
        policy.flat_parameters.add_(0.1 * torch.randn_like(policy.flat_parameters))
    evaluation = policy.evaluate(transitions.observations, transitions.actions)
    found = algorithm.loss(evaluation, transitions).terms["policy_loss"].item()

    def numbers(tensor: Tensor) -> Any:
        return tensor.detach().to(torch.float64).numpy()

    behavior, advantages = batch.behavior_log_probs.flatten(), transitions.advantages
    wanted = slow_decoupled(*map(numbers, (evaluation.log_probs, proximal, behavior, advantages)))
    assert found == pytest.approx(wanted, rel=1e-4)
    coupled = PPO(config).loss(evaluation, transitions).terms["policy_loss"].item()
    assert abs(coupled - wanted) > 1e-3, "the two objectives differ on stale data"


def test_decoupled_loss_has_finite_derivatives_where_a_ratio_overflows() -> None:
    config, policy = learner_config(), make_policy()
    algorithm = DecoupledPPO(config)
    transitions = algorithm.prepare(act(policy), policy)
    transitions["proximal_log_probs"].fill_(-200.0)
    evaluation = policy.evaluate(transitions.observations, transitions.actions)
    loss = algorithm.loss(evaluation, transitions).total
    assert torch.isfinite(torch.autograd.grad(loss, evaluation.log_probs)[0]).all()


def test_decoupled_loss_on_fresh_data_is_that_of_ppo() -> None:
    config, policy = learner_config(), make_policy()
    transitions = DecoupledPPO(config).prepare(act(policy), policy)
    with torch.no_grad():
        policy.flat_parameters.add_(0.1 * torch.randn_like(policy.flat_parameters))
    evaluation = policy.evaluate(transitions.observations, transitions.actions)
    found, wanted = (each.loss(evaluation, transitions) for each in (DecoupledPPO(config), PPO(config)))
    torch.testing.assert_close(found.total, wanted.total)


LEARN: dict[str, tuple[type[Algorithm], dict[str, Any]]] = {
    "policy_gradient": (PolicyGradient, {"num_epochs": 1}),
    "auxiliary_loss": (PPOWithForesight, {"encoder": f"{EXAMPLES}.auxiliary_loss:Foresight"}),
    "decoupled_ppo": (DecoupledPPO, {}),
}


def learn(tmp_path: Path, example: str, seed: int) -> sf.TrainResult:
    """In serial mode, in which a seed is one result and other processes of the machine change nothing."""
    algorithm, flags = LEARN[example]
    flags = {"stop_at_reward": 475, "train_for_env_steps": 1_000_000, "train_dir": str(tmp_path), **flags}
    return sf.train("CartPole-v1", algorithm=algorithm, seed=seed, serial_mode=True, **flags)


@pytest.mark.more
@pytest.mark.parametrize("example", LEARN)
def test_example_learns_cartpole(example: str, tmp_path: Path) -> None:
    result = learn(tmp_path, example, seed=1)
    assert result.exit_reason == "stop_at_reward reached"
    algorithm = LEARN[example][0]
    text = (result.path / "config.json").read_text()
    assert f'"algorithm": "{algorithm.__module__}:{algorithm.__qualname__}"' in text
    terms = {"policy_loss", "value_loss", "exploration_loss"}
    terms |= {"foresight_loss"} if example == "auxiliary_loss" else set()
    assert {f"train/{term}" for term in terms} <= result.metrics.keys()
    assert result.policy is not None


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 4])  # the plain policy gradient learns from nine seeds of ten within the frames
@pytest.mark.parametrize("example", LEARN)
def test_example_learns_cartpole_from_other_seeds(example: str, seed: int, tmp_path: Path) -> None:
    assert learn(tmp_path, example, seed).exit_reason == "stop_at_reward reached"


@pytest.mark.more
def test_several_learners_share_an_algorithm_of_the_user_and_its_terms(tmp_path: Path) -> None:
    algorithm = "--algorithm=examples.algorithms.auxiliary_loss:PPOWithForesight"
    encoder = "--encoder=examples.algorithms.auxiliary_loss:Foresight"
    sizes = "--num_learners=2", "--num_workers=2", "--num_envs_per_worker=4", "--rollout=16"
    finished = run(
        tmp_path, "--env=CartPole-v1", f"--train_dir={tmp_path}", "--experiment=two", algorithm, encoder, *sizes,
        "--train_for_env_steps=4000",
    )  # fmt: skip
    assert finished.code == ExitCode.FINISHED, finished.err
    assert "train/foresight_loss" in (tmp_path / "two/metrics.jsonl").read_text()
