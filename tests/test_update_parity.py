"""The update against others: plain A2C at zero lag, an independent PPO, and the Adam of torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sf.config import LearnerConfig
from sf.learner.dataset import with_gae
from sf.learner.optimizer import FlatAdam, clip_gradient
from sf.learner.update import Batch, Update
from sf.policy import ActorCritic
from sf.spaces import ActionSpec
from tests.updates import BOX, DISCRETE, act, learner_config, make_policy, one_thread_and_seed, train


@pytest.fixture(autouse=True)
def _one_thread_and_seed() -> None:
    one_thread_and_seed()


# ---------------------------------------------------------------------------------------------------------- zero lag


@pytest.mark.parametrize("action", [DISCRETE, BOX])
@pytest.mark.parametrize("num_iterations", [1, 3])
def test_a10d_ratio_is_one_at_zero_lag_also_after_statistics_changed(action: ActionSpec, num_iterations: int) -> None:
    update = Update(make_policy(action), learner_config(learning_rate=0.01))
    update.want_summary = True
    for _ in range(num_iterations):
        train(update, act(update.policy, version=update.version))
    summary = update.summary()
    assert summary["ratio_min"] == summary["ratio_max"] == pytest.approx(1.0, abs=1e-5)
    assert summary["ratio_mean"] == pytest.approx(0.0, abs=1e-5)
    assert summary["fraction_clipped"] == summary["clipfrac"] == 0.0
    assert summary["kl_divergence"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("action", [DISCRETE, BOX])
def test_a10e_gradient_is_that_of_plain_a2c(action: ActionSpec) -> None:
    config = learner_config(max_grad_norm=0.0, learning_rate=1e-8)
    update = Update(make_policy(action), config)
    policy = update.policy
    batch = act(policy)
    data = with_gae(batch, policy, config)
    evaluation = policy.evaluate(data.observations, data.actions)
    advantages = (data.advantages - data.advantages.mean()) / (data.advantages.std() + 1e-8)
    loss = (
        -(advantages * evaluation.log_probs).mean()
        + config.value_loss_coeff * 0.5 * (evaluation.normalized_values - data.value_targets).square().mean()
        - config.exploration_loss_coeff * evaluation.entropy.mean()
    )
    policy.flat_gradient.zero_()
    torch.autograd.backward(loss)
    expected = policy.flat_gradient.clone()
    train(update, batch)
    # The gradient of the optimizer step is still there, because max_grad_norm=0 leaves it alone.
    scale = expected.abs().max()
    torch.testing.assert_close(policy.flat_gradient / scale, expected / scale, rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------------------------------------------------------ parity


class PlainPPO:
    """An independent PPO for a shared tanh trunk, float64, written after the single-file scripts; Adam by hand.

    Statistics are computed from all data so far, which it keeps.
    """

    def __init__(self, policy: ActorCritic, config: LearnerConfig) -> None:
        self.config = config
        self.parameters: dict[str, Tensor] = {}
        self.take_over(policy)
        self.first = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        self.second = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        self.count = 0
        self.seen: list[Tensor] = []
        self.returns: list[Tensor] = []
        self.observation_scale = self.return_scale = (torch.tensor(0.0).double(), torch.tensor(1.0).double())
        self.normalizes = policy.return_normalizer is not None

    def take_over(self, policy: ActorCritic) -> None:
        """Begins an update with the parameters of the other one, so that roundings do not add up."""
        self.parameters = {name: p.detach().double().clone().requires_grad_() for name, p in policy.named_parameters()}

    def forward(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (w1, b1), (w2, b2), (wp, bp), (wv, bv) = (
            (self.parameters[f"{layer}.weight"], self.parameters[f"{layer}.bias"])
            for layer in ("encoder.mlp.layers.0", "encoder.mlp.layers.1", "policy_head", "value_head")
        )
        mean, std = self.observation_scale
        inputs = ((observations - mean) / std).clamp(-10, 10)
        hidden = torch.tanh(torch.tanh(inputs @ w1.t() + b1) @ w2.t() + b2)
        values, action_params = (hidden @ wv.t() + bv).squeeze(-1), hidden @ wp.t() + bp
        if "distribution.log_std" not in self.parameters:
            choice: Any = torch.distributions.Categorical(logits=action_params)
            return choice.log_prob(actions), choice.entropy(), values
        normal: Any = torch.distributions.Normal(action_params, self.parameters["distribution.log_std"].exp())
        return normal.log_prob(actions).sum(-1), normal.entropy().sum(-1), values

    def fold_in(self, batch: Batch, returns: Tensor) -> None:
        """Once after an update; mean and deviation of the population."""
        if not self.normalizes:
            return
        self.seen.append(batch.observations["obs"][:-1].flatten(0, 1).double())
        self.returns.append(returns.flatten())
        self.observation_scale, self.return_scale = (
            (data.mean(0), torch.sqrt(data.var(0, correction=0) + 1e-8))
            for data in (torch.cat(self.seen), torch.cat(self.returns))
        )

    def advantages(self, batch: Batch) -> Tensor:
        c = self.config
        out = torch.zeros_like(batch.rewards, dtype=torch.float64)
        num_steps, num_trajectories = out.shape
        for b in range(num_trajectories):
            last = 0.0
            for t in reversed(range(num_steps)):
                following = batch.bootstrap_values[b] if t == num_steps - 1 else batch.values[t + 1, b]
                if batch.truncated[t, b]:
                    following = batch.final_values[t, b]
                alive = 0.0 if batch.terminated[t, b] else 1.0
                open_trace = 0.0 if batch.terminated[t, b] or batch.truncated[t, b] else 1.0
                bootstrap = c.gamma * following.item() if alive else 0.0
                delta = batch.rewards[t, b].item() + bootstrap - batch.values[t, b].item()
                last = delta + c.gamma * c.gae_lambda * open_trace * last
                out[t, b] = last
        return out

    def train(self, batch: Batch) -> None:
        advantages = self.advantages(batch)
        returns = advantages + batch.values.double()
        num_trajectories = batch.values.shape[1]
        for _ in range(self.config.num_epochs):
            for columns in np.array_split(np.arange(num_trajectories), self.config.num_minibatches):
                self.step(batch, advantages, returns, torch.from_numpy(columns))
        self.fold_in(batch, returns)

    def step(self, batch: Batch, advantages: Tensor, returns: Tensor, columns: Tensor) -> None:
        c = self.config

        def part(x: Tensor) -> Tensor:
            x = x[:, columns].flatten(0, 1)
            return x.double() if x.is_floating_point() else x

        log_probs, entropy, values = self.forward(part(batch.observations["obs"][:-1]), part(batch.actions))
        ratio = (log_probs - part(batch.behavior_log_probs)).exp()
        a = part(advantages)
        a = (a - a.mean()) / (a.std() + 1e-8)
        policy_loss = torch.max(-a * ratio, -a * torch.clamp(ratio, 1 - c.ppo_clip_ratio, 1 + c.ppo_clip_ratio)).mean()
        mean, std = self.return_scale
        old, target = (part(batch.values) - mean) / std, (part(returns) - mean) / std
        clipped = old + torch.clamp(values - old, -c.ppo_clip_value, c.ppo_clip_value)
        value = 0.5 * torch.max((values - target) ** 2, (clipped - target) ** 2).mean()
        loss = policy_loss - c.exploration_loss_coeff * entropy.mean() + c.value_loss_coeff * value
        gradients = dict(zip(self.parameters, torch.autograd.grad(loss, list(self.parameters.values())), strict=True))
        norm = torch.sqrt(torch.stack([(g**2).sum() for g in gradients.values()]).sum())
        scale = min(1.0, c.max_grad_norm / (norm.item() + 1e-6))
        self.count += 1
        for name, p in self.parameters.items():
            g, m, v = gradients[name] * scale, self.first[name], self.second[name]
            m.mul_(0.9).add_(0.1 * g)
            v.mul_(0.999).add_(0.001 * g**2)
            corrected, second = m / (1 - 0.9**self.count), v / (1 - 0.999**self.count)
            p.data -= c.learning_rate * corrected / (second.sqrt() + c.adam_eps)


@pytest.mark.parametrize("normalizes", [False, True])
@pytest.mark.parametrize("action", [DISCRETE, BOX], ids=["choice", "numbers"])
def test_parity_with_an_independent_ppo(action: ActionSpec, normalizes: bool) -> None:
    """The same parameters after each of three updates; statistics and moments of Adam go on from one to the next."""
    config = learner_config(
        num_batches_per_epoch=3, num_epochs=4, shuffle_minibatches=False, learning_rate=3e-3, max_grad_norm=0.5
    )
    policy = make_policy(action, normalize_input=normalizes, normalize_returns=normalizes)
    update, plain = Update(policy, config), PlainPPO(policy, config)
    for _ in range(3):
        batch = act(policy, version=update.version)
        before = policy.flat_parameters.detach().clone()
        plain.take_over(policy)
        train(update, batch)
        plain.train(batch)
        expected = torch.cat([p.detach().reshape(-1) for p in plain.parameters.values()])
        found = policy.flat_parameters.detach().double()
        assert (found - before).abs().max() > 1e-2, "something was learned"
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_c3_adam_defaults() -> None:
    defaults = Update(make_policy(), LearnerConfig()).optimizer.defaults
    assert defaults["eps"] == 1e-5
    assert defaults["betas"] == (0.9, 0.999)


def test_c3_adam_is_that_of_torch() -> None:
    policy = make_policy()
    config = learner_config(learning_rate=1e-3)
    optimizer = FlatAdam(policy, config)
    reference = torch.nn.Parameter(policy.flat_parameters.detach().clone())
    torch_adam = torch.optim.Adam([reference], lr=1e-3, eps=config.adam_eps)
    for size in (1.0, 1e-3, 10.0, 0.0, 1e-6):
        gradient = size * torch.randn_like(reference)
        policy.flat_gradient.copy_(gradient)
        reference.grad = gradient.clone()
        optimizer.step(1e-3)
        torch_adam.step()
        torch.testing.assert_close(policy.flat_parameters, reference, rtol=1e-6, atol=1e-7)
    state = torch_adam.state[reference]
    torch.testing.assert_close(optimizer.exp_avg, state["exp_avg"])
    torch.testing.assert_close(optimizer.exp_avg_sq, state["exp_avg_sq"])


def test_c11_gradient_is_scaled_to_the_largest_norm() -> None:
    gradient = torch.randn(100)
    clipped = gradient.clone()
    norm = clip_gradient(clipped, 0.5)
    assert norm.item() == pytest.approx(gradient.norm().item())
    assert clipped.norm().item() <= 0.5
    torch.testing.assert_close(clipped / clipped.norm(), gradient / gradient.norm())
    short = gradient / gradient.norm() * 0.4
    assert torch.equal(clip_and_return(short, 0.5), short)
    assert torch.equal(clip_and_return(gradient, 0.0), gradient)


def clip_and_return(gradient: Tensor, max_norm: float) -> Tensor:
    clipped = gradient.clone()
    clip_gradient(clipped, max_norm)
    return clipped
