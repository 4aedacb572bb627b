"""Flags that only an algorithm reads, so that one of the user can leave them without effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

from sf.config.algorithms import values_of
from sf.config.learner import LearnerConfig
from sf.plugins import ALGORITHMS

OF_ALGORITHMS = (
    "gamma", "gae_lambda", "value_bootstrap", "with_vtrace", "vtrace_rho", "vtrace_c", "recompute_advantages",
    "objective", "proximal_policy", "importance_weight_max", "ppo_clip_ratio", "ppo_clip_ratio_high", "ppo_dual_clip",
    "ppo_clip_form", "ppo_clip_anneal", "ppo_clip_value", "value_loss_coeff", "exploration_loss_coeff", "kl_loss_coeff",
)  # fmt: skip


WITH_GAE = frozenset({"gamma", "gae_lambda", "value_bootstrap"})
READ: Mapping[str, frozenset[str]] = {
    "appo": frozenset(
        {
            "gamma", "value_bootstrap", "vtrace_rho", "vtrace_c", "ppo_clip_ratio", "ppo_clip_ratio_high",
            "ppo_dual_clip", "ppo_clip_form", "ppo_clip_anneal", "ppo_clip_value", "value_loss_coeff",
            "exploration_loss_coeff", "kl_loss_coeff",
        }
    ),
    "pqn": WITH_GAE,
    **dict.fromkeys(("discrete_sac", "dqn", "drqn", "sac", "td3"), frozenset({"gamma"})),
}  # fmt: skip
"""What the algorithms that come with sf read; those that are missing here read all. Users' algorithms are looked at."""


def unread_by_ours(config: LearnerConfig) -> list[str]:
    """Changed flags that an algorithm that comes with sf does not read."""
    read = READ.get(ALGORITHMS.short(config.algorithm))
    return [] if read is None else [name for name in changed_algorithm_flags(config) if name not in read]


def changed_algorithm_flags(config: LearnerConfig) -> list[str]:
    """Those that are not what they are by default, or by default with this algorithm."""
    defaults = {each.name: each.default for each in fields(config)} | dict(values_of(config.base_algorithm))
    changed = [name for name in OF_ALGORITHMS if getattr(config, name) != defaults[name]]
    return [name for name in changed if name != "gamma" or not config.normalize_rewards]  # which discounts as well


def note_on_unread_flags(config: LearnerConfig, unread: Sequence[str]) -> str:
    """A sentence about flags that the algorithm does not read; nothing where there are none."""
    if not unread:
        return ""
    flags = ", ".join(f"{name}={getattr(config, name)}" for name in unread)
    return (
        f"Warning: algorithm={config.algorithm} does not read {flags}. So {'it' if len(unread) == 1 else 'they'} will "
        "change nothing. Leave out what is meant for another algorithm."
    )
