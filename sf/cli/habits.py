"""Habits of other libraries: taken where it is clear what is meant, answered with our name where it is not.

Booleans without a value or as ``true``, whole numbers as 1e6, ``--device=cuda``, and the name of a run without a flag
are rewritten as flags of ours, before anything looks at them. For flags of Stable-Baselines3, CleanRL and others there
is a table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any, get_origin

from sf.config.fields import alternatives, strip
from sf.errors import UsageError

POLICY_FILE = "policy.json"
"""In each directory that `PolicySaver` has written."""
SHORT_FLAG = re.compile("-[A-Za-z]")  # no number
ACCELERATORS = "/dev/nvidia0", "/dev/kfd"
"""Files that are there where the kernel knows an accelerator."""
VALUES: Mapping[str, Mapping[str, str]] = {"device": {"cuda": "gpu", "cuda:0": "gpu"}}
"""Flag to words of others and ours."""

OURS: Mapping[str, str] = {
    # Stable-Baselines3 and its zoo
    "total_timesteps": "train_for_env_steps", "n_timesteps": "train_for_env_steps",
    "timesteps": "train_for_env_steps", "n_envs": "num_envs_per_worker", "n_steps": "rollout",
    "n_epochs": "num_epochs", "ent_coef": "exploration_loss_coeff", "vf_coef": "value_loss_coeff",
    "clip_range": "ppo_clip_ratio", "clip_range_vf": "ppo_clip_value", "normalize_advantage": "normalize_advantages",
    "use_sde": "noise_correlation", "eval_freq": "eval_every_steps", "n_eval_episodes": "eval_episodes",
    "save_freq": "save_every_sec", "sde_sample_freq": "noise_correlation", "action_noise": "noise_correlation",
    "log_std_init": "initial_stddev",
    "policy": "encoder", "policy_kwargs": "encoder_mlp_layers", "lstm_hidden_size": "rnn_size",
    "n_lstm_layers": "rnn_num_layers", "optimizer": "",
    "log_folder": "train_dir", "tensorboard_log": "train_dir", "track": "with_wandb",
    # CleanRL
    "env_id": "env", "num_envs": "num_envs_per_worker", "num_steps": "rollout", "update_epochs": "num_epochs",
    "num_minibatches": "num_batches_per_epoch", "clip_coef": "ppo_clip_ratio", "clip_vloss": "ppo_clip_value",
    "anneal_lr": "lr_schedule", "norm_adv": "normalize_advantages", "exp_name": "experiment", "cuda": "device",
    "capture_video": "film_every_steps", "wandb_project_name": "wandb_project", "wandb_entity": "wandb_user",
    "torch_deterministic": "",
    # Sample Factory
    "algo": "algorithm", "batched_sampling": "vectorization", "decorrelate_envs_on_one_worker": "",
    "kl_coeff": "kl_loss_coeff", "load_checkpoint_kind": "", "recurrence": "rollout",
    "decorrelate_experience_on_one_worker": "",
    # RLlib and others
    "lr": "learning_rate", "lambda": "gae_lambda", "lam": "gae_lambda", "entropy_coeff": "exploration_loss_coeff",
    "entropy_coef": "exploration_loss_coeff", "num_sgd_iter": "num_epochs", "sgd_minibatch_size": "batch_size",
    "minibatch_size": "batch_size", "num_env_runners": "num_workers", "horizon": "rollout",
    "max_steps": "train_for_env_steps", "num_iterations": "train_for_env_steps", "log_dir": "train_dir",
    "logdir": "train_dir", "output_dir": "train_dir", "run_name": "experiment", "name": "experiment",
    "environment": "env", "env_name": "env", "gym_id": "env", "task": "env", "total_steps": "train_for_env_steps",
    "total_env_steps": "train_for_env_steps", "total_frames": "train_for_env_steps",
    "timesteps_total": "train_for_env_steps", "resume": "restart_behavior", "gpu": "device", "num_cpu": "num_workers",
    "num_cpus": "num_workers", "frame_skip": "env_frameskip", "norm_obs": "normalize_input",
    "norm_reward": "normalize_rewards", "log_interval": "experiment_summaries_interval", "seed_everything": "seed",
    "verbose": "", "progress_bar": "", "ppo_clip": "ppo_clip_ratio", "policy_class": "encoder", "save_model": "",
    "net_arch": "encoder_mlp_layers", "hidden_size": "encoder_mlp_layers", "hidden_sizes": "encoder_mlp_layers",
    # learning from a buffer
    "buffer_size": "replay_size", "gradient_steps": "replay_ratio", "train_freq": "replay_ratio",
    "train_frequency": "replay_ratio", "utd_ratio": "replay_ratio", "q_lr": "learning_rate",
    "policy_lr": "learning_rate", "batch": "batch_size", "recurrent": "use_rnn", "lstm": "use_rnn",
    "use_lstm": "use_rnn", "lstm_cell_size": "rnn_size", "rnn_hidden_size": "rnn_size",
}  # fmt: skip
"""Flags of other libraries to ours; empty where we have none."""

SETTINGS: Mapping[str, Mapping[str, float]] = {
    "tau": {"tau": 0.05}, "polyak": {"tau": 0.05}, "alpha": {"initial_temperature": 0.2},
    "target_network_frequency": {"target_every": 500}, "target_update_interval": {"target_every": 500},
    "exploration_fraction": {"epsilon_fraction": 0.2}, "start_e": {"epsilon_start": 1.0},
    "end_e": {"epsilon_end": 0.05}, "exploration_initial_eps": {"epsilon_start": 1.0},
    "exploration_final_eps": {"epsilon_end": 0.05}, "exploration_noise": {"exploration_noise": 0.1},
    "policy_noise": {"target_noise": 0.2}, "target_policy_noise": {"target_noise": 0.2},
    "noise_clip": {"most_target_noise": 0.5}, "target_noise_clip": {"most_target_noise": 0.5},
    "policy_delay": {"policy_every": 2}, "policy_frequency": {"policy_every": 2},
}  # fmt: skip
"""Flags of other libraries to examples of settings of algorithms, which come with `--algorithm_kwargs`."""


def rewritten(flags: Mapping[str, Any], arguments: Sequence[str], runs: str | None = None) -> list[str]:
    """The arguments as flags with values; what is not known stays as it is, for those who refuse it.

    Args:
        flags: name to type.
        arguments: without the name of the program.
        runs: the flag that words without a flag belong to, ``experiment``; None where a command has none.

    Raises:
        UsageError: more words than the flag takes.
    """
    found: list[str] = []
    words: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            (words if runs is not None and not SHORT_FLAG.match(word) else found).append(word)
            continue
        name, equals, value = word.partition("=")
        key = name.removeprefix("--").replace("-", "_")
        if key not in flags and key.startswith("no_") and _is_boolean(flags.get(key[3:])) and not equals:
            found.append(f"--{key[3:]}=False")
            continue
        hint = flags.get(key)
        values = [value] if equals else []
        while rest and not rest[0].startswith("--") and not SHORT_FLAG.match(rest[0]):
            if runs is not None and hint is not None and not _takes(hint, values, rest[0]):
                break
            values.append(rest.pop(0))
        if not values and _is_boolean(hint):
            values = ["True"]
        values = [_ours(key, hint, each) for each in values]
        if key == "objective" and "score" in flags and values and (values[0] + "/").startswith(("env/", "reward/")):
            name = "--score"  # the loss of PPO has the other objectives
        found += [f"{name}={values[0]}"] if len(values) == 1 else [name, *values]
    return found + _named(flags, words, runs)


def foreign(name: str, flags: Container[str]) -> str:
    """The answer to a flag of another library; empty where there is none among the flags of this command."""
    if name in SETTINGS and "algorithm_kwargs" in flags:
        example = json.dumps(SETTINGS[name])
        return f"It is a setting of some algorithms, given like --algorithm_kwargs='{example}'; see docs/algorithms.md."
    ours = OURS.get(name)
    if ours is None or (ours and ours not in flags):
        return ""
    return f"It is called --{ours} here." if ours else "There is nothing of the kind here; see docs/migration."


def _named(flags: Mapping[str, Any], words: Sequence[str], runs: str | None) -> list[str]:
    """Words without a flag: names and directories of runs, and directories of saved policies."""
    if not words or runs is None:
        return []
    takes_one = get_origin(strip(flags[runs])[0]) is not tuple
    if takes_one and len(words) > 1:
        raise UsageError(f"One run is expected, found {len(words)}: {', '.join(words)}. Give one of them.")
    policies = [word for word in words if "policy" in flags and (Path(word) / POLICY_FILE).is_file()]
    names = [word for word in words if word not in policies]
    directories = [Path(word).absolute() for word in names if len(Path(word).parts) > 1]
    places = {str(path.parent) for path in directories}
    if len(places) > 1 or 0 < len(directories) < len(names):
        raise UsageError(f"The runs {', '.join(names)} lie in several directories. Name those of one: --train_dir=DIR.")
    names = [path.name for path in directories] or names
    found: list[str] = []
    for flag, values in ((runs, names), ("train_dir", sorted(places)), ("policy", policies)):
        if values:
            found += [f"--{flag}={values[0]}"] if len(values) == 1 else [f"--{flag}", *values]
    return found


def _is_boolean(hint: Any) -> bool:
    return hint is not None and any(strip(member)[0] is bool for member in alternatives(strip(hint)[0]))


def _takes(hint: Any, values: Sequence[str], word: str) -> bool:
    """Whether a word belongs to the flag before it."""
    if get_origin(strip(hint)[0]) is tuple:
        return True
    return not values and (not _is_boolean(hint) or is_truth_value(word))


def is_truth_value(word: str) -> bool:
    """Whether it is True or False, with small letters or capitals."""
    return word.capitalize() in ("True", "False")


def _ours(key: str, hint: Any, value: str) -> str:
    """A value as we write it."""
    if hint is None:
        return value
    value = VALUES.get(key, {}).get(value, value)
    if (key, value) == ("device", "auto"):
        value = "gpu" if any(Path(file).exists() for file in ACCELERATORS) else "cpu"
    plain = strip(hint)[0]
    members = [strip(member)[0] for member in alternatives(plain)]
    if bool in members and is_truth_value(value):
        return value.capitalize()
    if int in members and float not in members:
        try:
            number = float(value)
        except ValueError:
            return value
        if not value.lstrip("+-").isdigit() and number.is_integer() and abs(number) < 2**63:
            return str(int(number))
    return value
