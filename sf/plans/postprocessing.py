"""Advantages of one trajectory (row D9), and what follows a time limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from sf.plans.sample_batch import SampleBatch
from sf.shared.arena import Array


class Cuts(NamedTuple):
    """Steps that a time limit has ended, and extra columns for the observations that they have led to."""

    times: Array
    rows: Array
    columns: Mapping[str, Array]


def compute_advantages(
    rollout: SampleBatch,
    last_r: float,
    gamma: float = 0.9,
    lambda_: float = 1.0,
    use_gae: bool = True,
    use_critic: bool = True,
) -> SampleBatch:
    """Adds the columns ``advantages`` and ``value_targets``, float32, to the steps of one agent in one episode.

    With `use_gae` it is generalized advantage estimation (Schulman et al. 2015, arXiv:1506.02438, equation 16). Without
    it, it is the discounted return, minus the value prediction where there is a critic.

    Args:
        rollout: [n] with ``rewards``, and ``vf_preds`` where there is a critic.
        last_r: value after the last row; 0 where the task has ended, and not only the time.
        gamma: discount.
        lambda_: of the estimation.
        use_gae: see above.
        use_critic: see above.
    """
    rewards = np.asarray(rollout["rewards"], np.float64)
    if use_gae:
        values = np.append(np.asarray(rollout["vf_preds"], np.float64), last_r)
        advantages = discounted(rewards + gamma * values[1:] - values[:-1], gamma * lambda_)
        targets = advantages + values[:-1]
    else:
        returns = discounted(np.append(rewards, last_r), gamma)[:-1]
        advantages = returns - rollout["vf_preds"] if use_critic else returns
        targets = returns if use_critic else np.zeros_like(returns)
    rollout["advantages"], rollout["value_targets"] = advantages.astype(np.float32), targets.astype(np.float32)
    return rollout


def discounted(terms: Array, decays: Array | float) -> Array:
    """Sums x_t = terms_t + decays_t · x_{t+1} with x_T = 0, [T] or [T, rows].

    It is the sum of `sf.learner.returns`, whose operations of torch take 1.2 to 2.5 times as long on a fragment. Of one
    trajectory a loop over numbers is faster still.
    """
    sums, later = np.empty_like(terms), 0.0
    each, factors = (x if x.ndim > 1 else x.tolist() for x in (terms, np.broadcast_to(decays, terms.shape)))
    for t in range(len(terms) - 1, -1, -1):
        sums[t] = later = each[t] + factors[t] * later
    return sums
