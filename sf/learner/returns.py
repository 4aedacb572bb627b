"""Advantages and value targets from trajectories: generalized advantage estimation and V-trace.

Time runs along the first axis. `terminated` and `truncated` belong to the step that raised them. No value follows the
first, and the value of the final observation follows the second. Neither lets later rewards through.
"""

from __future__ import annotations

import torch
from torch import Tensor


def values_after(values: Tensor, bootstrap_values: Tensor, final_values: Tensor, truncated: Tensor) -> Tensor:
    """The value of the observation that each step led to, before any reset.

    Args:
        values: [T, B] value of the observation each step started from.
        bootstrap_values: [B] value of the observation after the last step.
        final_values: [T, B] value of the final observation where truncated, anything elsewhere, nan included.
        truncated: [T, B] bool.

    Returns:
        [T, B]; terminated steps hold the value of the first observation of the next episode.
    """
    assert bootstrap_values.shape == values.shape[1:], (bootstrap_values.shape, values.shape)
    following = torch.cat([values[1:], bootstrap_values.unsqueeze(0)])
    return torch.where(truncated, final_values, following)


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Advantages by generalized advantage estimation (Schulman et al. 2015, arXiv:1506.02438, section 3).

    Args:
        rewards, values: [T, B] reward of step t, value of the observation it started from.
        next_values: [T, B] value of the observation it led to, taken before any reset.
        terminated, truncated: [T, B] bool; the first bootstraps with zero, both end the trace.
        gamma: discount.
        gae_lambda: 1 gives n-step returns minus values, 0 the temporal difference.

    Returns:
        [T, B] advantages, not normalized; add values for the returns.
    """
    _assert_same_shape(rewards, values, next_values, terminated, truncated)
    deltas = rewards + gamma * next_values.masked_fill(terminated, 0.0) - values
    decays = torch.full_like(deltas, gamma * gae_lambda).masked_fill_(terminated | truncated, 0.0)
    return _discounted_sum(deltas, decays)


def vtrace(
    behavior_log_probs: Tensor,
    target_log_probs: Tensor,
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    rho_limit: float,
    c_limit: float,
) -> tuple[Tensor, Tensor]:
    """Value targets v_s and advantages of V-trace (Espeholt et al. 2018, arXiv:1802.01561, section 4.1).

    With rho_t = min(rho_limit, pi/mu) and c_t = min(c_limit, pi/mu), and V the values under the target policy:

        v_t - V_t = rho_t (r_t + gamma V_{t+1} - V_t) + gamma c_t (v_{t+1} - V_{t+1})
        advantage_t = r_t + gamma v_{t+1} - V_t

    The paper multiplies the advantage by rho_t. That factor is left to the probability ratio in the policy loss, which
    would otherwise count it twice.

    Args:
        behavior_log_probs, target_log_probs: [T, B] of the actions, when acting (mu) and now (pi).
        rewards, values: [T, B] reward of step t, value of the observation it started from.
        next_values: [T, B] value of the observation it led to, taken before any reset.
        terminated, truncated: [T, B] bool; the first bootstraps with zero, both end the trace.
        gamma: discount.
        rho_limit, c_limit: limits of the importance weights.

    Returns:
        [T, B] value targets and [T, B] advantages, not normalized.
    """
    _assert_same_shape(behavior_log_probs, target_log_probs, rewards, values, next_values, terminated, truncated)
    ratios = torch.exp(target_log_probs - behavior_log_probs)
    next_values = next_values.masked_fill(terminated, 0.0)
    ended = terminated | truncated
    deltas = ratios.clamp(max=rho_limit) * (rewards + gamma * next_values - values)
    decays = (gamma * ratios.clamp(max=c_limit)).masked_fill_(ended, 0.0)
    corrections = _discounted_sum(deltas, decays)
    # v_{t+1} is the corrected value inside an episode, and the plain one after a cut or the last step.
    later_corrections = torch.cat([corrections[1:], torch.zeros_like(corrections[:1])]).masked_fill_(ended, 0.0)
    advantages = rewards + gamma * (next_values + later_corrections) - values
    return values + corrections, advantages


def _discounted_sum(terms: Tensor, decays: Tensor) -> Tensor:
    """x_t = terms_t + decays_t · x_{t+1} with x_T = 0, all [T, B]; overwrites `terms`."""
    following = terms[-1]
    for term, decay in zip(reversed(terms[:-1].unbind()), reversed(decays[:-1].unbind()), strict=True):
        following = term.addcmul_(decay, following)
    return terms


def _assert_same_shape(*tensors: Tensor) -> None:
    shapes = {tuple(tensor.shape) for tensor in tensors}
    assert len(shapes) == 1, f"expected tensors of one shape [T, B], found {shapes}"
    assert tensors[0].dim() == 2, f"expected [T, B], found {shapes}"
