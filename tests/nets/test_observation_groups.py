"""Networks of which each reads its own keys, against plain torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sf
from sf.config import Config, LearnerConfig, ModelConfig, RunConfig, check
from sf.errors import ConfigError, SfError
from sf.policy import ActorCritic, PolicySaver, StepType, TimeStep, TrainedPolicy, load_policy
from sf.policy.exporting import TensorProgram
from sf.spaces import ActionSpec, EnvInfo, LeafSpec

LEAVES = {
    "obs": LeafSpec((2,), "float32", path=("obs",)),
    "state": LeafSpec((4,), "float32", path=("state",)),
    "action_mask": LeafSpec((3,), "int8", path=("action_mask",)),
}
INFO = EnvInfo("test", 1, LEAVES, ActionSpec.discrete(3))
ENV = "sf/HiddenVelocity-v0"


def network(**model: Any) -> ActorCritic:
    torch.manual_seed(0)
    return ActorCritic(INFO, ModelConfig(**{"policy_keys": ("obs",), "critic_keys": ("obs", "state"), **model}))


def observations(rows: int) -> dict[str, Tensor]:
    mask = torch.ones(rows, 3, dtype=torch.int8)
    mask[::2, 1] = 0
    return {"obs": torch.randn(rows, 2), "state": torch.randn(rows, 4), "action_mask": mask}


def tower(variables: dict[str, Tensor], name: str, x: Tensor, layers: int) -> Tensor:
    for index in range(layers):
        at = f"{name}.mlp.layers.{index}"
        x = torch.tanh(x @ variables[f"{at}.weight"].T + variables[f"{at}.bias"])
    return x


def test_outputs_and_gradients_are_those_of_two_plain_networks() -> None:
    policy = network(encoder_mlp_layers=(8, 8), critic_mlp_layers=(16,), normalize_returns=False)
    seen = observations(6)
    policy.observation_normalizers["obs"].set_moments(torch.tensor([1.0, -1.0]), torch.tensor([4.0, 9.0]))
    own = {name: variable.clone() for name, variable in policy.variables().items()}
    trained = {name: own[name].requires_grad_() for name, _ in policy.named_parameters()}
    obs, state = (policy.inputs(seen)[name] for name in ("obs", "state"))
    assert not torch.allclose(obs, seen["obs"], atol=0.1), "the statistics of a leaf serve both networks"
    logits = tower(own, "encoder", obs, 2) @ own["policy_head.weight"].T + own["policy_head.bias"]
    logits = logits.masked_fill(seen["action_mask"] == 0, -1e8)
    features = tower(own, "value_encoder", torch.cat([obs, state], -1), 1)
    values = (features @ own["value_head.weight"].T + own["value_head.bias"]).squeeze(-1)
    actions = torch.tensor([0, 1, 2, 1, 0, 2])
    log_probs = torch.log_softmax(logits, -1)[torch.arange(6), actions]

    found = policy.evaluate(seen, actions)
    torch.testing.assert_close(found.log_probs, log_probs)
    torch.testing.assert_close(found.normalized_values, values)
    (found.log_probs.sum() + found.normalized_values.square().sum()).backward()  # type: ignore[no-untyped-call]
    (log_probs.sum() + values.square().sum()).backward()  # type: ignore[no-untyped-call]
    for name, parameter in policy.named_parameters():
        torch.testing.assert_close(parameter.grad, trained[name].grad, msg=name)


@pytest.mark.parametrize("rnn", [{}, {"use_rnn": True, "rnn_type": "lstm", "rnn_size": 8}], ids=["plain", "lstm"])
def test_acting_reads_no_key_of_the_critic(rnn: dict[str, Any]) -> None:
    policy = network(**rnn, critic_mlp_layers=(16,))
    seen = observations(4)
    whole = policy.act(seen, policy.get_initial_state(4), greedy=True)
    del seen["state"]
    size = 0 if policy.memory is None else policy.memory.state_size
    actions, state = policy.choose(seen, torch.zeros(4, size), greedy=True)
    assert torch.equal(actions, whole.action)
    torch.testing.assert_close(state, whole.state[:, :size])


def test_saved_and_exported_policy_asks_for_the_keys_of_the_policy_alone(tmp_path: Path) -> None:
    PolicySaver(TrainedPolicy(network())).save(tmp_path / "policy")
    loaded = load_policy(tmp_path / "policy")
    assert list(loaded.time_step_spec.observation) == ["obs", "action_mask"]
    assert isinstance(loaded, TrainedPolicy)
    assert list(TensorProgram(loaded).input_specs) == ["observation/obs", "observation/action_mask"]
    seen = observations(1)
    del seen["state"]
    step = TimeStep(torch.tensor([StepType.FIRST], dtype=torch.int32), torch.zeros(1), torch.ones(1), seen)
    assert loaded.action(step, seed=1).action.shape == (1,)


REFUSED = [
    ({"policy_keys": ()}, "policy_keys is an empty list"),
    ({"critic_keys": ("obs", "obs")}, "critic_keys=obs obs names obs twice"),
    ({"critic_keys": ("obs",), "actor_critic_share_weights": True}, "actor_critic_share_weights=True with critic_keys"),
]


@pytest.mark.parametrize(("model", "sentence"), REFUSED)
def test_groups_that_cannot_be_are_refused_with_one_sentence(model: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as refused:
        check(Config(RunConfig("CartPole-v1"), model=ModelConfig(**model)))
    assert len(refused.value.problems) == 1


@pytest.mark.parametrize("name", ["pqn", "dqn", "drqn"])
def test_q_learning_has_no_other_critic(name: str) -> None:
    config = Config(
        RunConfig("CartPole-v1"), model=ModelConfig(critic_keys=("a",)), learner=LearnerConfig(algorithm=name)
    )
    with pytest.raises(ConfigError, match=f"algorithm={name} chooses actions by the network of the values"):
        check(config)


def test_unknown_keys_and_observations_without_keys_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"policy_keys=velocity: test has no key velocity .*Use some of obs, state"):
        network(policy_keys=("velocity",))
    with pytest.raises(ConfigError, match="action_mask always belongs to the policy"):
        network(critic_keys=("action_mask",))
    plain = EnvInfo("test", 1, {"obs": LeafSpec((4,), "float32")}, ActionSpec.discrete(2))
    with pytest.raises(ConfigError, match="names keys of a Dict, but test observes one array"):
        ActorCritic(plain, ModelConfig(policy_keys=("obs",)))


def test_policy_that_reads_what_an_evaluation_does_not_show_is_refused(tmp_path: Path) -> None:
    info = EnvInfo("test", 1, {name: LEAVES[name] for name in ("obs", "state")}, ActionSpec.discrete(2))
    policy = TrainedPolicy(ActorCritic(info, ModelConfig(policy_keys=("state",))))
    with pytest.raises(SfError, match="The policy reads state, but observations of sf/HiddenVelocity-v0 have no state"):
        sf.evaluate(policy, ENV, episodes=1, env_kwargs={"with_state": False}, num_workers=1)


@pytest.mark.more
def test_serial_run_trains_resumes_and_is_evaluated_without_the_keys_of_the_critic(tmp_path: Path) -> None:
    flags: dict[str, Any] = {
        "serial_mode": True, "policy_keys": ["obs"], "critic_keys": ["state"], "critic_mlp_layers": [32],
        "train_dir": str(tmp_path), "experiment": "run", "seed": 1,
    }  # fmt: skip
    sf.train(ENV, train_for_env_steps=3000, **flags)
    sf.train(ENV, train_for_env_steps=6000, **flags)
    for shown in (True, False):
        played = sf.evaluate(tmp_path / "run", ENV, episodes=3, env_kwargs={"with_state": shown}, num_workers=1)
        assert np.isfinite(played.mean)
    with pytest.raises(SfError, match=r"model\.critic_keys"):
        sf.train(ENV, train_for_env_steps=9000, **{**flags, "critic_keys": ["obs", "state"]})
    with pytest.raises(SfError, match="CartPole-v1 is not what it should be"):
        sf.evaluate(tmp_path / "run", "CartPole-v1", episodes=1, num_workers=1)
