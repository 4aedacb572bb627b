"""An update of a small network, and batches for it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sf.config import LearnerConfig, ModelConfig
from sf.learner.batch import Batch
from sf.learner.dataset import with_gae
from sf.learner.update import Update
from sf.policy import ActorCritic
from sf.spaces import ActionColumn, ActionSpec, EnvInfo, LeafSpec
from tests.helpers.batches import make_batch

ORACLES: dict[str, Any] = json.loads((Path(__file__).parents[1] / "oracles.json").read_text())
DISCRETE = ActionSpec.discrete(3)
BOX = ActionSpec((ActionColumn(low=-1.0, high=1.0),) * 2)
OBS_SIZE = 4


def one_thread_and_seed() -> None:
    # Idle threads of torch spin, which on a busy machine makes these small updates ten times slower.
    torch.set_num_threads(1)
    torch.manual_seed(0)


def make_policy(action: ActionSpec = DISCRETE, **config: Any) -> ActorCritic:
    info = EnvInfo("test", 1, {"obs": LeafSpec((OBS_SIZE,), "float32")}, action)
    return ActorCritic(info, ModelConfig(encoder_mlp_layers=(16, 16), **config))


def learner_config(**changes: Any) -> LearnerConfig:
    return LearnerConfig(**{"num_batches_per_epoch": 1, "num_epochs": 1, "exploration_loss_coeff": 0.01, **changes})


def act(policy: ActorCritic, num_steps: int = 8, num_trajectories: int = 6, version: int = 0) -> Batch:
    """A batch with random observations, rewards and ends, whose actions this policy has drawn."""
    observations = {"obs": 2 * torch.randn(num_steps + 1, num_trajectories, OBS_SIZE) + 1}
    shape = (num_steps, num_trajectories)
    step = policy.act({"obs": observations["obs"][:-1].flatten(0, 1)})
    kind = torch.randint(0, 8, shape)
    truncated = kind == 1
    return make_batch(
        observations=observations,
        initial_memory=policy.get_initial_state(num_trajectories),
        streams=torch.arange(num_trajectories),
        actions=step.action.clone().view(*shape, *step.action.shape[1:]),
        behavior_log_probs=step.info.log_probability.clone().view(shape),
        values=step.info.value_prediction.clone().view(shape),
        rewards=torch.randn(shape),
        terminated=kind == 0,
        truncated=truncated,
        bootstrap_values=policy.values({"obs": observations["obs"][-1]}),
        final_values=torch.where(truncated, torch.randn(shape), torch.nan),
        policy_version=torch.full(shape, version),
        valid=torch.ones(shape, dtype=torch.bool),
    )


def a2c_gradient(policy: ActorCritic, config: LearnerConfig, batch: Batch) -> Tensor:
    """Gradient of -mean(A log pi), the value term and the entropy term."""
    data = with_gae(batch, policy, config)
    evaluation = policy.evaluate(data.observations, data.actions)
    advantages = (data.advantages - data.advantages.mean()) / (data.advantages.std() + 1e-8)
    loss = (
        -(advantages * evaluation.log_probs).mean()
        + config.value_loss_coeff * 0.5 * (evaluation.normalized_values - data.value_targets).square().mean()
        - config.entropy_coeff * evaluation.entropy.mean()
    )
    policy.flat_gradient.zero_()
    torch.autograd.backward(loss)
    return policy.flat_gradient.clone()


def train(update: Update, batch: Batch) -> list[tuple[float, float, float]]:
    return [(step.lag_min, step.lag_avg, step.lag_max) for step in update.steps(batch)]


def after_one_step(policy: ActorCritic, batch: Batch, config: LearnerConfig, version: int = 0) -> tuple[Update, Tensor]:
    update = Update(copy.deepcopy(policy), config)
    update.version = version
    update.want_summary = True
    assert len(train(update, batch)) == 1
    return update, update.policy.flat.clone()
