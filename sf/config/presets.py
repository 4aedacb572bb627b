"""Known sets of hyperparameters, which `--preset` puts in the place of the defaults.

The first group follows "The 37 implementation details of PPO" (Huang et al. 2022) and the PPO of OpenAI Baselines. It
has few environments, synchronous updates, and no value after a truncation. For MuJoCo `mujoco_paper` is that, and
`mujoco` a stronger recipe. The `_fast` ones are for less wall time, with many environments and asynchronous updates.
Plain values only, so that the help can show them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace

from sf.config.algorithms import Values, values_of
from sf.config.whole import Config

PAPER: Values = {
    "async_rl": False,
    "worker_num_splits": 1,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "value_loss_coeff": 0.5,
    "max_grad_norm": 0.5,
    "adam_eps": 1e-5,
    "lr_schedule": "linear",
    "normalize_advantages": True,
    "normalize_input": False,
    "normalize_returns": False,
    "value_bootstrap": False,
    "action_bounds": "clip",
    "statistics_initial_count": 1e-4,
}
"""Common to all presets of the paper."""

VECTORS: Values = {"encoder_mlp_layers": (64, 64), "nonlinearity": "tanh", "actor_critic_share_weights": False}
IMAGES: Values = {
    "encoder_conv_architecture": "convnet_atari",
    "encoder_conv_mlp_layers": (512,),
    "nonlinearity": "relu",
    "actor_critic_share_weights": True,
    "env_frameskip": 4,
}

CLASSIC: Values = {
    **PAPER,
    **VECTORS,
    "serial_mode": True,  # four environments are stepped faster than a message travels
    "num_workers": 1,
    "num_envs_per_worker": 4,
    "rollout": 128,
    "num_batches_per_epoch": 4,
    "num_epochs": 4,
    "learning_rate": 2.5e-4,
    "ppo_clip_ratio": 0.2,
    "ppo_clip_value": 0.2,
    "exploration_loss_coeff": 0.01,
    "train_for_env_steps": 500_000,
}

ATARI: Values = {
    **PAPER,
    **IMAGES,
    "num_workers": 2,
    "num_envs_per_worker": 4,
    "worker_num_splits": 2,
    "rollout": 128,
    "num_batches_per_epoch": 4,
    "num_epochs": 4,
    "learning_rate": 2.5e-4,
    "ppo_clip_ratio": 0.1,
    "ppo_clip_value": 0.1,
    "exploration_loss_coeff": 0.01,
    "train_for_env_steps": 40_000_000,  # frames, that is 10 million steps of the agent
}

MUJOCO_PAPER: Values = {
    **PAPER,
    **VECTORS,
    "serial_mode": True,
    "num_workers": 1,
    "num_envs_per_worker": 1,
    "rollout": 2048,
    "num_batches_per_epoch": 32,
    "num_epochs": 10,
    "learning_rate": 3e-4,
    "ppo_clip_ratio": 0.2,
    "ppo_clip_value": 0.2,
    "exploration_loss_coeff": 0.0,
    "normalize_input": True,
    "obs_clip": 10.0,
    "normalize_rewards": True,
    "train_for_env_steps": 1_000_000,
}

MUJOCO: Values = {
    **PAPER,
    **VECTORS,
    "serial_mode": True,
    "num_workers": 1,
    "num_envs_per_worker": 64,
    "rollout": 32,
    "num_batches_per_epoch": 32,
    "num_epochs": 10,
    "learning_rate": 3e-4,
    "ppo_clip_ratio": 0.2,
    "ppo_clip_value": 0.0,
    "exploration_loss_coeff": 0.0,
    "initial_stddev": 0.61,
    "value_bootstrap": True,
    "recompute_advantages": True,
    "normalize_advantages": False,
    "normalize_input": True,
    "normalize_returns": True,
    "obs_clip": 10.0,
    "train_for_env_steps": 1_000_000,
}
"""Close to the recipe that Tianshou publishes for the same tasks; two to three times the scores of the article."""

CLASSIC_FAST: Values = {
    **VECTORS,
    "actor_critic_share_weights": True,
    "rollout": 32,
    "num_batches_per_epoch": 2,
    "num_epochs": 4,
    "learning_rate": 1e-3,
    "exploration_loss_coeff": 0.003,
    "gamma": 0.98,
    "gae_lambda": 0.8,
}

MUJOCO_FAST: Values = {
    **VECTORS,
    "rollout": 64,
    "num_workers": 2,
    "num_envs_per_worker": 16,
    "num_batches_per_epoch": 8,
    "num_epochs": 5,
    "learning_rate": 7e-4,
    "exploration_loss_coeff": 0.0,
}

ATARI_FAST: Values = {
    **IMAGES,  # 64 environments over all cores are the default
    "rollout": 64,
    "num_batches_per_epoch": 4,
    "num_epochs": 2,
    "learning_rate": 5e-4,
    "ppo_clip_ratio": 0.1,
    "exploration_loss_coeff": 0.01,
    "train_for_env_steps": 40_000_000,
}

IPPO: Values = {
    **VECTORS,
    "num_envs_per_worker": 16,
    "rollout": 100,
    "num_batches_per_epoch": 1,
    "num_epochs": 10,
    "learning_rate": 7e-4,
    "max_grad_norm": 10.0,
    "exploration_loss_coeff": 0.01,
    "normalize_input": True,
    "normalize_returns": True,
    "value_bootstrap": False,  # the 25 steps of an episode are the whole task
}
"""Independent learners with shared parameters, in the particle worlds of Yu et al. (2022), tables 11 and 13."""

MAPPO: Values = {**IPPO, "policy_keys": ("obs",), "critic_keys": ("obs", "state", "agent")}
"""The same with a critic that reads the state, of environments in `central/`."""

ENVPOOL: Values = {"env_kwargs": '{"episodic_life": true, "reward_clip": true}'}
"""Rows C16 and C19 of the details, which EnvPool leaves out by default."""

PRESETS: Mapping[str, Values] = {
    "none": {},
    "classic": CLASSIC,
    "classic_fast": CLASSIC_FAST,
    "atari": ATARI,
    "atari_lstm": {
        **ATARI,
        "env_kwargs": '{"frame_stack": 1}',
        "use_rnn": True,
        "rnn_type": "lstm",
        "rnn_size": 128,
    },
    "atari_fast": ATARI_FAST,
    "ippo": IPPO,
    "mappo": MAPPO,
    "mujoco": MUJOCO,
    "mujoco_paper": MUJOCO_PAPER,
    "mujoco_fast": MUJOCO_FAST,
    "microrts": {
        **ATARI,
        "encoder_conv_architecture": "convnet_microrts",
        "encoder_conv_mlp_layers": (128,),
        "scale_pixels": False,  # its planes are zeros and ones
        "env_frameskip": 1,
        "train_for_env_steps": 2_000_000,
    },
    "envpool_atari": {**ATARI, **ENVPOOL},
    "envpool_pong": {
        **ATARI,
        **ENVPOOL,
        "num_workers": 1,  # one group of 16 is one pool
        "num_envs_per_worker": 16,
        "worker_num_splits": 1,
        "num_batches_per_epoch": 8,
        "num_epochs": 3,
        "ppo_clip_ratio": 0.2,
        "ppo_clip_value": 0.2,
        "stop_at_reward": 17.0,
        "stop_at_reward_episodes": 20,
    },
}

CONTINUOUS_CONTROL = ("Pendulum", "MountainCarContinuous", "BipedalWalker")


def with_preset(name: str, config: Config, algorithm: str = "ppo") -> Config:
    """The configuration with the values of a preset, and of an algorithm over them; `config` holds the defaults."""
    values = {**PRESETS[name], **values_of(algorithm)}
    parts = {}
    for role in fields(Config):
        part = getattr(config, role.name)
        own = {field.name: values.pop(field.name) for field in fields(part) if field.name in values}
        parts[role.name] = replace(part, **own)
    assert not values, f"preset {name} sets what is no flag: {values}"
    return Config(**parts)


def with_env_kwargs(config: Config) -> Config:
    """The configuration with what its preset says of `env_kwargs` wherever the user has said nothing else."""
    run = config.run
    preset = json.loads(PRESETS[preset_for(run.env) if run.preset == "auto" else run.preset].get("env_kwargs", "{}"))
    try:
        merged = json.dumps(preset | json.loads(run.env_kwargs)) if preset else run.env_kwargs
    except (ValueError, TypeError):
        return config  # no JSON object: refused with all other problems
    return replace(config, run=replace(run, env_kwargs=merged))


def preset_for(env_id: str) -> str:
    """The preset for a family of environments; ``none`` where there is none.

    Games without our wrappers, such as ALE/Pong-v5, are not covered.
    """
    import gymnasium

    name = env_id.rpartition(":")[2]
    if name == "envpool/Pong-v5":
        return "envpool_pong"
    if name.startswith("atari/"):
        return "atari"
    name, is_pool = name.removeprefix("envpool/"), name.startswith("envpool/")
    spec = gymnasium.registry.get(name)
    if is_pool and spec is None and name.endswith("-v5"):  # of EnvPool's own ids all those of Atari, and no others
        return "envpool_atari"
    module = spec.entry_point if spec is not None and isinstance(spec.entry_point, str) else ""
    if name.startswith(("mujoco/", *CONTINUOUS_CONTROL)) or module.startswith("gymnasium.envs.mujoco"):
        return "mujoco"
    return "classic" if module.startswith(("gymnasium.envs.classic_control", "gymnasium.envs.box2d")) else "none"
