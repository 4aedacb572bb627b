"""What a learner publishes, against an independent and slow PPO that was fed with the same slots."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sf_envs.echo import TwoAgentEcho

from sf.envs import register_env
from tests.helpers.lab import make_lab
from tests.helpers.pairs import MODEL, SIZES, TRAINING, Pair, Run, dataset_size
from tests.helpers.recorded import Trajectory

register_env("test/TwoAgentEcho", TwoAgentEcho)

LSTMS = {"use_rnn": True, "rnn_type": "lstm", "rnn_num_layers": 2, "actor_critic_share_weights": False}
SWITCHES: dict[str, dict[str, Any]] = {
    "gae": {},
    "one minibatch": {"num_batches_per_epoch": 1},
    "in the order of trajectories": {"shuffle_minibatches": False},
    "fillers, in order": {"shuffle_minibatches": False, "fillers": 0.2},
    "fillers, one minibatch": {"num_batches_per_epoch": 1, "fillers": 0.2},
    "three epochs": {"num_epochs": 3},
    "vtrace": {"with_vtrace": True, "vtrace_rho": 1.2, "vtrace_c": 0.8},
    "vtrace without bootstrap": {"with_vtrace": True, "value_bootstrap": False, "vtrace_rho": 0.8, "vtrace_c": 1.3},
    "without bootstrap": {"value_bootstrap": False},
    "nothing is normalized": {"normalize_input": False, "normalize_returns": False, "normalize_advantages": False},
    "population deviation": {"advantage_ddof": 0},
    "normalized rewards": {"normalize_rewards": True, "gamma": 0.9},
    "normalized rewards, fillers": {"normalize_rewards": True, "fillers": 0.2},
    "normalized rewards, two rounds": {"normalize_rewards": True, "batch_size": 28},
    "initial count": {"normalize_rewards": True, "statistics_initial_count": 5.0},
    "values not clipped": {"ppo_clip_value": 0.0, "value_loss_coeff": 1.5},
    "values clipped late": {"ppo_clip_value": 1.0, "ppo_clip_ratio": 0.3},
    "reciprocal": {"ppo_clip_form": "reciprocal", "ppo_clip_ratio": 0.15},
    "reciprocal, far": {"ppo_clip_form": "reciprocal", "noise": 2.0, "kl_loss_coeff": 0.1},
    "kl loss": {"kl_loss_coeff": 0.7},
    "gradient not clipped": {"max_grad_norm": 0.0, "adam_beta1": 0.7, "adam_beta2": 0.98},
    "masks": {"env": "Masked"},
    "numbers": {"env": "Numbers"},
    "separate networks": {"actor_critic_share_weights": False},
    "gru": {"use_rnn": True},
    "gru, in order": {"use_rnn": True, "shuffle_minibatches": False},
    "gru, vtrace, fillers": {"use_rnn": True, "with_vtrace": True, "fillers": 0.1},
    "two lstms of two layers": LSTMS,
    "two policies": {"num_policies": 2, "normalize_rewards": True},
    "two policies, gru, masks": {"num_policies": 2, "use_rnn": True, "env": "Masked"},
    "adaptive by minibatch": {"lr_schedule": "kl_adaptive_minibatch", "lr_schedule_kl_threshold": 0.012},
    "adaptive by epoch": {"lr_schedule": "kl_adaptive_epoch", "lr_schedule_kl_threshold": 0.012},
    "adaptive by batch": {"lr_schedule": "kl_adaptive_batch", "lr_schedule_kl_threshold": 0.012},
    "adaptive by batch, early stop": {"lr_schedule": "kl_adaptive_batch", "target_kl": 0.02, "num_epochs": 4},
    "parts of slots": {"async_rl": True, "batch_size": 14, "num_batches_per_epoch": 2, "use_rnn": True},
}


@pytest.mark.parametrize("flags", SWITCHES.values(), ids=SWITCHES)
def test_learner_publishes_what_the_slow_ppo_does(tmp_path: Path, flags: dict[str, Any]) -> None:
    run = Run(tmp_path, **flags)
    for _ in range(3):
        assert min(run.train()) > 0


@pytest.mark.parametrize("normalized", [True, False], ids=["normalized", "raw"])
@pytest.mark.parametrize("env", ["Choice", "Numbers"])
def test_parity_of_one_update_to_1e_6(tmp_path: Path, env: str, normalized: bool) -> None:
    """With the epsilon that users get, and from statistics of two updates before."""
    run = Run(tmp_path, env, adam_eps=1e-5, normalize_input=normalized, normalize_returns=normalized)
    pair = run.pairs[0]
    for _ in range(3):
        pair.take_over()
        before = pair.slow.network.vector.copy()
        run.train()
        after = pair.slow.network.vector
        np.testing.assert_allclose(pair.published[-1].vector, after, rtol=0, atol=1e-6)
        assert np.abs(after - before).max() > 1e-2, "something was learned"


@pytest.mark.parametrize("flags", [{}, {"normalize_rewards": True}], ids=["returns", "rewards"])
def test_c28_c30_numbers_as_small_as_the_epsilon_of_the_variance(tmp_path: Path, flags: dict[str, Any]) -> None:
    def shrink(rows: list[Trajectory]) -> None:
        for one in rows:
            for numbers in (one.rewards, one.values, one.final_values):
                numbers *= 5e-5

    run = Run(tmp_path, **flags)
    for _ in range(3):
        run.train(shrink)


@pytest.mark.parametrize("flags", [{}, {"use_rnn": True}, {"with_vtrace": True}], ids=["gae", "gru", "vtrace"])
def test_a24_old_transitions_count_for_the_lag_and_train_nothing(tmp_path: Path, flags: dict[str, Any]) -> None:
    run = Run(tmp_path, max_policy_lag=4, oldest=6, **flags)
    assert [run.train() for _ in range(4)] == [[6]] * 4
    assert 0 < run.pairs[0].slow.metrics["valids_fraction"] < 0.9


def test_a24_minibatch_or_dataset_of_old_transitions_only_is_left_out(tmp_path: Path) -> None:
    def age(num_rows: int, rows: list[Trajectory]) -> None:
        for one in rows[:num_rows]:
            one.policy_version[:] = 0

    run = Run(tmp_path, max_policy_lag=4, shuffle_minibatches=False, worker_num_splits=1)
    steps = [run.train(functools.partial(age, num_rows)) for num_rows in (0, 2, 6, 0)]
    assert steps == [[6], [4], [0], [6]]
    assert run.lab.slots.unused.sum() == 1, "the slot of the skipped dataset"


def test_policy_that_acted_in_fewer_trajectories_than_there_are_minibatches_takes_fewer_steps(tmp_path: Path) -> None:
    run = Run(tmp_path, num_policies=2, use_rnn=True, rollout=6, num_batches_per_epoch=6, batch_size=3)
    steps = [number for _ in range(3) for number in run.train()]
    assert min(steps) < max(steps) <= 12


def test_c4_cx1_learning_rate_and_clip_ranges_are_annealed(tmp_path: Path) -> None:
    flags: dict[str, Any] = {"lr_schedule": "linear", "ppo_clip_anneal": True, "ppo_clip_ratio": 0.2}
    run = Run(tmp_path, env_frameskip=3, train_for_env_steps=3 * 4 * 42, **flags)
    slow, ranges = run.pairs[0].slow, []
    for _ in range(4):
        run.train()
        ranges.append((slow.lr, slow.clip_ratio))
    np.testing.assert_allclose(ranges, np.outer([1, 0.75, 0.5, 0.25], [3e-3, 0.2]))


def test_cx3_iteration_ends_by_the_divergence_k3_of_the_last_minibatch_of_an_epoch(tmp_path: Path) -> None:
    run = Run(tmp_path, target_kl=0.02, num_epochs=3)
    assert {run.train()[0] for _ in range(6)} >= {3, 9}, "some iterations end early, others do not"


SKIPS: dict[str, dict[str, Any]] = {
    "gae": {},
    "vtrace": {"with_vtrace": True},
    "adaptive": {"lr_schedule": "kl_adaptive_epoch", "lr_schedule_kl_threshold": 0.05},
}


@pytest.mark.parametrize("flags", SKIPS.values(), ids=SKIPS)
def test_fault_b9_skipped_steps_leave_no_trace(tmp_path: Path, flags: dict[str, Any]) -> None:
    def spoil(rows: list[Trajectory]) -> None:
        rows[0].rewards[0] = np.nan

    run = Run(tmp_path, worker_num_splits=1, **flags)
    assert [run.train(), run.train(spoil), run.train()] == [[6], [4], [6]]


def test_fault_b9_rewards_of_a_skipped_dataset_are_forgotten(tmp_path: Path) -> None:
    def spoil(rows: list[Trajectory]) -> None:
        rows[0].rewards[3] = np.nan

    run = Run(tmp_path, normalize_rewards=True, worker_num_splits=1)
    assert [run.train(), run.train(spoil), run.train()] == [[6], [0], [6]]


RESUMES: dict[str, dict[str, Any]] = {
    "rewards": {"normalize_rewards": True},
    "gru, adaptive": {"use_rnn": True, "lr_schedule": "kl_adaptive_minibatch", "lr_schedule_kl_threshold": 0.05},
    "annealed": {"lr_schedule": "linear", "train_for_env_steps": 4 * 42},
}


@pytest.mark.parametrize("flags", RESUMES.values(), ids=RESUMES)
def test_resumed_learner_goes_on_with_the_same_state_and_permutations(tmp_path: Path, flags: dict[str, Any]) -> None:
    run = Run(tmp_path, **flags)
    run.train()
    run.pairs[0].resume()
    for _ in range(2):
        run.train()


RUNS: dict[str, dict[str, Any]] = {
    "choice": {"env": "CartPole-v1", "max_episode_steps": 9},
    "choice with lag": {"env": "CartPole-v1", "max_episode_steps": 9, "async_rl": True},
    "numbers, lstm": {"env": "Pendulum-v1", "max_episode_steps": 10, "use_rnn": True, "rnn_type": "lstm"},
    "two policies": {"env": "test/TwoAgentEcho", "num_policies": 2},
}


@pytest.mark.parametrize("flags", RUNS.values(), ids=RUNS)
def test_learner_of_a_run_publishes_what_the_slow_ppo_does(tmp_path: Path, flags: dict[str, Any]) -> None:
    """The slots come from rollout and inference workers, and hold what the slow network says as well."""
    settings: dict[str, Any] = SIZES | MODEL | TRAINING | flags
    lab = make_lab(tmp_path, **settings)
    pairs = [Pair(lab, policy_id) for policy_id in range(lab.config.run.num_policies)]
    others = [lab.build(spec.name) for spec in lab.specs if not spec.name.startswith("learner")]
    size, waiting = dataset_size(pairs[0].learner), list[Trajectory]()
    filled = lab.slots.filled.copy()
    for _ in range(4):
        while any(role.step() for role in others):
            pass
        new = np.flatnonzero(lab.slots.filled > filled).tolist()
        for slot in sorted(new, key=lambda slot: (lab.slots.filled[slot], slot)):
            waiting += [Trajectory.read(lab.slots, slot, row) for row in range(lab.slots.topology.rows)]
        filled = lab.slots.filled.copy()
        dataset, waiting = waiting[:size], waiting[size:]
        for pair in pairs:
            for one in dataset:
                _compare_with_network(one, pair)
            assert pair.train(dataset) == 6
    for role in others:
        role.close()


def _compare_with_network(recorded: Trajectory, pair: Pair) -> None:
    """Compares steps of the present policy, from the memory that it had."""
    acted = (recorded.policy_id == pair.policy_id) & (recorded.policy_version == pair.slow.version)
    log_probs, values = pair.slow.network.speak(recorded)
    np.testing.assert_allclose(recorded.log_probs[acted], log_probs[acted], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(recorded.values[:-1][acted], values[:-1][acted], rtol=1e-4, atol=1e-4)
    if acted[-1]:
        assert recorded.values[-1] == pytest.approx(values[-1], rel=1e-4, abs=1e-4)
