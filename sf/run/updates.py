"""Chooses how much to learn from each frame (`--updates=auto`), from what a frame costs and what a step of Adam costs.

An environment that is slow leaves the learner time for many optimizer steps on each batch, which take fewer frames to
the same score. One that is fast would wait for them. Runs that repeat bit for bit do not look at a clock.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import NamedTuple

from sf.config import Config, LearnerConfig, ModelConfig
from sf.config.observation_groups import has_only_our_encoders
from sf.config.updates import UPDATES, Updates, UpdatesName
from sf.config.written_out import WIDEST_MEMORY, is_written_out
from sf.envs.step_time import StepTime, in_us
from sf.machine.compiled import has_compiler
from sf.plugins import ALGORITHMS
from sf.spaces import ACTION_MASK, EnvInfo
from sf.spaces.images import image_layout

ACTING_S = 4e-6
"""Seconds for the action of one frame, in a batch of 32 or more."""
STEP_S, WRITTEN_OUT_STEP_S, NATIVE_STEP_S = 7e-4, 4e-4, 1.5e-4
"""Seconds of an optimizer step on next to nothing: through autograd, with a gradient that is written out, and in C."""
PRODUCTS_PER_S = 2.5e10
"""Multiplications of forward and backward passes on one core."""
OTHER_S, OTHER_ACCELERATED_S = 1e-4, 1e-5
"""Seconds per transition for pictures, memories and encoders of the user's, on the CPU and an accelerator. The first is
a guess. With the second, Pong takes 25.5 and 124 us per frame for `fast` and `balanced`; an H200 took 24 and 129."""
LONG_ROLLOUT = 128
"""Steps of a trajectory where few long ones learn more from a frame than many short ones."""
LEAST_TRAJECTORIES = 2
"""In a minibatch of a recurrent policy: the steps of one are too much alike."""
MANY_COPIES = 256
"""Copies of a simulator in tensors whose step takes hardly longer than that of fewer."""


class Choice(NamedTuple):
    """What was chosen, and why."""

    name: UpdatesName
    reason: str


def choose_updates(config: Config, info: EnvInfo, cores: int, step: StepTime | None) -> Choice:
    """The value for `updates`, and a reason as part of a sentence.

    Args:
        config: with what the user has left open.
        info: spaces of the environments.
        cores: that the run may use.
        step: how long the environment takes for a step; None where it was not measured.
    """
    learner = config.learner
    if learner.updates != "auto":
        return Choice(learner.updates, f"--updates={learner.updates}")
    limits = {
        "bound_policy_lag": isinstance(learner.bound_policy_lag, int),
        "target_policy_lag": learner.target_policy_lag is not None,
        "max_staleness": config.replay.replay == "staleness" and config.replay.max_staleness >= 0,
    }
    if given := [name for name, is_given in limits.items() if is_given]:
        return Choice("fast", f"--{given[0]} counts optimizer steps")
    if config.rollout.vectorization == "tensors" and (config.rollout.num_envs_per_worker or 0) >= MANY_COPIES:
        return Choice("fast", "many copies make more frames in the time that more optimizer steps would take")
    if _is_quick_memory(info, config) and learner.num_epochs is None:
        return Choice("efficient", "a recurrent policy learns more from many optimizer steps, in the same time as well")
    if step is None:
        return _without_clock(info, config)
    sampling_s = step.wall_s / min(cores * step.waiting, 32) + ACTING_S

    def wall_s(learning_s: float) -> float:
        """Wall time of a frame: sampling and learning go on at once, as far as there are cores."""
        return max(sampling_s, learning_s, (step.cpu_s + ACTING_S + learning_s) / cores)

    chosen, *more = UPDATES
    for name in more:
        now_s, then_s = (learning_s_per_frame(UPDATES[each], info, config) for each in (chosen, name))
        if wall_s(then_s) > UPDATES[name].worth * wall_s(now_s):
            break
        chosen = name
    learning_s = learning_s_per_frame(UPDATES[chosen], info, config)
    return Choice(chosen, f"a frame takes {in_us(sampling_s)} us, and learning from it about {in_us(learning_s)}")


def _without_clock(info: EnvInfo, config: Config) -> Choice:
    """By kind: what most networks of a kind cost."""
    if _is_plain(info, config.model):
        return Choice("efficient", "a run that repeats does not look at the clock")
    what = "pictures"
    if not has_only_our_encoders(config.model):
        what = "encoders of your own"
    elif _reads_vectors(info, config.model):
        what = "recurrent layers"
    return Choice("fast", f"a run that repeats does not look at the clock, and {what} may take long to learn")


def with_updates(config: Config, info: EnvInfo, choice: Choice) -> Config:
    """The configuration in which everything but the sizes follows from the choice."""
    learner = replace(config.learner, updates=choice.name)
    bonus = learner.entropy_coeff if info.action.choices else learner.exploration_loss_coeff or 0.0
    schedule = learner.lr_schedule or ("kl_adaptive_batch" if _may_adapt_rate(config) else "constant")
    rate = _first_rate(replace(config, learner=learner), info)
    learner = replace(learner, learning_rate=rate, lr_schedule=schedule, exploration_loss_coeff=bonus)
    learner = replace(learner, lr_schedule_kl_threshold=learner.kl_threshold, lr_adaptive_max=learner.largest_rate)
    model = config.model
    if model.actor_critic_share_weights is None:
        model = replace(model, actor_critic_share_weights=not _has_two_networks(config, info))
    return replace(config, learner=learner, model=model)


def _first_rate(config: Config, info: EnvInfo) -> float:
    """The learning rate of the first batches.

    Where recurrent policies have larger minibatches than the recipe, and no size is the user's, it grows with the root
    of their size.
    """
    learner, rollout = config.learner, config.rollout
    given = (learner.learning_rate, learner.num_batches_per_epoch, rollout.rollout, rollout.num_envs_per_worker)
    is_larger = config.model.use_rnn and profits_from_long_trajectories(config, info)
    if not is_larger or any(size is not None for size in given):
        return learner.initial_rate
    return learner.initial_rate * math.sqrt(LEAST_TRAJECTORIES * LONG_ROLLOUT / learner.recipe.minibatch)


def _may_adapt_rate(config: Config) -> bool:
    """Whether the learning rate may follow the change of the policy where no flag says how it changes.

    A rate of the user's own stays as it is, or is changed by a population. So does one with epochs of the user's own:
    the first step on new data, the only one of A2C, sees no policy that has moved. Algorithms of users have what PPO
    has, beside which they are measured; those of sf have their own.
    """
    learner, name = config.learner, ALGORITHMS.short(config.learner.algorithm)
    has_own = {learner.learning_rate, learner.num_epochs} != {None} or config.population.with_pbt
    is_like_ppo = name == ALGORITHMS.default or name not in ALGORITHMS.built_in
    return not has_own and is_like_ppo and config.replay.replay == "none"


def _has_two_networks(config: Config, info: EnvInfo) -> bool:
    """Whether actions and values get networks of their own where nothing says so."""
    return config.model.has_own_critic or _profits_from_two_networks(config, info)


def _profits_from_two_networks(config: Config, info: EnvInfo) -> bool:
    """Whether losses of values would bend the features that numbers are chosen from; a measured rule.

    It does not look at the clock, because a resumed run must have the same network.
    """
    is_on_policy = config.replay.replay != "uniform"
    return is_on_policy and not info.action.choices and _is_plain(info, config.model)


def profits_from_long_trajectories(config: Config, info: EnvInfo) -> bool:
    """Whether fewer environments with longer trajectories learn more from a frame; a measured rule.

    Many optimizer steps on each batch need good advantages, and those of short trajectories rest on values. With epochs
    of the user's own, which may be few, it was not measured. A recurrent policy learns from them what to remember; its
    minibatches are whole trajectories, for which a given size may be too small.
    """
    is_serial, learner = config.run.serial_mode or not config.run.async_rl, config.learner
    if config.replay.replay == "uniform" or learner.num_epochs is not None:
        return False
    if _is_quick_memory(info, config):
        return learner.updates != "fast" and {learner.batch_size, config.rollout.num_envs_per_worker} == {None}
    return is_serial and learner.updates == "efficient" and _is_plain(info, config.model)


def note_on_updates(given: Config, resolved: Config, choice: Choice) -> str:
    """A sentence with the choice and its reason, or nothing where flags leave it nothing to say."""
    if None not in (given.learner.num_epochs, given.learner.learning_rate):
        return ""
    learner = resolved.learner
    rate = f"a learning rate of {learner.initial_rate:g}"
    if learner.schedule.startswith("kl_adaptive"):
        rate += " at first, which follows how far the policy moves"
    return (
        f"Each batch is learned from in {learner.epochs} epochs of {learner.num_minibatches} minibatches of "
        f"{learner.batch_size}, at {rate} (--updates={choice.name}): {choice.reason}."
    )


def epochs_for(learner: LearnerConfig) -> int:
    """Epochs with so many minibatches: together no more optimizer steps than the recipe has, and no fewer than two."""
    recipe = learner.recipe
    return max(min(2, recipe.epochs), min(recipe.epochs, recipe.most_steps // learner.num_minibatches))


def learning_s_per_frame(updates: Updates, info: EnvInfo, config: Config) -> float:
    """Seconds that a learner takes for its share of optimizer steps; an estimate from the size of the network."""
    model, rows = config.model, updates.minibatch
    begin_s = STEP_S
    if is_written_out(info, model) and config.run.device == "cpu":
        begin_s = NATIVE_STEP_S if config.learner.native_update else WRITTEN_OUT_STEP_S
    if _is_plain(info, model):
        step_s = begin_s + 3 * rows * _num_weights(info, model) / PRODUCTS_PER_S
    else:
        step_s = begin_s + rows * (OTHER_S if config.run.device == "cpu" else OTHER_ACCELERATED_S)
    return updates.epochs * step_s / rows


def _is_plain(info: EnvInfo, model: ModelConfig) -> bool:
    """Whether the network is layers over vectors."""
    return _reads_vectors(info, model) and not model.use_rnn


def _is_quick_memory(info: EnvInfo, config: Config) -> bool:
    """Whether it is recurrent layers over vectors that go through trajectories in C."""
    model = config.model
    is_quick = model.use_rnn and model.rnn_size <= WIDEST_MEMORY and _reads_vectors(info, model)
    is_native = config.learner.native_update and not config.learner.torch_compile and config.run.device == "cpu"
    return is_quick and is_native and has_compiler()


def _reads_vectors(info: EnvInfo, model: ModelConfig) -> bool:
    images = any(image_layout(leaf, model.encoder_conv_architecture) for leaf in info.observations.values())
    return has_only_our_encoders(model) and not images


def _num_weights(info: EnvInfo, model: ModelConfig) -> int:
    """Weights of a network of plain layers, without its heads."""
    inputs = sum(leaf.size for name, leaf in info.observations.items() if name != ACTION_MASK)
    sizes = [inputs, *model.encoder_mlp_layers]
    towers = 1 if model.shares_weights else 2
    return towers * sum(math.prod(pair) for pair in itertools.pairwise(sizes))
