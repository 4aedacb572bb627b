"""Flags that were given and change nothing, because what would read them is not in use."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from sf.config.effects import OF_RECURRENCE, without_effect
from sf.config.given import given_flags
from sf.config.whole import Config
from sf.plugins import ALGORITHMS
from sf.spaces import EnvInfo


class Reader(NamedTuple):
    """What reads flags."""

    flags: Collection[str]
    """Names, or the beginning of names that ends with an underscore."""
    is_used: Callable[[Config], bool]
    """By a configuration, resolved."""

    def reads(self, flag: str) -> bool:
        """Whether this is one of the flags."""
        return any(flag == name or (name.endswith("_") and flag.startswith(name)) for name in self.flags)


READERS: Mapping[str, Reader] = {
    "--use_rnn=True": Reader(OF_RECURRENCE, lambda config: config.model.use_rnn),
    "--normalize_input=True": Reader(["obs_clip"], lambda config: config.model.normalize_input),
    "a replay buffer (--replay=staleness, --algorithm=dqn or sac)": Reader(
        ["replay_size"], lambda config: config.replay.replay != "none"
    ),
    "an algorithm that learns off-policy, like --algorithm=dqn or sac": Reader(
        ["replay_ratio", "learning_starts"], lambda config: config.replay.replay == "uniform"
    ),
    "--replay=staleness": Reader(
        ["staleness_weight", "max_staleness"], lambda config: config.replay.replay == "staleness"
    ),
    "--with_vtrace=True": Reader(
        ["vtrace_rho", "vtrace_c"], lambda config: config.learner.with_vtrace or not _is_default(config)
    ),
    "--objective=decoupled": Reader(
        ["proximal_policy"], lambda config: config.learner.objective == "decoupled" or not _is_default(config)
    ),
    "--objective=decoupled or truncated": Reader(
        ["importance_weight_max"], lambda config: config.learner.objective != "ppo" or not _is_default(config)
    ),
    "a learning rate that follows the policy (--lr_schedule=kl_adaptive_batch)": Reader(
        ["lr_schedule_kl_threshold", "lr_adaptive_"], lambda config: config.learner.schedule.startswith("kl_adaptive")
    ),
    "--eval_every_steps": Reader(
        ["eval_episodes", "eval_deterministic", "eval_share"],
        lambda config: config.evaluation.eval_every_steps + config.evaluation.film_every_steps > 0,
    ),
    "--self_play=True": Reader(["self_play_"], lambda config: config.self_play.self_play),
    "--with_pbt=True": Reader(["pbt_"], lambda config: config.population.with_pbt),
    "--with_wandb=True": Reader(["wandb_"], lambda config: config.run.with_wandb),
    "--stop_at_reward": Reader(["stop_at_reward_episodes"], lambda config: config.run.stop_at_reward is not None),
    "--env_frameskip": Reader(["summaries_use_frameskip"], lambda config: config.rollout.env_frameskip > 1),
    "--num_policies": Reader(["policy_mapping", "policies_to_train"], lambda config: config.run.num_policies > 1),
}
"""By what there would have to be."""


def notes_on_idle_flags(given: Config, resolved: Config, info: EnvInfo) -> list[str]:
    """A sentence for every reason why given flags change nothing.

    Args:
        given: as the user has it.
        resolved: as the run has it.
        info: spaces of the environments.
    """
    flags = {name: value for name, value in given_flags(given).items() if value is not None}
    notes, told = [], set[str]()
    for needed, reader in READERS.items():
        idle = [] if reader.is_used(resolved) else [name for name in flags if reader.reads(name)]
        told |= {*idle}
        if idle:
            notes.append(f"Warning: {_named(idle, flags)} without {needed}.")
    if idle := sorted(without_effect(given.model, info) & (flags.keys() - told)):
        notes.append(f"Warning: {_named(idle, flags)} on an environment with these observations and actions.")
    return notes


def _named(names: Collection[str], flags: Mapping[str, object]) -> str:
    listed = " and ".join(f"--{name}={flags[name]}" for name in names)
    return f"{listed} {'changes' if len(names) == 1 else 'change'} nothing"


def _is_default(config: Config) -> bool:
    """Whether the algorithm is the one whose flags these are; others may read them for something else."""
    return ALGORITHMS.short(config.learner.algorithm) == ALGORITHMS.default
