"""A buffer that can be filled and drawn from: what is refused, and how much memory it takes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sf.config.sizes import (
    least_lag_bound,
    rows_per_group,
    samples_per_iteration,
    trajectories_per_dataset,
)
from sf.config.whole import Config
from sf.machine.memory import available_memory

if TYPE_CHECKING:
    from sf.spaces import EnvInfo


def replay_problems(config: Config, info: EnvInfo) -> list[str]:
    """A sentence for every reason why a buffer cannot work; `config` is resolved."""
    if config.replay.replay == "none":
        return []
    if config.replay.replay == "uniform":
        return _size_problems(config) + _memory(config, info)
    return _size_problems(config) + _staleness_problems(config, info) + _contradictions(config) + _memory(config, info)


def _size_problems(config: Config) -> list[str]:
    learner, replay = config.learner, config.replay
    samples = samples_per_iteration(config) * config.run.num_policies
    if replay.replay_size >= samples:
        return []
    return [
        f"replay_size={replay.replay_size} is less than one batch of {samples} transitions (batch_size="
        f"{learner.batch_size} x num_batches_per_epoch={learner.num_minibatches}). Use --replay_size={samples} or "
        "more."
    ]


def _staleness_problems(config: Config, info: EnvInfo) -> list[str]:
    learner, limit = config.learner, config.replay.max_staleness
    steps, rows = learner.steps_per_batch, rows_per_group(config, info.num_agents)
    least = least_lag_bound(steps, trajectories_per_dataset(config), rows)
    if limit < 0 or limit >= least:
        return []
    wide = f" {rows} trajectories of a group share batches, so some wait for the next one." if least >= steps else ""
    return [
        f"max_staleness={limit} leaves nothing to draw: a batch is trained on for num_epochs={learner.epochs} x "
        f"num_batches_per_epoch={learner.num_minibatches} = {steps} optimizer steps. Before the last one its freshest "
        f"transitions are {steps - 1} steps old.{wide} Use --max_staleness={least} or more, or fewer epochs or "
        "minibatches."
    ]


def _contradictions(config: Config) -> list[str]:
    learner, replay, problems = config.learner, config.replay, []
    meaningless = {
        "with_vtrace=True": learner.with_vtrace,
        "recompute_advantages=True": learner.recompute_advantages,
        f"target_kl={learner.target_kl:g}": learner.target_kl > 0,
        f"lr_schedule={learner.schedule}": learner.schedule.startswith("kl_adaptive"),
        "objective=decoupled with proximal_policy=evaluated": learner.objective == "decoupled"
        and learner.proximal_policy == "evaluated",
    }
    for name in (name for name, is_set in meaningless.items() if is_set):
        problems.append(
            f"{name} with replay={replay.replay}: it compares the policy with the newest batch, and minibatches come "
            "from older ones as well. Leave it out, or use --replay=none."
        )
    if learner.num_learners > 1:
        problems.append(
            f"num_learners={learner.num_learners} with replay={replay.replay}: a buffer belongs to one learner. Use "
            "--num_learners=1."
        )
    return problems


def bytes_of_replayed_transition(config: Config, info: EnvInfo) -> float:
    """Memory of one transition in the buffer, without the columns that an algorithm of the user adds.

    A recurrent policy keeps whole trajectories, each with the recurrent state of its beginning.
    """
    import numpy as np  # which is there since there is `info`

    from sf.shared.slot_fields import OBSERVATIONS, slot_fields

    fields = slot_fields(info, config.model.memory_size)
    sizes = {name: math.prod(field.shape) * np.dtype(field.dtype).itemsize for name, field in fields.items()}
    observation = sum(size for name, size in sizes.items() if name.startswith(OBSERVATIONS))
    value, version = sizes["values"], sizes["policy_version"]
    step = observation + sizes["actions"] + sizes["log_probs"] + 3 * value + version  # advantage and return are values
    if config.learner.objective == "decoupled":
        step += version  # again, for the interpolation
    if not config.model.memory_size:
        return step
    flags = sizes["terminated"] + sizes["truncated"]  # whether an episode begins, and whether the step trains
    return step + flags + (sizes["initial_memory"] + version) / config.rollout.steps


def _memory(config: Config, info: EnvInfo) -> list[str]:
    replay_size, policies = config.replay.replay_size, config.run.num_policies
    each = bytes_of_replayed_transition(config, info) * policies
    available, owner = available_memory()
    if replay_size * each <= available:
        return []
    return [
        f"replay_size={replay_size} transitions take {replay_size * each / 2**30:.3g} GiB, {each:.0f} bytes each, but "
        f"the {owner} has {available / 2**30:.3g} GiB left. Use --replay_size={int(available * 3 // 4 / each)} or less."
    ]
