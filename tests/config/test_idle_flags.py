"""Flags that nothing reads are told before a run."""

from __future__ import annotations

import pytest

from sf.cli import train
from sf.config.given import values_of
from sf.config.idle_flags import READERS, notes_on_idle_flags
from sf.config.presets import PRESETS
from sf.plugins import ALGORITHMS
from sf.run.sizes import resolve
from sf.spaces import ActionColumn, ActionSpec, EnvInfo, LeafSpec

CHOICES, NUMBERS = ActionSpec.discrete(2), ActionSpec((ActionColumn(low=-2.0, high=2.0),))


def notes(*flags: str, action: ActionSpec = CHOICES, env: str = "Toy-v0") -> list[str]:
    """Those of a run with these flags."""
    info = EnvInfo(env, 1, {"obs": LeafSpec((3,), "float32")}, action)
    given = train.parse_config([f"--env={env}", *flags])
    return notes_on_idle_flags(given, resolve(given, info, 2), info)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--rnn_size=32"], "--rnn_size=32 changes nothing without --use_rnn=True."),
        (["--rnn_type=lstm", "--rnn_size=32"], "--rnn_type=lstm and --rnn_size=32 change nothing without"),
        (["--obs_clip=5", "--normalize_input=False"], "--obs_clip=5.0 changes nothing without --normalize_input"),
        (["--replay_size=5000"], "--replay_size=5000 changes nothing without a replay buffer"),
        (["--replay_ratio=2"], "without an algorithm that learns off-policy"),
        (["--learning_starts=10", "--replay=staleness"], "without an algorithm that learns off-policy"),
        (["--max_staleness=10"], "without --replay=staleness"),
        (["--vtrace_c=2"], "without --with_vtrace=True"),
        (["--proximal_policy=interpolated"], "without --objective=decoupled."),
        (["--importance_weight_max=3"], "without --objective=decoupled or truncated"),
        (["--lr_adaptive_max=1e-2", "--lr_schedule=linear"], "without a learning rate that follows the policy"),
        (["--eval_episodes=3"], "without --eval_every_steps"),
        (["--self_play_gate=0.5"], "without --self_play=True"),
        (["--pbt_draw_initial=True"], "without --with_pbt=True"),
        (["--wandb_user=me"], "without --with_wandb=True"),
        (["--stop_at_reward_episodes=5"], "without --stop_at_reward."),
        (["--summaries_use_frameskip=False"], "without --env_frameskip"),
        (["--policy_mapping=by_agent"], "without --num_policies"),
        (["--initial_stddev=0.5"], "changes nothing on an environment with these observations and actions"),
        (["--scale_pixels=False"], "changes nothing on an environment with these observations and actions"),
        (["--algorithm=dqn", "--rnn_size=32"], "without --use_rnn=True"),
    ],
)
def test_a_flag_that_nothing_reads_is_told(flags: list[str], sentence: str) -> None:
    (note,) = notes(*flags)
    assert note.startswith("Warning: ")
    assert sentence in note


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--use_rnn=True", "--rnn_size=32", "--rnn_type=lstm"],
        ["--obs_clip=5"],
        ["--replay=staleness", "--max_staleness=100", "--replay_size=100000"],
        ["--with_vtrace=True", "--vtrace_c=2"],
        ["--algorithm=appo", "--vtrace_c=2"],
        ["--algorithm=dqn", "--replay_ratio=2", "--learning_starts=10"],
        ["--lr_adaptive_max=1e-2"],
        ["--film_every_steps=100", "--eval_share=0.5"],
        ["--stop_at_reward=5", "--stop_at_reward_episodes=5"],
        ["--num_policies=2", "--policy_mapping=by_agent"],
    ],
)
def test_a_flag_that_is_read_is_not(flags: list[str]) -> None:
    assert notes(*flags) == []


def test_numbers_have_a_deviation() -> None:
    assert notes("--initial_stddev=0.5", action=NUMBERS) == []


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS.built_in))
def test_values_of_an_algorithm_are_no_flags_of_the_user(algorithm: str) -> None:
    assert notes(f"--algorithm={algorithm}", action=NUMBERS if algorithm in ("sac", "td3") else CHOICES) == []


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_values_of_a_preset_are_no_flags_of_the_user(preset: str) -> None:
    assert notes(f"--preset={preset}") == []


def test_every_flag_of_the_table_is_there() -> None:
    known = values_of(train.parse_config(["--env=Toy-v0"]))
    for reader in READERS.values():
        for name in reader.flags:
            assert any(reader.reads(flag) and flag.startswith(name) for flag in known), name
