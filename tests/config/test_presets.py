"""Presets: the values of the published table, and how flags and presets work together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from sf.cli import train
from sf.config import Config, RunConfig, check, samples_per_iteration
from sf.config.presets import PRESETS, preset_for, with_preset
from sf.envs.vectorization import PAYS_FROM
from sf.run.sizes import resolve
from sf.spaces import ActionSpec, EnvInfo, LeafSpec
from tests.helpers.commands import run

COMMON: dict[str, Any] = {
    "async_rl": False, "gamma": 0.99, "gae_lambda": 0.95, "value_loss_coeff": 0.5, "max_grad_norm": 0.5,
    "adam_eps": 1e-5, "lr_schedule": "linear", "normalize_advantages": True, "value_bootstrap": False,
    "normalize_returns": False, "action_bounds": "clip", "statistics_initial_count": 1e-4,
}  # fmt: skip
VECTORS: dict[str, Any] = {
    "encoder_mlp_layers": (64, 64), "nonlinearity": "tanh", "actor_critic_share_weights": False, "serial_mode": True,
    "num_workers": 1, "worker_num_splits": 1,
}  # fmt: skip
IMAGES: dict[str, Any] = {
    "encoder_conv_architecture": "convnet_atari", "encoder_conv_mlp_layers": (512,), "nonlinearity": "relu",
    "actor_critic_share_weights": True, "normalize_input": False, "num_workers": 2, "worker_num_splits": 2,
    "num_envs_per_worker": 4, "env_frameskip": 4, "train_for_env_steps": 40_000_000,
}  # fmt: skip
RAW_GAMES = '{"episodic_life": true, "reward_clip": true}'
TABLE: dict[str, tuple[float, int, int, int, int, float, float, dict[str, Any]]] = {
    # learning rate, environments, steps, minibatches, epochs, clip, entropy, notes
    "classic": (
        2.5e-4, 4, 128, 4, 4, 0.2, 0.01,
        VECTORS | {"num_envs_per_worker": 4, "normalize_input": False, "train_for_env_steps": 500_000},
    ),
    "atari": (2.5e-4, 8, 128, 4, 4, 0.1, 0.01, IMAGES),
    "atari_lstm": (
        2.5e-4, 8, 128, 4, 4, 0.1, 0.01,
        IMAGES | {"env_kwargs": '{"frame_stack": 1}', "use_rnn": True, "rnn_type": "lstm", "rnn_size": 128},
    ),
    "mujoco_paper": (
        3e-4, 1, 2048, 32, 10, 0.2, 0.0,
        VECTORS | {"num_envs_per_worker": 1, "normalize_input": True, "obs_clip": 10.0, "normalize_rewards": True,
                   "train_for_env_steps": 1_000_000},
    ),
    "microrts": (
        2.5e-4, 8, 128, 4, 4, 0.1, 0.01,
        IMAGES | {"encoder_conv_architecture": "convnet_microrts", "encoder_conv_mlp_layers": (128,),
                  "scale_pixels": False, "env_frameskip": 1, "train_for_env_steps": 2_000_000},
    ),
    "envpool_atari": (2.5e-4, 8, 128, 4, 4, 0.1, 0.01, IMAGES | {"env_kwargs": RAW_GAMES}),
    "envpool_pong": (
        2.5e-4, 16, 128, 8, 3, 0.2, 0.01,
        IMAGES | {"env_kwargs": RAW_GAMES, "num_workers": 1, "num_envs_per_worker": 16, "worker_num_splits": 1,
                  "stop_at_reward": 17.0, "stop_at_reward_episodes": 20},
    ),
}  # fmt: skip
INFO = EnvInfo("Toy-v0", 1, {"obs": LeafSpec((4,), "float32")}, ActionSpec.discrete(2))


def preset(name: str) -> Config:
    config = resolve(with_preset(name, Config(RunConfig("Toy-v0"))), INFO, cores=2)
    check(config, INFO)
    return config


@pytest.mark.parametrize("name", TABLE)
def test_preset_has_the_values_of_the_table_and_no_others(name: str) -> None:
    learning_rate, num_envs, steps, minibatches, epochs, clip, entropy, notes = TABLE[name]
    numbers = {
        "learning_rate": learning_rate, "rollout": steps, "num_batches_per_epoch": minibatches, "num_epochs": epochs,
        "ppo_clip_ratio": clip, "ppo_clip_value": clip, "exploration_loss_coeff": entropy,
    }  # fmt: skip
    assert PRESETS[name] == COMMON | numbers | notes
    config = preset(name)
    assert num_envs == (config.rollout.num_workers or 0) * (config.rollout.num_envs_per_worker or 0)
    assert samples_per_iteration(config) == num_envs * steps


@pytest.mark.parametrize("name", TABLE)
def test_defaults_that_the_presets_rely_on(name: str) -> None:
    learner = preset(name).learner
    assert (learner.shuffle_minibatches, learner.advantage_ddof, learner.ppo_clip_form) == (True, 1, "symmetric")
    assert (learner.ppo_clip_anneal, learner.with_vtrace, learner.target_kl) == (False, False, 0.0)


def test_preset_of_envpool_makes_one_pool() -> None:
    config = preset("envpool_pong")
    assert (config.rollout.num_envs_per_worker or 0) // config.groups_per_worker >= PAYS_FROM


def test_env_kwargs_are_added_to_those_of_the_preset(capsys: pytest.CaptureFixture[str]) -> None:
    def arguments(*flags: str) -> dict[str, Any]:
        return train.parse_config(flags).run.env_arguments

    lstm = "--env=atari/Pong", "--preset=atari_lstm"
    assert arguments(*lstm) == {"frame_stack": 1}
    assert arguments(*lstm, '--env_kwargs={"sticky": 0.25}') == {"frame_stack": 1, "sticky": 0.25}
    assert arguments(*lstm, '--env_kwargs={"frame_stack": 4}') == {"frame_stack": 4}
    pool = "--env=envpool/Pong-v5", "--preset=auto"
    assert arguments(*pool, '--env_kwargs={"reward_clip": false}') == {"episodic_life": True, "reward_clip": False}
    assert train.parse_config([*lstm, "--env_kwargs=[3]"]).run.env_kwargs == "[3]", "refused with all other problems"


@pytest.mark.parametrize("name", [name for name in PRESETS if name.endswith("_fast")])
def test_fast_presets_collect_while_they_train_and_take_larger_batches(name: str) -> None:
    fast, paper = preset(name), preset(name.removesuffix("_fast"))
    assert fast.run.async_rl
    assert samples_per_iteration(fast) >= 2048
    assert fast.learner.epochs <= paper.learner.epochs
    assert fast.learner.initial_rate > paper.learner.initial_rate


def test_every_preset_can_be_named_and_every_name_is_one() -> None:
    assert set(get_args(get_type_hints(RunConfig)["preset"])) == {*PRESETS, "auto"}


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ("CartPole-v1", "classic"),
        ("Acrobot-v1", "classic"),
        ("LunarLander-v3", "classic"),
        ("Pendulum-v1", "mujoco"),
        ("MountainCarContinuous-v0", "mujoco"),
        ("HalfCheetah-v5", "mujoco"),
        ("mujoco/Hopper", "mujoco"),
        ("atari/Pong", "atari"),
        ("ALE/Pong-v5", "none"),
        ("ale_py:PongNoFrameskip-v4", "none"),
        ("envpool/Pong-v5", "envpool_pong"),
        ("envpool/Breakout-v5", "envpool_atari"),
        ("envpool/CartPole-v1", "classic"),
        ("envpool/HalfCheetah-v5", "mujoco"),
        ("envpool/MiniGrid-Empty-5x5-v0", "none"),
        ("sf/CatchPixels-v0", "none"),
        ("Nobody-v0", "none"),
    ],
)
def test_auto_chooses_by_family(env: str, name: str) -> None:
    assert preset_for(env) == name


def test_auto_names_the_id_that_has_the_wrappers(capsys: pytest.CaptureFixture[str]) -> None:
    train.parse_config(["--env=ALE/Pong-v5", "--preset=auto"])
    expected = "preset: none (ALE/Pong-v5 lacks the wrappers that atari needs; atari/Pong has them)\n"
    assert capsys.readouterr().out == expected


def resolved(path: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((path / "train_dir/default_experiment/config.json").read_text())
    return config


def test_flags_override_the_preset_and_its_name_is_stored(tmp_path: Path) -> None:
    finished = run(
        tmp_path, "--env=CartPole-v1", "--preset=auto", "--learning_rate=0.001", "--train_for_env_steps=1000"
    )
    assert finished.code == 0, finished.err
    assert finished.out.startswith("preset: classic\n")
    config = resolved(tmp_path)
    assert (config["learner"]["learning_rate"], config["learner"]["num_batches_per_epoch"]) == (0.001, 4)
    assert config["run"]["preset"] == "auto"
    assert config["run"]["serial_mode"] is True


def test_help_shows_what_a_preset_sets(capsys: pytest.CaptureFixture[str]) -> None:
    def help_text(*arguments: str) -> str:
        with pytest.raises(SystemExit):
            train.main(["--help", "all", *arguments])
        return capsys.readouterr().out

    assert "(default: 0.00025)" not in help_text()
    assert "(default: 0.00025)" in help_text("--preset=atari")
    assert "convnet_atari)" in help_text("--preset", "atari")
    assert "preset: classic" in help_text("--preset=auto", "--env=CartPole-v1")
    assert "because no --env is given" in help_text("--preset=auto")
    for text in (
        help_text("--preset=atari"),
        help_text("--preset=auto", "--env=atari/Pong"),
        help_text("--preset=atari", "-h"),
    ):
        assert "--preset=atari sets these defaults below: async_rl=False, worker_num_splits=2," in text
    assert "(default: atari_lstm)" in help_text("--preset=atari_lstm")
    assert "sets these defaults" not in help_text("--preset=none") + help_text()


def test_unknown_preset_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(["--env=CartPole-v1", "--preset=clasic"]) == 2
    assert "--preset=clasic must be none or auto or classic or" in capsys.readouterr().err
    assert train.main(["--help", "--preset=clasic"]) == 2
    assert "--preset=clasic must be none or auto or classic or" in capsys.readouterr().err
