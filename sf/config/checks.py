"""One function that finds everything wrong with a configuration, so that the user can correct it in one go."""

from __future__ import annotations

import json
import math
import re
from dataclasses import fields
from typing import TYPE_CHECKING

from sf.config.action_checks import action_problems
from sf.config.fields import numbers, typed_fields
from sf.config.frozen_policies import frozen_problems
from sf.config.lag_checks import lag_problems
from sf.config.observation_groups import group_problems, key_problems
from sf.config.off_policy import off_policy_problems
from sf.config.pbt_space import env_arguments, pbt_problems
from sf.config.replaying import replay_problems
from sf.config.self_play import agents_problems, self_play_problems
from sf.config.size_checks import recurrent_problems, round_problems, share_problems
from sf.config.sizes import (
    samples_per_iteration,
)
from sf.config.whole import Config
from sf.errors import ConfigError
from sf.machine.processor import has_bfloat16
from sf.plugins import ALGORITHMS, ENCODERS
from sf.spaces.images import image_layout

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from sf.spaces import EnvInfo

BATCHES = re.compile("[1-9][0-9]{0,5}b")
EXPERIMENT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def check(config: Config, info: EnvInfo | None = None) -> None:
    """Refuse values that cannot work.

    Before the environment is known (`info` is None) sizes that depend on it are left out, and fields may still be None.
    With `info` the configuration must be resolved.

    Raises:
        ConfigError: with all problems.
        EnvError: the convolutions cannot read an image.
    """
    problems = [problem for role in fields(config) for problem in range_problems(getattr(config, role.name))]
    problems += (
        _names(config)
        + _combinations(config)
        + _films(config)
        + _acting(config, None)
        + off_policy_problems(config)
        + group_problems(config)
        + self_play_problems(config)
        + pbt_problems(config)
    )
    if not problems and info is not None:
        problems = round_problems(config, info) + share_problems(config) + recurrent_problems(config)
        problems += replay_problems(config, info) + lag_problems(config, info) + action_problems(config, info)
        problems += _lasting_noise(config, info)
        problems += _env_arguments(config, info) + _acting(config, info) + key_problems(config.model, info)
        problems += agents_problems(config, info.num_agents)
        _images(config, info)
    if problems:
        raise ConfigError(problems)


def range_problems(role: DataclassInstance) -> list[str]:
    """A sentence for every number that is not finite or outside the range that its type gives it."""
    problems = []
    for name, hint in typed_fields(type(role)).items():
        for number, allowed in numbers(hint, getattr(role, name)):
            if not math.isfinite(number):
                problems.append(f"{name}={number} must be a finite number.")
            elif allowed is not None and number not in allowed:
                problems.append(f"{name}={_shown(getattr(role, name))} must be {allowed}.")
    return problems


def env_kwargs_problems(text: str) -> list[str]:
    """A sentence if the arguments of the environment are no JSON object."""
    return json_problems("env_kwargs", text, '{"continuous": true}')


def _plugin_settings(config: Config) -> list[str]:
    """Settings that are no JSON object, or for what is no plugin."""
    problems = []
    used = {"encoder": (config.model.encoder, config.model.encoder_kwargs, ENCODERS)}
    used |= {"algorithm": (config.learner.algorithm, config.learner.algorithm_kwargs, ALGORITHMS)}
    for kind, (name, text, plugins) in used.items():
        wrong = json_problems(f"{kind}_kwargs", text, '{"scale": 0.5}')
        if not wrong and name == plugins.default and json.loads(text):
            wrong = [
                f"{kind}_kwargs={text} are settings of a plugin, and {kind}={name} is none. Name yours with "
                f"--{kind}=module:Name, or leave --{kind}_kwargs out."
            ]
        problems += wrong
    return problems + _base_problems(config.learner.algorithm, config.learner.algorithm_defaults)


def _base_problems(algorithm: str, base: str) -> list[str]:
    """A sentence if the algorithm that gives defaults is none of sf, or another one of sf learns."""
    known = sorted(ALGORITHMS.built_in)
    if base and base not in known:
        return [f"algorithm_defaults={base} must be one of {', '.join(known)}, or be left out."]
    if base and base != ALGORITHMS.short(algorithm) and ALGORITHMS.is_ours(ALGORITHMS.short(algorithm)):
        return [
            f"algorithm_defaults={base} is for an algorithm of yours, and algorithm={algorithm} has its own defaults. "
            "Leave it out."
        ]
    return []


def json_problems(name: str, text: str, example: str) -> list[str]:
    """A sentence if keyword arguments are no JSON object."""
    why = ""
    try:
        if isinstance(json.loads(text), dict):
            return []
    except (json.JSONDecodeError, RecursionError) as error:
        why = f" ({error})"
    return [
        f"{name}={text!r} is not a JSON object{why}. Write it like --{name}='{example}', with double quotes inside."
    ]


def _shown(value: object) -> str:
    return " ".join(str(element) for element in value) if isinstance(value, tuple) else str(value)


def _names(config: Config) -> list[str]:
    """Texts of the run that name something, and their form."""
    run, problems = config.run, []
    if not run.env.strip() or "\0" in run.env:
        problems.append(f"env={run.env!r} must be the id of an environment, for example --env=CartPole-v1.")
    if not EXPERIMENT_NAME.fullmatch(run.experiment):
        problems.append(
            f"experiment={run.experiment!r} cannot name a directory: use 1 to 100 of the characters A-Z a-z 0-9 _ - . "
            "and begin with a letter, a digit or _."
        )
    if not run.train_dir or "\0" in run.train_dir:
        problems.append(f"train_dir={run.train_dir!r} must be a path, for example --train_dir=train_dir.")
    if not re.fullmatch("reward|env/.+", run.score):
        problems.append(f"score={run.score} must be reward, or env/NAME for a number of the environment's own.")
    bound = config.learner.bound_policy_lag
    if isinstance(bound, str) and not BATCHES.fullmatch(bound):
        problems.append(
            f"bound_policy_lag={bound} must be an integer, which counts optimizer steps, or a number of batches like "
            "2b."
        )
    return problems + env_kwargs_problems(run.env_kwargs) + _plugin_settings(config) + frozen_problems(config)


def _films(config: Config) -> list[str]:
    every = config.evaluation.film_every_steps
    if not every or config.evaluation.eval_every_steps:
        return []
    return [
        f"film_every_steps={every} needs the process of the evaluations, which makes the films. Add "
        f"--eval_every_steps={every}."
    ]


def _combinations(config: Config) -> list[str]:
    rollout, learner, problems = config.rollout, config.learner, []
    envs, splits = rollout.num_envs_per_worker, rollout.worker_num_splits
    if envs is not None and splits is not None and splits > 0 and envs % splits:
        near = " or ".join(str(n) for n in (envs // splits * splits, (envs // splits + 1) * splits) if n)
        problems.append(
            f"num_envs_per_worker={envs} cannot form worker_num_splits={splits} equal groups. A worker steps its "
            f"groups in turn, so they need the same size: use --num_envs_per_worker={near}, or --worker_num_splits=1."
        )
    are_given = learner.batch_size is not None and learner.num_batches_per_epoch is not None
    if are_given and (samples := samples_per_iteration(config)) % max(1, rollout.steps):
        problems.append(
            f"batch_size={learner.batch_size} x num_batches_per_epoch={learner.num_batches_per_epoch} = {samples} "
            f"transitions are no whole number of trajectories of rollout={rollout.steps} steps. Use a --batch_size "
            f"that is a multiple of {rollout.steps}."
        )
    workers, inference = rollout.num_workers, config.inference.policy_workers_per_policy
    if workers is not None and inference is not None and inference > workers:
        problems.append(
            f"policy_workers_per_policy={inference} with num_workers={workers}: each rollout worker is served by one "
            f"inference worker of a policy, so some would serve none. Use --policy_workers_per_policy={workers} or "
            f"less, or --num_workers={inference} or more."
        )
    if config.run.serial_mode and learner.num_learners > 1:
        problems.append(
            f"num_learners={learner.num_learners} with serial_mode=True: learners of a policy wait for each other, so "
            "each needs a process of its own. Use --serial_mode=False, or --num_learners=1."
        )
    if config.run.bf16 and config.run.device == "cpu" and not has_bfloat16():
        problems.append(
            "bf16=True with device=cpu: this processor has no instructions for bfloat16 (avx512_bf16 or amx_bf16), so "
            "that it would take longer. Use --device=gpu, or --bf16=False."
        )
    if config.run.bf16 and learner.strict:
        problems.append(
            "strict=True with bf16=True: in bfloat16 the ratios of an unchanged policy are off by more than strict "
            "allows. Use --strict=False, or --bf16=False."
        )
    return [*problems, *_combinations_of_learning(config)]


def _combinations_of_learning(config: Config) -> list[str]:
    learner, problems = config.learner, []
    if learner.lr_adaptive_min > learner.largest_rate:
        problems.append(
            f"lr_adaptive_min={learner.lr_adaptive_min} is above lr_adaptive_max={learner.largest_rate:g}. "
            "Exchange them."
        )
    schedules = {
        "lr_schedule=linear": learner.schedule == "linear",
        "ppo_clip_anneal=True": learner.ppo_clip_anneal,
    }
    is_endless = config.run.frame_limit == config.run.time_limit_s == math.inf
    if is_endless and config.model.exploration == "epsilon_greedy" and ALGORITHMS.is_ours(learner.algorithm):
        problems.append(
            f"algorithm={learner.algorithm}: its random actions become fewer in the course of a run, which needs an "
            "end. Give --train_for_env_steps or --train_for_seconds."
        )
    elif is_endless and any(schedules.values()):
        names = " and ".join(name for name, is_set in schedules.items() if is_set)
        problems.append(
            f"{names}: what shrinks in the course of a run needs its end. Give --train_for_env_steps or "
            "--train_for_seconds, or leave the schedule out."
        )
    if 0 < learner.ppo_dual_clip <= 1:
        problems.append(
            f"ppo_dual_clip={learner.ppo_dual_clip} would limit the loss of unchanged actions. Use more than 1, "
            "such as --ppo_dual_clip=3, or 0 for no limit."
        )
    if learner.with_vtrace and learner.recompute_advantages:
        problems.append(
            "recompute_advantages=True with with_vtrace=True: V-trace computes advantages anew before each epoch by "
            "itself. Leave one of them out."
        )
    if learner.with_vtrace and learner.objective != "ppo":
        problems.append(
            f"objective={learner.objective} with with_vtrace=True would correct for stale data twice. Leave one of "
            "them out."
        )
    return problems


def _env_arguments(config: Config, info: EnvInfo) -> list[str]:
    if info.num_agents == 1 or not (names := env_arguments(config)):
        return []
    return [
        f"pbt_space names env.{names[0]}, and {info.env_id} has {info.num_agents} agents, whose policies would want "
        "different values. Leave it out."
    ]


def _lasting_noise(config: Config, info: EnvInfo) -> list[str]:
    if not config.inference.noise_correlation or not info.action.choices:
        return []
    return [
        f"noise_correlation={config.inference.noise_correlation:g} needs actions that are numbers, a Box: a choice has "
        f"no noise that could last; found {info.action}. Leave it out."
    ]


def _acting(config: Config, info: EnvInfo | None) -> list[str]:
    """Rollout workers have no torch, so they act with small networks only."""
    if not config.workers_act:
        return []
    from sf.config.written_out import missing_layers, missing_spaces

    if info is None:
        missing = missing_layers(config.model) + (["bf16=True"] if config.run.bf16 else [])
    else:
        missing = missing_spaces(info, config.model)
    if not missing:
        return []
    return [
        "policy_workers_per_policy=0 has every rollout worker act for itself, without torch. That is not possible with "
        f"{', '.join(missing)}, only with one vector as the observation, plain layers, and one Discrete or one Box as "
        "the action. Use --policy_workers_per_policy=1."
    ]


def _images(config: Config, info: EnvInfo) -> None:
    """The convolutions decide which leaves are images."""
    for leaf in info.observations.values():
        image_layout(leaf, config.model.encoder_conv_architecture)
