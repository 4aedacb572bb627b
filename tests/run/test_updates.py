"""How much is learned from each frame: what `--updates` chooses, and what follows from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sf.config import (
    Config,
    LearnerConfig,
    ModelConfig,
    PopulationConfig,
    ReplayConfig,
    RolloutConfig,
    RunConfig,
    check,
)  # fmt: skip
from sf.config.updates import UPDATES
from sf.envs.step_time import StepTime, in_us
from sf.run.sizes import resolve
from sf.run.updates import choose_updates, epochs_for, learning_s_per_frame, note_on_updates
from sf.spaces import ActionColumn, ActionSpec, EnvInfo, LeafSpec
from tests.helpers.configs import env_info

PICTURES = EnvInfo("Toy-v0", 1, {"obs": LeafSpec((64, 64, 3), "uint8")}, ActionSpec.discrete(2))
NUMBERS = ActionSpec((ActionColumn(low=-1.0, high=1.0),) * 2)
GOALS = EnvInfo("Toy-v0", 1, {name: LeafSpec((2,), "float32") for name in ("arm", "goal")}, NUMBERS)
MIXED = EnvInfo("Toy-v0", 1, GOALS.observations, ActionSpec((ActionColumn(3), *NUMBERS.columns)))
CHEAP, USUAL, SLOW = StepTime(1e-6, 1e-6, copies=64), StepTime(3e-5, 3e-5), StepTime(5e-3, 1e-5)


def config(learner: dict[str, Any] | None = None, **parts: Any) -> Config:
    return Config(RunConfig("Toy-v0"), learner=LearnerConfig(**(learner or {})), **parts)


@pytest.mark.parametrize(
    ("info", "step", "expected"),
    [
        (env_info(), CHEAP, "fast"),
        (env_info(), StepTime(2e-6, 2e-6), "fast"),
        (env_info(), StepTime(8e-6, 8e-6), "balanced"),
        (env_info(), USUAL, "balanced"),
        (env_info(), StepTime(2e-4, 2e-4), "efficient"),
        (env_info(), SLOW, "efficient"),
        (GOALS, StepTime(2e-5, 2e-5), "fast"),  # autograd takes longer than a gradient that is written out
        (env_info(), StepTime(2e-5, 2e-5), "balanced"),
        (GOALS, StepTime(1e-4, 1e-4), "balanced"),
        (GOALS, SLOW, "efficient"),
        (PICTURES, USUAL, "fast"),
        (PICTURES, StepTime(5e-3, 5e-3), "efficient"),
    ],
)
def test_a_frame_that_costs_more_is_learned_from_more(info: EnvInfo, step: StepTime, expected: str) -> None:
    assert choose_updates(config(), info, 2, step).name == expected


def test_a_limit_of_a_buffer_that_is_not_there_chooses_nothing() -> None:
    slow = env_info(), 2, SLOW
    assert choose_updates(config(replay=ReplayConfig(max_staleness=100)), *slow).name == "efficient"
    assert choose_updates(config(replay=ReplayConfig(replay="staleness", max_staleness=100)), *slow).name == "fast"


@pytest.mark.parametrize("step_us", [3, 10, 30, 100, 300, 1000])
@pytest.mark.parametrize("cores", [1, 2, 8])
@pytest.mark.parametrize("info", [env_info(), GOALS, PICTURES])
def test_learning_more_is_worth_its_time(step_us: int, cores: int, info: EnvInfo) -> None:
    """On one core the learner takes its time from the environments; no choice takes more than its worth."""
    step = StepTime(1e-6 * step_us, 1e-6 * step_us)
    name = choose_updates(config(), info, cores, step).name
    learning_s = {each: learning_s_per_frame(UPDATES[each], info, config()) for each in UPDATES}
    sampling_s = step.wall_s / min(cores, 32) + 4e-6
    wall_s = {
        each: max(sampling_s, learning_s[each], (step.cpu_s + 4e-6 + learning_s[each]) / cores) for each in UPDATES
    }
    assert wall_s[name] <= 2.5 * 1.25 * wall_s["fast"]
    assert name == "fast" or wall_s["balanced"] <= 2.5 * wall_s["fast"]
    assert name != "balanced" or wall_s["efficient"] > 1.25 * wall_s["balanced"]


@pytest.mark.parametrize(("info", "expected"), [(env_info(), "efficient"), (GOALS, "efficient"), (PICTURES, "fast")])
def test_runs_that_repeat_choose_by_kind(info: EnvInfo, expected: str) -> None:
    choice = choose_updates(config(), info, 2, None)
    assert choice.name == expected
    assert "clock" in choice.reason


@pytest.mark.parametrize("name", UPDATES)
def test_a_given_name_is_taken(name: Any) -> None:
    assert choose_updates(config({"updates": name}), PICTURES, 1, SLOW).name == name
    learner = resolve(config({"updates": name}), env_info(), 2).learner
    recipe = UPDATES[name]
    assert (learner.updates, learner.num_epochs, learner.learning_rate) == (name, recipe.epochs, recipe.learning_rate)
    assert (learner.batch_size, learner.num_batches_per_epoch) == (recipe.minibatch, recipe.most_minibatches)


def test_a_network_in_c_costs_less() -> None:
    """An environment that is fast for torch is slow beside the update in C."""
    step = StepTime(8e-6, 8e-6)
    assert choose_updates(config(), env_info(), 2, step).name == "balanced"
    assert choose_updates(config({"native_update": False}), env_info(), 2, step).name == "fast"


@pytest.mark.parametrize("limit", [{"bound_policy_lag": 40}, {"target_policy_lag": 30.0}])
def test_limits_that_count_optimizer_steps_leave_few_of_them(limit: dict[str, Any]) -> None:
    assert choose_updates(config(limit), env_info(), 2, SLOW).name == "fast"
    replay = ReplayConfig(replay="staleness", max_staleness=50)
    assert choose_updates(config(replay=replay), env_info(), 2, SLOW).name == "fast"


def test_a_limit_that_counts_batches_leaves_the_choice() -> None:
    assert choose_updates(config({"bound_policy_lag": "2b"}), env_info(), 2, SLOW).name == "efficient"


def test_flags_that_are_given_stay() -> None:
    learner = {"num_epochs": 3, "learning_rate": 0.01, "exploration_loss_coeff": 0.2, "num_batches_per_epoch": 4}
    resolved = resolve(config(learner), GOALS, 2, SLOW)
    assert {name: getattr(resolved.learner, name) for name in learner} == learner
    assert resolve(resolved, GOALS, 2, CHEAP) == resolved


@pytest.mark.parametrize(
    ("name", "minibatches", "epochs"),
    [("efficient", 32, 10), ("efficient", 320, 2), ("efficient", 64, 5), ("fast", 64, 2)],
)
def test_more_minibatches_have_fewer_epochs(name: Any, minibatches: int, epochs: int) -> None:
    """So that a batch is not learned from in thousands of steps, after which other data would be too old."""
    assert epochs_for(LearnerConfig(updates=name, num_batches_per_epoch=minibatches)) == epochs


def test_a_deviation_has_no_entropy_bonus() -> None:
    """One would make it grow, where a choice is only kept from being made too early."""
    bonuses = [resolve(config(), info, 2).learner.exploration_loss_coeff for info in (env_info(), GOALS, MIXED)]
    assert bonuses == [0.01, 0.0, 0.01]
    assert resolve(config({"exploration_loss_coeff": 0.1}), GOALS, 2).learner.entropy_coeff == 0.1


@pytest.mark.parametrize(
    ("info", "step", "changes", "shares"),
    [
        (GOALS, None, {}, False),
        (GOALS, SLOW, {}, False),
        (GOALS, CHEAP, {}, False),
        (GOALS, USUAL, {"encoder": "mine"}, True),
        (env_info(), None, {}, True),
        (MIXED, None, {}, True),
        (GOALS, None, {"use_rnn": True}, True),
        (GOALS, None, {"actor_critic_share_weights": True}, True),
        (env_info(), None, {"actor_critic_share_weights": False}, False),
    ],
)
def test_numbers_have_two_networks(info: EnvInfo, step: StepTime | None, changes: dict[str, Any], shares: bool) -> None:
    resolved = resolve(config(model=ModelConfig(**changes)), info, 2, step)
    assert resolved.model.actor_critic_share_weights is shares


@pytest.mark.parametrize(
    ("info", "changes", "given", "rollout", "envs"),
    [
        (GOALS, {"serial_mode": True, "async_rl": False}, {}, 128, 16),
        (GOALS, {"async_rl": False}, {}, 128, 16),
        (GOALS, {}, {}, 32, 64),
        (env_info(), {"async_rl": False}, {}, 128, 16),
        (PICTURES, {"async_rl": False}, {}, 32, 64),
        (GOALS, {"async_rl": False}, {"rollout": 32}, 32, 64),
        (GOALS, {"async_rl": False}, {"rollout": 256}, 256, 8),
        (GOALS, {"async_rl": False}, {"rollout": 1}, 1, 64),
        (env_info(), {"async_rl": False}, {"rollout": 8}, 8, 64),
        (GOALS, {"async_rl": False}, {"num_workers": 2, "num_envs_per_worker": 4}, 128, 8),
    ],
)
def test_numbers_of_runs_that_repeat_have_long_trajectories(
    info: EnvInfo, changes: dict[str, Any], given: dict[str, Any], rollout: int, envs: int
) -> None:
    """Each batch has 2,048 transitions, unless the environments are given."""
    found = resolve(replace(config(rollout=RolloutConfig(**given)), run=RunConfig("Toy-v0", **changes)), info, 2)
    assert found.rollout.rollout == rollout
    assert (found.rollout.num_workers or 0) * (found.rollout.num_envs_per_worker or 0) == envs
    check(found, info)


MEMORY: dict[str, Any] = {"use_rnn": True}


@pytest.mark.parametrize(
    ("info", "model", "learner", "step", "name", "rollout"),
    [
        (GOALS, MEMORY, {}, None, "efficient", 128),
        (env_info(), MEMORY, {}, CHEAP, "efficient", 128),
        (env_info(), MEMORY, {}, SLOW, "efficient", 128),
        (env_info(), MEMORY, {"updates": "fast"}, CHEAP, "fast", 32),
        (env_info(), MEMORY, {"batch_size": 64}, None, "efficient", 32),
        (env_info(), MEMORY, {"num_epochs": 4}, None, "fast", 32),
        (env_info(), MEMORY, {"native_update": False}, None, "fast", 32),
        (env_info(), {**MEMORY, "rnn_size": 512}, {}, None, "fast", 32),
        (PICTURES, MEMORY, {}, None, "fast", 32),
        (env_info(), MEMORY, {"torch_compile": True}, None, "fast", 32),
    ],
)
def test_a_memory_in_c_learns_much_from_long_trajectories(
    info: EnvInfo, model: dict[str, Any], learner: dict[str, Any], step: StepTime | None, name: Any, rollout: int
) -> None:
    given = config(learner, model=ModelConfig(**model))
    found = resolve(given, info, 2, step)
    assert (found.learner.updates, found.rollout.rollout) == (name, rollout)
    check(found, info)
    if rollout == 128:
        sizes = found.learner.num_epochs, found.learner.num_batches_per_epoch, found.learner.batch_size
        assert sizes == (10, 8, 256), "two trajectories in each minibatch"
        assert found.learner.learning_rate == pytest.approx(6e-4), "of minibatches that are four times as large"
    else:
        assert found.learner.learning_rate == UPDATES[name].learning_rate


@pytest.mark.parametrize(
    ("rollout", "learner", "minibatch", "rate"),
    [
        ({"rollout": 32}, {}, 64, 3e-4),
        ({"rollout": 64}, {}, 128, 3e-4),
        ({"num_workers": 2, "num_envs_per_worker": 32}, {}, 64, 3e-4),
        ({}, {"num_batches_per_epoch": 4}, 512, 3e-4),
        ({}, {"learning_rate": 1e-3}, 256, 1e-3),
    ],
)
def test_a_memory_in_sizes_of_the_user(
    rollout: dict[str, Any], learner: dict[str, Any], minibatch: int, rate: float
) -> None:
    given = config(learner, model=ModelConfig(**MEMORY), rollout=RolloutConfig(**rollout))
    found = resolve(given, env_info(), 2)
    assert (found.learner.batch_size, found.learner.learning_rate) == (minibatch, rate)
    check(found, env_info())


def test_a_memory_without_a_compiler_has_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    given = config(model=ModelConfig(**MEMORY))
    assert resolve(given, env_info(), 2).learner.updates == "fast"
    assert "recurrent layers may take long" in choose_updates(given, env_info(), 2, None).reason
    own = choose_updates(config(model=ModelConfig(encoder="mine")), env_info(), 2, None)
    assert "encoders of your own may take long" in own.reason


@pytest.mark.parametrize(
    ("rollout", "step", "envs"), [(128, CHEAP, 16), (2048, CHEAP, 8), (128, SLOW, 64), (16, CHEAP, 64), (64, USUAL, 32)]
)
def test_long_trajectories_of_the_user_are_fewer(rollout: int, step: StepTime, envs: int) -> None:
    found = resolve(config({"updates": "fast"}, rollout=RolloutConfig(rollout=rollout)), env_info(), 2, step).rollout
    assert (found.num_workers or 0) * (found.num_envs_per_worker or 0) == envs


def test_algorithms_with_critics_of_their_own_have_one_network() -> None:
    assert resolve(config(replay=ReplayConfig(replay="uniform")), GOALS, 2).model.shares_weights


@pytest.mark.parametrize("envs", [1, 4, 15, 16, 64, 100])
@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("use_rnn", [False, True])
def test_every_choice_is_one_that_a_run_takes(envs: int, name: Any, use_rnn: bool) -> None:
    rollout = RolloutConfig(num_workers=1, num_envs_per_worker=envs)
    sized = config({"updates": name}, rollout=rollout, model=ModelConfig(use_rnn=use_rnn))
    for is_async in (True, False):
        resolved = resolve(replace(sized, run=replace(sized.run, async_rl=is_async)), env_info(), 2)
        check(resolved, env_info())
        assert resolved.learner.epochs * resolved.learner.num_minibatches <= UPDATES[name].most_steps


def test_the_console_says_what_was_chosen_and_why() -> None:
    given = config()
    resolved, choice = resolve(given, env_info(), 2, SLOW), choose_updates(given, env_info(), 2, SLOW)
    text = note_on_updates(given, resolved, choice)
    assert text.startswith(
        "Each batch is learned from in 10 epochs of 32 minibatches of 64, at a learning rate of 0.0003 at first, which "
        "follows how far the policy moves (--updates=efficient): a frame takes"
    )
    full = config({"num_epochs": 1, "learning_rate": 0.1})
    assert note_on_updates(full, resolve(full, env_info(), 2), choice) == ""


@pytest.mark.parametrize(
    ("learner", "parts", "schedule"),
    [
        ({}, {}, "kl_adaptive_batch"),
        ({"updates": "fast"}, {}, "kl_adaptive_batch"),
        ({"learning_rate": 3e-4}, {}, "constant"),
        ({"num_epochs": 1, "num_batches_per_epoch": 1}, {}, "constant"),  # A2C
        ({"lr_schedule": "constant"}, {}, "constant"),
        ({"lr_schedule": "linear"}, {}, "linear"),
        ({"learning_rate": 3e-4, "lr_schedule": "kl_adaptive_minibatch"}, {}, "kl_adaptive_minibatch"),
        ({"algorithm": "rnd"}, {}, "constant"),
        ({"algorithm": "my_module:MyPPO"}, {}, "kl_adaptive_batch"),  # beside which it is measured
        ({"algorithm": "my_module:MySAC"}, {"replay": ReplayConfig(replay="uniform")}, "constant"),
        ({}, {"replay": ReplayConfig(replay="staleness")}, "constant"),
        ({}, {"population": PopulationConfig(with_pbt=True)}, "constant"),
    ],
)
def test_the_rate_follows_the_policy_where_nothing_says_how_it_changes(
    learner: dict[str, Any], parts: dict[str, Any], schedule: str
) -> None:
    resolved = resolve(config(learner, **parts), env_info(), 2, SLOW)
    assert resolved.learner.lr_schedule == resolved.learner.schedule == schedule
    assert resolve(resolved, env_info(), 2, SLOW).learner.lr_schedule == schedule


def test_durations_are_told_without_exponents() -> None:
    shown = {64.5e-6: "64.5", 9.09e-6: "9.09", 5.0612e-3: "5,060", 0.6: "600,000", 1e-4: "100", 4e-7: "0.4"}
    assert {seconds: in_us(seconds) for seconds in shown} == shown


def test_simulators_that_stay_on_their_device_choose_without_a_clock() -> None:
    in_tensors = config(rollout=RolloutConfig(vectorization="tensors", num_envs_per_worker=256))
    assert {choose_updates(in_tensors, GOALS, 2, step).name for step in (None, CHEAP, SLOW)} == {"fast"}
