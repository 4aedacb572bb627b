"""A hundred command lines that are refused: arguments, exit code, and what the sentence must contain."""

from __future__ import annotations

import re

ENV = "--env=CartPole-v1"

TYPOS = {
    "--evn=CartPole-v1": "--env", "--enviroment=CartPole-v1": "Unknown flag", "--sed=1": "--seed",
    "--num_worker=2": "--num_workers", "--num-wrkers=2": "--num_workers", "--numworkers=2": "--num_workers",
    "--num_env_per_worker=2": "--num_envs_per_worker", "--worker_splits=2": "--worker_num_splits",
    "--rolout=32": "--rollout", "--batchsize=64": "--batch_size", "--bach_size=64": "--batch_size",
    "--num_batches=2": "--num_batches_per_epoch", "--num_epoch=2": "--num_epochs",
    "--lr=1": "It is called --learning_rate here",
    "--learning_rte=1": "--learning_rate", "--gama=0.9": "--gamma", "--lambda=0.9": "It is called --gae_lambda here",
    "--gae_lamda=0.9": "--gae_lambda", "--clip_ratio=0.2": "--ppo_clip_ratio", "--entropy=0.1": "Unknown flag",
    "--train_for_steps=10": "--train_for_env_steps", "--train_seconds=1": "--train_for_seconds",
    "--serial=True": "--serial_mode", "--async=True": "--async_rl", "--use_rn=True": "--use_rnn",
    "--rnn_sze=4": "--rnn_size", "--normalise_input=True": "--normalize_input", "--devise=cpu": "--device",
    "--expriment=x": "--experiment", "--traindir=x": "--train_dir", "--prest=atari": "--preset",
    "--envkwargs={}": "--env_kwargs", "--eval_every=5": "--eval_every_steps", "--max_restart=1": "--max_restarts",
    "--save_every=5": "--save_every_sec", "--stop_at_rewrad=5": "--stop_at_reward",
}  # fmt: skip
"""Flag to its correction."""

VALUES = {
    "--seed=one": "--seed=one must be an integer", "--seed=-1": "seed=-1 must be", "--seed=1.5": "must be an integer",
    "--num_workers=0": "num_workers=0 must be at least 1", "--num_workers=many": "must be an integer or None",
    "--num_workers=2,": "must be an integer or None", "--num_envs_per_worker=-4": "must be at least 1",
    "--num_envs_per_worker=7 --worker_num_splits=2": "cannot form worker_num_splits=2 equal groups",
    "--worker_num_splits=0": "at least 1",
    "--rollout=0": "rollout=0 must be at least 1", "--rollout=": "must be an integer",
    "--batch_size=100 --num_batches_per_epoch=1": "no whole number of trajectories",
    "--batch_size=0": "must be at least 1",
    "--num_epochs=0": "must be at least 1", "--num_batches_per_epoch=none": "must be an integer",
    "--gamma=1.1": "gamma=1.1 must be at least 0 and at most 1", "--gamma=nan": "must be a finite number",
    "--gae_lambda=-0.1": "must be at least 0", "--gamma=0,99": "must be a number",
    "--learning_rate=0": "must be", "--learning_rate=inf": "must be a finite number",
    "--learning_rate=fast": "must be a number", "--ppo_clip_ratio=0": "must be", "--adam_beta1=1": "must be",
    "--max_grad_norm=-1": "must be at least 0", "--advantage_ddof=2": "must be", "--async_rl=yes": "True or False",
    "--async_rl=1": "True or False", "--serial_mode=maybe": "True or False", "--device=tpu": "must be cpu or gpu",
    "--preset=Atari": "must be", "--nonlinearity=gelu": "must be tanh",
    "--rnn_type=transformer": "must be", "--rnn_size=0": "at least 1", "--encoder_mlp_layers=64,64": "integer",
    "--encoder_mlp_layers=0": "at least 1", "--restart_behavior=continue": "must be resume",
    "--env_kwargs={'a':1}": "is not a JSON object", "--env_kwargs=[1]": "is not a JSON object",
    "--experiment=../x": "cannot name a directory", "--experiment=a/b": "cannot name a directory",
    "--experiment=.hidden": "cannot name a directory", "--experiment=": "cannot name a directory",
    "--experiment=ü": "cannot name a directory", "--train_dir=": "must be a path", "--keep_checkpoints=1": "at least 2",
    "--eval_share=0": "must be", "--eval_share=2": "must be", "--eval_every_steps=-1": "at least 0",
    "--on_nonfinite=ignore": "must be raise or drop", "--env_step_timeout=0": "must be above 0",
    "--max_restarts=-1": "at least 0", "--serial_mode=True --num_learners=2": "a process of its own",
    "--lr_adaptive_min=1 --lr_adaptive_max=0.1": "Exchange them", "--train_for_env_steps=1e-6": "integer",
    "--stop_at_reward=max": "number or None", "--vectorization=fast": "must be", "--action_bounds=none": "must be",
}  # fmt: skip
"""What is wrong with a value, or with two."""

OTHERS: list[tuple[list[str], int, str]] = [
    ([], 2, "--env is missing"),
    (["CartPole-v1"], 2, "Unexpected argument 'CartPole-v1'"),
    (["--env"], 2, "--env needs a value"),
    (["--env="], 2, "must be the id of an environment"),
    ([ENV, "--seed=1", "--seed=2"], 2, "--seed is given twice"),
    ([ENV, "-v"], 2, "Unexpected argument '-v'"),
    ([ENV, "--seed"], 2, "--seed needs a value"),
    ([ENV, "--seed", "1", "2"], 2, "takes one value"),
    ([ENV, "--gamma=2", "--rollout=0", "--num_epochs=0"], 2, "num_epochs=0"),
    ([ENV, f"--experiment={'x' * 300}"], 2, "cannot name a directory"),
]

BAD_LINES: list[tuple[list[str], int, str]] = [
    *(([ENV, flag] if "nv" not in flag[:6] else [flag], 2, correction) for flag, correction in TYPOS.items()),
    *(([ENV, *flags.split(" ")], 2, sentence) for flags, sentence in VALUES.items()),
    *OTHERS,
]


def is_answered(expected: str, shown: str) -> bool:
    """Whether a message says what is expected, a correction as a suggestion."""
    if expected.startswith("--") and " " not in expected:
        return bool(re.search(rf"Did you mean {expected}\?", shown))
    return expected in shown
