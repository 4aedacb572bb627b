"""Parts of actor-critic policies: advantages from the value of the network, clipped gradients, a KL coefficient."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sf.plans.postprocessing import Cuts, compute_advantages, discounted
from sf.plans.sample_batch import SampleBatch
from sf.plans.torch_policy import TorchPolicy, build_torch_policy
from sf.shared.arena import Array


class ValueNetwork:
    """What the network expects after the last step of a trajectory."""

    def value_after(self: Any, batch: SampleBatch) -> float:
        """In units of the reward; 0 where the task has ended. After a time limit it is that of the last observation."""
        if batch["terminateds"][-1]:
            return 0.0
        if "vf_preds" in batch.after:  # a worker computes those of many rows at once
            return float(batch.after["vf_preds"])
        states = [torch.as_tensor(batch[f"state_out_{i}"][-1:]) for i in range(len(self.get_initial_state()))]
        with torch.inference_mode():
            self.model({"obs": torch.as_tensor(batch["new_obs"][-1:])}, states)
        return float(self.model.value_function()[-1])

    def postprocess_fragment(
        self: Any, columns: Mapping[str, Array], after: Mapping[str, Array], cuts: Cuts
    ) -> dict[str, Array] | None:
        """What `add_advantages` adds to each trajectory, for all rows of a fragment at once; None with another hook.

        Rows that train nothing may hold anything. They follow the end of an episode, or are the first of their row.

        Args:
            columns: [T, rows, ...] each.
            after: extra columns for the observations after the last step, [rows, ...] each.
            cuts: steps that a time limit has ended.
        """
        cls = type(self)
        is_plain = cls.value_after is ValueNetwork.value_after
        is_plain &= cls.postprocess_trajectory is TorchPolicy.postprocess_trajectory
        if self.hooks.postprocess_fn is not add_advantages or not is_plain:
            return None
        gamma, values = self.config["gamma"], columns["vf_preds"]
        following = np.concatenate([values[1:], after["vf_preds"][None]])
        if len(cuts.times):
            following[cuts.times, cuts.rows] = cuts.columns["vf_preds"]
        errors = columns["rewards"] + gamma * following * ~columns["terminateds"] - values
        advantages = discounted(errors, gamma * self.config["lambda"] * ~columns["dones"])
        return {"advantages": advantages, "value_targets": advantages + values}


class KLCoefficient:
    """A penalty on the KL divergence that grows where the policy moves too far, and shrinks where it hardly moves.

    Settings: ``kl_coeff`` at the start, and ``kl_target`` (Schulman et al. 2017, arXiv:1707.06347, section 4).
    """

    @property
    def kl_coeff(self: Any) -> float:
        """The present coefficient."""
        coefficient: float = self.__dict__.get("_kl_coeff", self.config["kl_coeff"])
        return coefficient

    def get_state(self: Any) -> dict[str, Any]:
        """See `Policy`."""
        return {**super().get_state(), "kl_coeff": self.kl_coeff}  # type: ignore[misc]  # of the policy

    def set_state(self: Any, state: Mapping[str, Any]) -> None:
        """See `Policy`."""
        super().set_state(state)  # type: ignore[misc]
        self._kl_coeff = state["kl_coeff"]

    def update_kl(self: Any, kl: float) -> None:
        """After a batch with this mean divergence."""
        target = self.config["kl_target"]
        factor = 1.5 if kl > 2 * target else 0.5 if kl < target / 2 else 1.0
        self._kl_coeff = factor * self.kl_coeff


def build_actor_critic(
    name: str, *, loss_fn: Callable[..., Any], config: Mapping[str, Any], mixins: Sequence[type] = (), **hooks: Any
) -> Any:
    """A policy class whose batches have ``vf_preds``, ``advantages`` and ``value_targets``.

    Args:
        name: of the class.
        loss_fn: see `build_torch_policy`; what it leaves in ``policy.terms`` becomes the statistics.
        config: settings; ``gamma``, ``lambda`` and ``grad_clip`` are read.
        mixins: further ones.
        hooks: further ones of `build_torch_policy`.
    """
    return build_torch_policy(
        name, loss_fn=loss_fn, get_default_config=lambda: dict(config), mixins=[*mixins, ValueNetwork],
        stats_fn=lambda policy, batch: policy.terms,
        postprocess_fn=add_advantages, extra_action_out_fn=predicted_values, extra_grad_process_fn=clip_gradients,
        **hooks,
    )  # fmt: skip


def add_advantages(policy: Any, batch: SampleBatch, other_agents: Any = None, episode: Any = None) -> SampleBatch:
    """Those of generalized advantage estimation with ``gamma`` and ``lambda``."""
    return compute_advantages(batch, policy.value_after(batch), policy.config["gamma"], policy.config["lambda"])


def predicted_values(policy: Any, columns: Any, states: Any, model: Any, distribution: Any) -> dict[str, Tensor]:
    """The column ``vf_preds``."""
    return {"vf_preds": model.value_function()}


def clip_gradients(policy: Any, optimizer: Any, loss: Tensor) -> dict[str, float]:
    """By their norm, to ``grad_clip``."""
    norm = torch.nn.utils.clip_grad_norm_(policy.model.parameters(), policy.config["grad_clip"])
    return {"grad_norm": float(norm)}
