"""`build_torch_policy`: a policy class from functions (rows D5 to D8), after RLlib's policy builder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sf.errors import UsageError
from sf.learner.algorithm_state import load_parts, state_of_parts
from sf.plans.distributions import ActionDistribution, distribution_for
from sf.plans.models import TorchModel, expect_settings_of_model
from sf.plans.policy import Actions, PlanPolicy, dummy_batch, expect_after
from sf.plans.sample_batch import SampleBatch
from sf.shared.arena import Array

Hook = Callable[..., Any] | None


@dataclass(frozen=True)
class Hooks:
    """The functions that a policy is built from; see `build_torch_policy`."""

    name: str
    loss_fn: Callable[..., Any]
    get_default_config: Hook = None
    stats_fn: Hook = None
    postprocess_fn: Hook = None
    extra_action_out_fn: Hook = None
    extra_grad_process_fn: Hook = None
    extra_learn_fetches_fn: Hook = None
    optimizer_fn: Hook = None
    validate_spaces: Hook = None
    before_init: Hook = None
    before_loss_init: Hook = None
    after_init: Hook = None
    action_sampler_fn: Hook = None
    action_distribution_fn: Hook = None
    make_model: Hook = None
    make_model_and_action_dist: Hook = None
    compute_gradients_fn: Hook = None
    apply_gradients_fn: Hook = None
    mixins: Sequence[type] = ()


def build_torch_policy(name: str, *, loss_fn: Callable[..., Any] | None = None, **hooks: Any) -> Any:
    """A policy class that is made of functions. All but the first two can be left out.

    ==========================  =====================================================================
    Hook                        Called as, and returns
    ==========================  =====================================================================
    loss_fn                     (policy, model, dist_class, batch) -> scalar tensor
    stats_fn                    (policy, batch) -> statistics; always after the loss
    postprocess_fn              (policy, batch, other_agent_batches, episode) -> batch
    extra_action_out_fn         (policy, columns, states, model, distribution) -> extra columns
    extra_grad_process_fn       (policy, optimizer, loss) -> statistics; may change gradients in place
    extra_learn_fetches_fn      (policy) -> further output of learning
    optimizer_fn                (policy, config) -> torch optimizer
    get_default_config          () -> settings that the config of a policy overrides
    validate_spaces             (policy, observation_space, action_space, config); raises
    before_init                 (policy, observation_space, action_space, config)
    before_loss_init            the same, once there are a model and a distribution
    after_init                  the same, at the end
    action_sampler_fn           (policy, model, columns, states) -> actions, log-probabilities, states
    action_distribution_fn      (policy, model, columns, states) -> inputs, distribution class, states
    make_model                  (policy, observation_space, action_space, config) -> model
    make_model_and_action_dist  the same -> model, distribution class
    compute_gradients_fn        (policy, batch) -> gradients, statistics
    apply_gradients_fn          (policy, gradients)
    mixins                      classes whose methods win over those of the policy; a hook calls their
                                constructors, if they have any
    ==========================  =====================================================================

    The model is in evaluation mode, also where it learns; a hook may call ``policy.model.train()``.

    Returns:
        A subclass of `TorchPolicy`, and of the mixins.

    Raises:
        UsageError: there is no loss, or no hook of a name.
    """
    if loss_fn is None and "compute_gradients_fn" not in hooks:
        raise UsageError(f"The policy {name} has no loss. Give it loss_fn=..., which returns a scalar tensor.")
    known = {each.name for each in fields(Hooks)}
    if unknown := sorted(hooks.keys() - known):
        raise UsageError(f"build_torch_policy has no {', '.join(unknown)}. There are {', '.join(sorted(known))}.")
    return _class_of(
        Hooks(name, loss_fn or _no_loss, **{hook: value for hook, value in hooks.items() if value is not None})
    )


def _no_loss(*_: Any) -> Tensor:
    """The loss of a policy that computes its gradients in another way."""
    return torch.zeros((), requires_grad=True)


def _class_of(hooks: Hooks) -> type[TorchPolicy]:
    # Its own constructor: that of a mixin is called by a hook, with the arguments that the mixin wants.
    own = {"hooks": hooks, "__init__": TorchPolicy.__init__, "__module__": __name__}
    return type(hooks.name, (*hooks.mixins, TorchPolicy), own)


class TorchPolicy(PlanPolicy):
    """A policy with a network of torch, made by `build_torch_policy`."""

    hooks: Hooks

    @classmethod
    def with_updates(cls, **overrides: Any) -> type[TorchPolicy]:
        """Another class with some hooks replaced; this one stays as it is (row D7)."""
        return _class_of(replace(cls.hooks, **overrides))

    def __init__(self, observation_space: Any, action_space: Any, config: Mapping[str, Any]) -> None:
        """Makes model and optimizer, then postprocesses and evaluates a batch of zeros (row D8).

        Raises:
            UsageError: the spaces are not suitable.
        """
        hooks = self.hooks
        defaults = hooks.get_default_config() if hooks.get_default_config else {}
        super().__init__(observation_space, action_space, {**defaults, **config})
        spaces = observation_space, action_space, self.config
        self._call("validate_spaces", *spaces)
        self._call("before_init", *spaces)
        self.global_timestep = 0
        self.model, self.dist_class = self._model_and_distribution()
        self.model.eval()  # as in `sf-train`, so that the policy that trains is the one that acted
        self._call("before_loss_init", *spaces)
        made = hooks.optimizer_fn(self, self.config) if hooks.optimizer_fn else None
        if made is not None and not isinstance(made, torch.optim.Optimizer):
            raise self._wrong(
                "optimizer_fn", made, "one torch optimizer; keep a further one in an attribute of the policy"
            )
        self.optimizer = made or torch.optim.Adam(self.model.parameters(), lr=self.config.get("lr", 5e-4), fused=True)
        self.columns_read: frozenset[str] = frozenset()
        """Columns that loss and statistics read, and so the only ones that become tensors."""
        self._find_columns()
        self._call("after_init", *spaces)

    def compute_actions(
        self,
        obs_batch: Array,
        state_batches: Sequence[Array] = (),
        prev_action_batch: Array | None = None,
        prev_reward_batch: Array | None = None,
        info_batch: Sequence[Mapping[str, Any]] | None = None,
        episodes: Sequence[Any] | None = None,
    ) -> Actions:
        """See `PlanPolicy`; extra columns are ``action_logp``, ``action_dist_inputs`` and those of the hook."""
        with torch.inference_mode():
            columns = {"obs": torch.as_tensor(obs_batch)}
            if prev_action_batch is not None:
                columns |= {"prev_actions": torch.as_tensor(prev_action_batch)}
            if prev_reward_batch is not None:
                columns |= {"prev_rewards": torch.as_tensor(prev_reward_batch)}
            states = [torch.as_tensor(state) for state in state_batches]
            distribution, extra = None, {}
            if self.hooks.action_sampler_fn:
                sampled = self.hooks.action_sampler_fn(self, self.model, columns, states)
                if not (isinstance(sampled, tuple) and len(sampled) == 3 and isinstance(sampled[0], Tensor)):
                    raise self._wrong(
                        "action_sampler_fn", sampled, "actions and log-probabilities as tensors, and a list of states"
                    )
                actions, log_probs, after = sampled
            else:
                inputs, dist_class, after = self._inputs(columns, states)
                distribution = dist_class(inputs, self.model)
                explores = self.config.get("explore", True)
                actions = distribution.sample() if explores else distribution.deterministic_sample()
                log_probs, extra["action_dist_inputs"] = distribution.logp(actions), inputs
            if log_probs is not None:
                extra["action_logp"] = log_probs
            if self.hooks.extra_action_out_fn:
                added = self.hooks.extra_action_out_fn(self, columns, states, self.model, distribution)
                if not isinstance(added, Mapping):
                    raise self._wrong("extra_action_out_fn", added, "a dict of columns")
                extra |= added
            return actions.detach().cpu().numpy(), [state.numpy() for state in after], _as_arrays(extra)

    @property
    def postprocesses(self) -> bool:
        """See `PlanPolicy`."""
        is_own = type(self).postprocess_trajectory is TorchPolicy.postprocess_trajectory
        return self.hooks.postprocess_fn is not None if is_own else True

    def postprocess_trajectory(
        self, sample_batch: SampleBatch, other_agent_batches: Mapping[Any, Any] | None = None, episode: Any = None
    ) -> SampleBatch:
        """See `PlanPolicy`."""
        if not self.hooks.postprocess_fn:
            return sample_batch
        batch: SampleBatch = self.hooks.postprocess_fn(self, sample_batch, other_agent_batches, episode)
        if not isinstance(batch, SampleBatch):
            raise self._wrong("postprocess_fn", batch, "the SampleBatch that it was given, or another one")
        return batch

    def learn_on_batch(self, samples: SampleBatch) -> dict[str, Any]:
        """See `PlanPolicy`."""
        return super().learn_on_batch(samples) | dict(self._call("extra_learn_fetches_fn") or {})

    def compute_gradients(self, postprocessed_batch: SampleBatch) -> tuple[list[Any], dict[str, Any]]:
        """See `PlanPolicy`; gradients are tensors in the order of the parameters, None for those without one."""
        if self.hooks.compute_gradients_fn:
            gradients, info = self.hooks.compute_gradients_fn(self, postprocessed_batch)
            return gradients, info
        batch = self._as_tensors(postprocessed_batch)
        loss = self._loss(batch)
        if not loss.isfinite():  # it may be for the batch of zeros
            raise UsageError(
                f"The loss of the policy {self.hooks.name} is {loss.item()}; its weights are as they were before. Look "
                "for a division by 0, a logarithm of 0, or a learning rate that is too large."
            )
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        info = dict(self._call("extra_grad_process_fn", self.optimizer, loss) or {})
        gradients = [p.grad for p in self.model.parameters()]  # the next ones are tensors of their own
        return gradients, self._statistics(batch) | info

    def apply_gradients(self, gradients: Sequence[Any]) -> None:
        """See `PlanPolicy`."""
        if self.hooks.apply_gradients_fn:
            self.hooks.apply_gradients_fn(self, gradients)
            return
        for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
            parameter.grad = None if gradient is None else torch.as_tensor(gradient)
        self.optimizer.step()

    def get_initial_state(self) -> list[Array]:
        """See `PlanPolicy`."""
        states: list[Array] = self.model.get_initial_state() if hasattr(self.model, "get_initial_state") else []
        return states

    def get_weights(self) -> dict[str, Array]:
        """See `PlanPolicy`: copies of everything that the model saves."""
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in self.model.state_dict().items()}

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        """See `PlanPolicy`.

        Raises:
            UsageError: they are those of another network.
        """
        try:
            self.model.load_state_dict({name: torch.as_tensor(array) for name, array in weights.items()})
        except RuntimeError as error:
            raise UsageError(f"{error} A policy takes the weights of a network with the same parameters.") from error

    def get_state(self) -> dict[str, Any]:
        """See `PlanPolicy`: with optimizers, and modules and parameters in attributes of the policy."""
        own = {"optimizer": self.optimizer.state_dict(), "timestep": self.global_timestep}
        return super().get_state() | own | {"parts": state_of_parts(self._further_parts())}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """See `PlanPolicy`."""
        super().set_state(state)
        self.optimizer.load_state_dict(state["optimizer"])
        if "parts" in state:  # not in those of earlier versions
            load_parts(self._further_parts(), state["parts"])
        self.global_timestep = state["timestep"]

    def on_global_var_update(self, global_vars: Mapping[str, Any]) -> None:
        """See `PlanPolicy`."""
        self.global_timestep = global_vars["timestep"]

    def _further_parts(self) -> Any:
        """What attributes hold beside the model and its optimizer."""
        known = self.model, self.optimizer
        return SimpleNamespace(**{name: part for name, part in vars(self).items() if not any(part is x for x in known)})

    def _call(self, hook: str, *arguments: Any) -> Any:
        function = getattr(self.hooks, hook)
        return function(self, *arguments) if function else None

    def _model_and_distribution(self) -> tuple[Any, type[ActionDistribution]]:
        hooks, spaces = self.hooks, (self.observation_space, self.action_space, self.config)
        if hooks.make_model_and_action_dist:
            model, dist_class = hooks.make_model_and_action_dist(self, *spaces)
            return model, dist_class
        replaces = hooks.action_sampler_fn or hooks.action_distribution_fn
        dist_class = None if replaces and hooks.make_model else distribution_for(self.action_space)
        if hooks.make_model:
            return hooks.make_model(self, *spaces), dist_class  # type: ignore[return-value]  # the hooks know theirs
        assert dist_class is not None
        expect_settings_of_model(self.config)
        num_outputs = dist_class.required_model_output_shape(self.action_space)
        make = self.config.get("model", {}).get("custom_model", TorchModel)
        return make(*spaces[:2], num_outputs, self.config.get("model", {})), dist_class

    def _inputs(self, columns: Mapping[str, Any], states: list[Tensor]) -> tuple[Tensor, Any, list[Tensor]]:
        if self.hooks.action_distribution_fn:
            inputs, dist_class, after = self.hooks.action_distribution_fn(self, self.model, columns, states)
            return inputs, dist_class, after
        inputs, after = self.model(columns, states)
        return inputs, self.dist_class, after

    def _loss(self, batch: SampleBatch) -> Tensor:
        loss: Any = self.hooks.loss_fn(self, self.model, self.dist_class, batch)
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise self._wrong("loss_fn", loss, "a scalar tensor with gradient")
        return loss

    def _statistics(self, batch: SampleBatch) -> dict[str, Any]:
        found = self._call("stats_fn", batch) or {}
        if not isinstance(found, Mapping):
            raise self._wrong("stats_fn", found, "a dict of statistics")
        return {name: value.item() if isinstance(value, Tensor) else value for name, value in found.items()}

    def _wrong(self, hook: str, found: Any, expected: str) -> UsageError:
        kind = f"a tensor of shape {list(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        return UsageError(f"{hook} of the policy {self.hooks.name} must return {expected}, but returned {kind}.")

    def _find_columns(self) -> None:
        """By a batch of zeros; gradients are not followed."""
        zeros = dummy_batch(self)
        count, batch = zeros.count, self.postprocess_trajectory(zeros)
        expect_after(self.hooks.name, batch, count, None)
        batch = self._as_tensors(batch, everything=True)
        with torch.random.fork_rng(devices=[]):
            self._loss(batch)
            self._statistics(batch)
        self.columns_read = frozenset(batch.accessed_keys)

    def _as_tensors(self, batch: SampleBatch, everything: bool = False) -> SampleBatch:
        names = [name for name in batch if everything or name in self.columns_read]
        return SampleBatch({name: _as_tensor(batch[name]) for name in names})


def _as_tensor(column: Any) -> Any:
    array = np.asarray(column)
    return column if array.dtype.kind in "OSU" else torch.as_tensor(array)


def _as_arrays(columns: Mapping[str, Any]) -> dict[str, Array]:
    return {
        name: column.numpy() if isinstance(column, Tensor) else np.asarray(column) for name, column in columns.items()
    }
