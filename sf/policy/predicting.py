"""A policy as other libraries call theirs: `predict` of Stable-Baselines3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sf.policy.nests import Nest, check_structure, leaves, map_leaves, without_extra_keys
from sf.policy.specs import BoundedTensorSpec, TensorSpec, clip_to_spec, to_tensors
from sf.policy.steps import StepType, TimeStep
from sf.spaces import ACTION_MASK, ROOT_LEAF

if TYPE_CHECKING:
    from sf.policy.policy import Policy


def predict(
    policy: Policy, observation: Nest, state: Nest | None, episode_start: Any, deterministic: bool
) -> tuple[Nest, Nest | None]:
    """See `Policy.predict`."""
    spec = policy.time_step_spec.observation
    observation = without_extra_keys(observation, spec)
    check_structure(observation, spec, "observation")
    size = _batch_size(observation, spec)
    tensors = to_tensors(observation, spec)
    map_leaves(_expect_usable, spec, tensors)
    tensors = map_leaves(lambda leaf: leaf.to(policy.device), tensors)
    if size is None:
        tensors = map_leaves(lambda leaf: leaf.unsqueeze(0), tensors)
    num = 1 if size is None else size
    starts = np.ravel(np.asarray(state is None if episode_start is None else episode_start, dtype=bool))
    if len(starts) not in (1, num):
        raise ValueError(f"episode_start has {len(starts)} entries for {num} observations.")
    is_new = torch.from_numpy(starts.copy()).expand(num)
    step_type = torch.where(is_new, int(StepType.FIRST), int(StepType.MID)).to(torch.int32)
    time_step = TimeStep.first(tensors, num)._replace(step_type=step_type)
    time_step = map_leaves(lambda leaf: leaf.to(policy.device), time_step)
    if state is None:
        policy_state = policy.get_initial_state(num)
    else:
        policy_state = map_leaves(lambda leaf: torch.as_tensor(leaf).to(policy.device), state)
        if size is None:
            policy_state = map_leaves(lambda leaf: leaf.unsqueeze(0), policy_state)
    with torch.no_grad():
        step = (policy._greedy if deterministic else policy).action(time_step, policy_state)

    def array(leaf: Any) -> Any:
        values = leaf.cpu().numpy()
        return values[0] if size is None else values

    has_state = any(True for _ in leaves(policy.policy_state_spec))
    return map_leaves(array, step.action), map_leaves(array, step.state) if has_state else None


def with_masks(policy: Policy, observation: Nest, masks: Any) -> Nest:
    """The observation with masks under the key ``action_mask``, as the policy was trained; without them as it is.

    Raises:
        ValueError: the policy was trained without masks.
    """
    if masks is None:
        return observation
    spec = policy.time_step_spec.observation
    if not isinstance(spec, Mapping) or ACTION_MASK not in spec:
        raise ValueError("action_masks are given, but the policy was trained without masks. Leave them out.")
    parts = observation if isinstance(observation, Mapping) else {ROOT_LEAF: observation}
    return {**parts, ACTION_MASK: np.asarray(masks).astype(np.int8)}


def _expect_usable(spec: TensorSpec, leaf: Tensor) -> None:
    """Refuses what a network would answer with an action that means nothing.

    Raises:
        ValueError: a number is not finite, or an integer is none of those that the spec has.
    """
    name = spec.name or "the observation"
    if leaf.dtype.is_floating_point:
        if not leaf.isfinite().all():
            raise ValueError(f"{int((~leaf.isfinite()).sum())} of {leaf.numel()} numbers of {name} are not finite.")
    elif isinstance(spec, BoundedTensorSpec):
        outside = (clip_to_spec(leaf, spec) != leaf).nonzero().tolist()
        for place in outside[:1]:
            own = tuple(place[leaf.dim() - len(spec.shape) :])
            least, most = int(spec.minimum[own]), int(spec.maximum[own])
            where = f" at {list(own)}" if own else ""
            raise ValueError(
                f"{name} has the number {int(leaf[tuple(place)])}{where}, expected an integer from {least} to {most}."
            )


def _batch_size(observation: Nest, spec: Nest) -> int | None:
    """Number of observations; None for a single one without a batch dimension.

    Raises:
        ValueError: a leaf has neither the shape of its spec nor one dimension more.
    """

    def size_of(expected: Any, leaf: Any) -> int | None:
        shape, wanted = np.shape(leaf), tuple(expected.shape)
        if shape == wanted:
            return None
        if shape[1:] == wanted:
            return int(shape[0])
        raise ValueError(
            f"The shape of {expected.name or 'the observation'} is {list(shape)}, expected {list(wanted)}, or one "
            "dimension more in front for a batch."
        )

    sizes = set(leaves(map_leaves(size_of, spec, observation)))
    if len(sizes) > 1:
        raise ValueError(f"The parts of the observation have different batch sizes: {sorted(sizes, key=str)}.")
    size: int | None = next(iter(sizes))
    return size
