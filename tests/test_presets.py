"""Presets: the values of the published table, and how flags and presets work together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from sf.cli import train
from sf.config import Config, RunConfig, check, resolve, samples_per_iteration
from sf.config.presets import PRESETS, preset_for, with_preset
from sf.spaces import ActionSpec, EnvInfo, LeafSpec
from tests.commands import run

TABLE: dict[str, tuple[float, int, int, int, int, float, float]] = {
    # learning rate, environments, steps, minibatches, epochs, clip, entropy
    "classic": (2.5e-4, 4, 128, 4, 4, 0.2, 0.01),
    "atari": (2.5e-4, 8, 128, 4, 4, 0.1, 0.01),
    "atari_lstm": (2.5e-4, 8, 128, 4, 4, 0.1, 0.01),
    "mujoco": (3e-4, 1, 2048, 32, 10, 0.2, 0.0),
    "microrts": (2.5e-4, 8, 128, 4, 4, 0.1, 0.01),
    "envpool_pong": (2.5e-4, 16, 128, 8, 3, 0.2, 0.01),
}
INFO = EnvInfo("Toy-v0", 1, {"obs": LeafSpec((4,), "float32")}, ActionSpec.discrete(2))


def preset(name: str) -> Config:
    config = resolve(with_preset(name, Config(RunConfig("Toy-v0"))), INFO, cores=2)
    check(config, INFO)
    return config


@pytest.mark.parametrize("name", TABLE)
def test_preset_has_the_values_of_the_table(name: str) -> None:
    config = preset(name)
    rollout, learner = config.rollout, config.learner
    assert rollout.num_workers is not None
    assert rollout.num_envs_per_worker is not None
    num_envs = rollout.num_workers * rollout.num_envs_per_worker
    found = learner.learning_rate, num_envs, rollout.rollout, learner.num_batches_per_epoch, learner.num_epochs
    assert (*found, learner.ppo_clip_ratio, learner.exploration_loss_coeff) == TABLE[name]
    assert samples_per_iteration(config) == num_envs * rollout.rollout
    assert learner.ppo_clip_value == learner.ppo_clip_ratio
    assert (learner.gamma, learner.gae_lambda, learner.value_loss_coeff, learner.max_grad_norm) == (
        0.99,
        0.95,
        0.5,
        0.5,
    )
    assert (learner.adam_eps, learner.lr_schedule, learner.normalize_advantages) == (1e-5, "linear", True)
    assert (config.run.async_rl, learner.value_bootstrap, learner.target_kl) == (False, False, 0.0)
    assert (learner.ppo_clip_anneal, learner.with_vtrace, config.model.normalize_returns) == (False, False, False)


def test_steps_and_networks_of_the_table() -> None:
    assert {name: preset(name).run.train_for_env_steps for name in ("classic", "atari", "mujoco", "microrts")} == {
        "classic": 500_000,
        "atari": 40_000_000,
        "mujoco": 1_000_000,
        "microrts": 2_000_000,
    }
    assert not preset("classic").model.actor_critic_share_weights
    assert preset("atari").model.encoder_conv_architecture == "convnet_atari"
    lstm = preset("atari_lstm")
    assert (lstm.model.use_rnn, lstm.model.rnn_type, lstm.model.rnn_size) == (True, "lstm", 128)
    assert lstm.run.env_arguments == {"frame_stack": 1}
    mujoco = preset("mujoco")
    assert (mujoco.model.normalize_input, mujoco.model.obs_clip, mujoco.learner.normalize_rewards) == (True, 10, True)


@pytest.mark.parametrize("name", [name for name in PRESETS if name.endswith("_fast")])
def test_fast_presets_collect_while_they_train_and_take_larger_batches(name: str) -> None:
    fast, paper = preset(name), preset(name.removesuffix("_fast"))
    assert fast.run.async_rl
    assert samples_per_iteration(fast) >= 2048
    assert fast.learner.num_epochs <= paper.learner.num_epochs
    assert fast.learner.learning_rate > paper.learner.learning_rate


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
        ("PongNoFrameskip-v4", "atari"),
        ("envpool/Pong-v5", "envpool_pong"),
        ("envpool/Breakout-v5", "atari"),
        ("envpool/CartPole-v1", "classic"),
        ("envpool/HalfCheetah-v5", "mujoco"),
        ("envpool/MiniGrid-Empty-5x5-v0", "none"),
        ("sf/CatchPixels-v0", "none"),
        ("Nobody-v0", "none"),
    ],
)
def test_auto_chooses_by_family(env: str, name: str) -> None:
    assert preset_for(env) == name


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
            train.main(["--help", *arguments])
        return capsys.readouterr().out

    assert "(default: 0.00025)" not in help_text()
    assert "(default: 0.00025)" in help_text("--preset=atari")
    assert "convnet_atari)" in help_text("--preset", "atari")
    assert "preset: classic" in help_text("--preset=auto", "--env=CartPole-v1")
    assert "because no --env is given" in help_text("--preset=auto")


def test_unknown_preset_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(["--env=CartPole-v1", "--preset=clasic"]) == 2
    assert "--preset=clasic must be none or auto or classic or" in capsys.readouterr().err
