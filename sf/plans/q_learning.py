"""Parts of policies that learn the values of actions: a network with a target, random actions that become rarer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from sf.algorithms.epsilon import EpsilonSchedule
from sf.errors import UsageError
from sf.nets.categorical import EpsilonGreedy
from sf.nets.fast.drop_in import DropIn
from sf.plans.models import TorchModel, expect_settings_of_model
from sf.plans.torch_policy import build_torch_policy


class QModel(TorchModel):
    """Values of all actions, a copy of the network that follows in steps, and the share of random actions."""

    def __init__(self, obs_space: Any, action_space: Any, num_outputs: int, config: Mapping[str, Any]) -> None:
        """See `TorchModel`."""
        settings = {"activation": "relu", **config}
        one_tower = {"exploration": "epsilon_greedy", "actor_critic_share_weights": True}
        super().__init__(obs_space, action_space, num_outputs, settings, **one_tower)
        for layer in self.network.modules():
            if isinstance(layer, (nn.Linear, nn.Conv2d)):  # those of actor-critics begin with nearly equal values
                layer.reset_parameters()
        self.target = copy.deepcopy(self.network).requires_grad_(False)
        self._forward_target = DropIn(self.target)

    @property
    def epsilon(self) -> Tensor:
        """The share, a weight of the network, so that workers get it."""
        kind = self.network.distribution
        assert isinstance(kind, EpsilonGreedy)
        return kind.epsilon

    def of_actions(self, obs: Tensor, actions: Tensor) -> Tensor:
        """[n] values of these actions."""
        values: Tensor = self({"obs": obs})[0].gather(1, actions[:, None])[:, 0]
        return values

    @torch.no_grad()
    def after(self, obs: Tensor) -> Tensor:
        """[n] values of the best actions, as the target network sees them.

        That is double Q-learning (van Hasselt et al. 2016, arXiv:1509.06461, equation 4).
        """
        best = self({"obs": obs})[0].argmax(-1, keepdim=True)
        return self._forward_target(self.target, self.features(obs))[0].gather(1, best)[:, 0]


class TargetUpdates:
    """`update_target`, and a share of random actions that falls with the steps of the plan.

    Settings: ``epsilon_steps`` until the share is ``last_epsilon``.
    """

    def update_target(self: Any) -> None:
        """The target network becomes the network of now."""
        self.model.target.load_state_dict(self.model.network.state_dict())

    def on_global_var_update(self: Any, global_vars: Mapping[str, Any]) -> None:
        """See `Policy`."""
        super().on_global_var_update(global_vars)  # type: ignore[misc]  # of the policy
        schedule = EpsilonSchedule(1.0, self.config["last_epsilon"], 1.0)
        self.model.epsilon.fill_(schedule.at(global_vars["timestep"] / self.config["epsilon_steps"]))


def build_q_policy(name: str, *, loss_fn: Callable[..., Any], config: Mapping[str, Any], **hooks: Any) -> Any:
    """A policy class with a `QModel`; its loss leaves the errors [n] in ``policy.td_error``.

    Args:
        name: of the class.
        loss_fn: see `build_torch_policy`.
        config: settings; ``lr``, ``epsilon_steps`` and ``last_epsilon`` are read.
        hooks: further ones of `build_torch_policy`.
    """
    return build_torch_policy(
        name, loss_fn=loss_fn, get_default_config=lambda: dict(config), mixins=[TargetUpdates], stats_fn=errors,
        **{"make_model": make_q_model, "action_sampler_fn": mostly_best, **hooks},
    )  # fmt: skip


def make_q_model(policy: Any, obs_space: Any, action_space: Any, config: Mapping[str, Any]) -> QModel:
    """The class ``custom_model`` of the settings, or `QModel`.

    Raises:
        UsageError: it has no target network, or actions are no choices.
        ConfigError: there is no setting of a name.
    """
    if not isinstance(action_space, gym.spaces.Discrete):
        raise UsageError(f"{type(policy).__name__} learns values of one choice, but the actions are {action_space}.")
    expect_settings_of_model(config)
    make = config.get("model", {}).get("custom_model", QModel)
    if not (isinstance(make, type) and issubclass(make, QModel)):
        raise UsageError(f"{type(policy).__name__} needs a subclass of sf.plans.QModel, but custom_model is {make}.")
    return make(obs_space, action_space, int(action_space.n), config.get("model", {}))


def mostly_best(policy: Any, model: Any, columns: Mapping[str, Tensor], states: Any) -> tuple[Tensor, None, list[Any]]:
    """The best actions, but for a share that is drawn."""
    (values, _), kind = model(columns), model.network.distribution
    if not policy.config.get("explore", True):
        return kind.best(values), None, []
    return kind.draw(values, kind.noise(len(values), None)), None, []


def errors(policy: Any, batch: Any) -> dict[str, Any]:
    """The statistics: errors of each row, for priorities, and the mean of their sizes."""
    return {"td_error": policy.td_error.numpy(), "mean_td_error": policy.td_error.abs().mean()}


def turns_of(config: Mapping[str, Any]) -> list[float]:
    """Turns of storing and of training, so that ``training_intensity`` rows train for each sampled one (row D39).

    One of each where that setting is None.
    """
    if config["training_intensity"] is None:
        return [1, 1]
    sampled = config["rollout_fragment_length"] * config["num_envs_per_worker"] * max(1, config["num_workers"])
    return [1, config["training_intensity"] / (config["train_batch_size"] / sampled)]


def huber(errors: Tensor) -> Tensor:
    """[n] squared where they are small, linear beyond 1."""
    return nn.functional.smooth_l1_loss(errors, torch.zeros_like(errors), reduction="none")
