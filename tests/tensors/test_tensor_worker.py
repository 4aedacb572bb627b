"""A simulator in tensors that is stepped, acted in and learned from in one process, without a way through the host."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from sf.config import Config, LearnerConfig, RolloutConfig, RunConfig, check, samples_per_iteration
from sf.envs.registry import register_env
from sf.errors import ConfigError, EnvError, ExitCode
from sf.run.resume_point import build_where_it_was
from sf.run.sizes import resolve
from sf.run.tensors import with_tensors
from sf.shared.slots import SlotState
from tests.envs.test_tensors import Counting
from tests.helpers.commands import ROOT, run, summary_of
from tests.helpers.configs import env_info
from tests.helpers.lab import Lab, make_lab, step_until
from tests.nets.test_device import can_emulate

register_env("test/TensorCounting", make_tensors=Counting)
STEPS, ROWS = 5, 4
THREE_STEPS = ("--num_batches_per_epoch=3", "--batch_size=256", "--num_epochs=1", "--strict=True")
A2C = ("--num_batches_per_epoch=1", "--num_epochs=1", "--strict=True")


def lab_of(path: Path, env: str = "test/TensorCounting", **flags: Any) -> Lab:
    sizes = {"num_envs_per_worker": ROWS, "rollout": STEPS, "worker_num_splits": 1}
    return make_lab(path, env, vectorization="tensors", batch_size=STEPS * ROWS, **(sizes | flags))


def filled(lab: Lab) -> tuple[Any, dict[str, torch.Tensor], int]:
    """A worker that has just filled a slot, the fields of the slot, and the slot."""
    learner, worker = lab.build_all()
    step_until([worker], lambda: lab.slots.state(0) is SlotState.FULL)
    assert worker.device == learner.device
    return worker, {name: room[0] for name, room in worker._fields.items()}, learner.update.version


@pytest.mark.parametrize("flags", [{}, {"use_rnn": True, "rnn_size": 8}])
def test_a_trajectory_is_that_of_the_simulator_and_of_the_policy(tmp_path: Path, flags: dict[str, Any]) -> None:
    """Copies 0 and 2 have episodes of three steps that terminate, copies 1 and 3 of two that are cut."""
    worker, fields, version = filled(lab := lab_of(tmp_path, **flags))
    seen = fields["observations/obs"][..., 0].int()
    assert seen[:, 0].tolist() == [0, 1, 2, 0, 1, 2]
    assert seen[:, 1].tolist() == [0, 1, 0, 1, 0, 1]
    assert fields["rewards"][:, 0].tolist() == [1, 2, 3, 1, 2]
    assert fields["rewards"][:, 1].tolist() == [1, 2, 1, 2, 1]
    assert fields["terminated"].int()[:, :2].T.tolist() == [[0, 0, 1, 0, 0], [0, 0, 0, 0, 0]]
    assert fields["truncated"].int()[:, :2].T.tolist() == [[0, 0, 0, 0, 0], [0, 1, 0, 1, 0]]
    assert (lab.slots.policy_version[0] == version).all()
    assert (lab.slots.policy_id[0] == 0).all()
    assert lab.slots.is_new[0].all()

    network, memory = worker.network, torch.zeros(ROWS, worker.network.state_size)
    for t in range(STEPS + 1):
        params, normalized, after = network.forward({"obs": fields["observations/obs"][t]}, memory)
        torch.testing.assert_close(fields["values"][t], network.denormalize(normalized))
        if t == STEPS:
            break
        log_probs, _ = network.distribution.evaluate(params, fields["actions"][t])
        torch.testing.assert_close(fields["log_probs"][t], log_probs)
        for row in fields["truncated"][t].nonzero()[:, 0].tolist():
            final = network.values({"obs": torch.tensor([[2.0]])}, after[row : row + 1])
            torch.testing.assert_close(fields["final_values"][t, row], final[0])
        memory = after * ~(fields["terminated"][t] | fields["truncated"][t])[:, None]
    torch.testing.assert_close(worker._memory, memory)


def test_the_next_trajectory_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    lab = lab_of(tmp_path, use_rnn=True, rnn_size=8)
    learner, worker = lab.build_all()
    step_until([worker], lambda: worker.record["env_steps"] == STEPS * ROWS)
    last, memory = worker._observations["obs"][0, STEPS].clone(), worker._memory.clone()
    step_until([learner, worker], lambda: worker.record["env_steps"] == 2 * STEPS * ROWS)
    slot = worker._last_slot
    torch.testing.assert_close(worker._observations["obs"][slot, 0], last)
    torch.testing.assert_close(worker._fields["initial_memory"][slot], memory)
    assert lab.slots.is_new[slot].tolist() == [False] * ROWS, "no episode ended in the last step"
    assert worker.record["episodes"] == 2 * 3 + 2 * 5, "in ten steps"


def test_without_final_observations_a_cut_episode_has_the_value_before_its_last_step(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _, fields, _ = filled(lab_of(tmp_path, env_kwargs='{"final": false}'))
    cut = fields["truncated"].nonzero(as_tuple=True)
    torch.testing.assert_close(fields["final_values"][cut], fields["values"][:-1][cut])
    assert capfd.readouterr().out.count("gives no final_observations.") == 1


def test_rewards_are_shaped_after_the_episodes_have_counted(tmp_path: Path) -> None:
    worker, fields, _ = filled(lab_of(tmp_path, reward_scale=0.5, reward_clip=1.0))
    assert fields["rewards"][:, 0].tolist() == [0.5, 1.0, 1.0, 0.5, 1.0]
    assert worker.record["clipped"] == 2
    assert {episode.reward for episode in worker._ring.new_episodes()} == {6.0, 3.0}


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "nan": ({"rewards": torch.tensor([0.0, 0.0, torch.nan, 0.0])}, r"non-finite reward: nan\. Rewards and"),
    "observation": ({"observations": torch.full((ROWS, 1), torch.inf)}, r"non-finite observation 'obs': inf\."),
    "final": (
        {"extras": {"final_observations": torch.full((ROWS, 1), torch.nan)}},
        "non-finite final observation 'obs': nan",
    ),
    "shape": ({"observations": torch.zeros(ROWS, 2)}, r"'obs' float32\[4, 2\], expected float32\[4, 1\]"),
    "flags": ({"truncated": torch.zeros(ROWS)}, r"truncated torch.float32\[4\] from step, expected bool\[4\]"),
    "rows": ({"rewards": torch.zeros(2)}, "expected a first dimension of num_envs=4"),
    "dict": ({"observations": {"a": torch.zeros(ROWS, 1)}}, "from step of type dict, expected a torch.Tensor"),
    "dicts": ({"extras": {"final_observations": {"a": torch.zeros(ROWS, 1)}}}, "of type dict, expected a torch.Tensor"),
    "final shape": (
        {"extras": {"final_observations": torch.zeros(ROWS, 2)}},
        r"a final observation 'obs' float32\[4, 2\], expected float32\[4, 1\]",
    ),
    "result": ({"result": (1, 2, 3)}, "of type tuple from step, expected a tuple of five"),
}


@pytest.mark.parametrize("name", WRONG)
def test_broken_promises_are_refused(tmp_path: Path, name: str) -> None:
    returned, message = WRONG[name]
    lab = lab_of(tmp_path)
    _, worker = lab.build_all()
    worker._many.env._returned.update(returned)
    with pytest.raises(EnvError, match=message):
        step_until([worker], lambda: lab.slots.state(0) is SlotState.FULL)


class Choosing(Counting):
    """Its observation is a category and a mask of the actions."""

    observation_space = spaces.Dict({"kind": spaces.Discrete(3), "action_mask": spaces.Box(0, 1, (2,), np.int8)})

    def __init__(
        self,
        num_envs: int,
        kind: int = 2,
        legal: int = 1,
        dtype: str = "int64",
        final: int = 1,
        others: int = 9,
        plain: bool = False,
    ) -> None:
        super().__init__(num_envs)
        self._final_kind, self._other_kind, self._is_plain = final, others, plain
        self._kind = torch.full((num_envs,), kind, dtype=getattr(torch, dtype))
        self._mask = torch.full((num_envs, 2), legal, dtype=torch.int8)

    def reset(self, seed: int | None) -> Any:
        super().reset(seed)
        return {"kind": self._kind.clamp(0, 2), "action_mask": torch.ones_like(self._mask)}

    def step(self, actions: torch.Tensor) -> Any:
        _, *columns, extras = super().step(actions)
        seen = {"kind": self._kind, "action_mask": self._mask}
        if self._is_plain:
            return self._kind, *columns, extras
        final = torch.where(columns[2], self._final_kind, self._other_kind)  # of others it says what it likes
        return seen, *columns, extras | {"final_observations": {"kind": final}}


register_env("test/Choosing", make_tensors=Choosing)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ('{"kind": 3}', "an observation 'kind' outside of categories 0 to 2"),
        ('{"legal": 0}', "an action_mask that forbids every choice"),
        ('{"final": 3}', "an observation 'kind' outside of categories 0 to 2"),
        ('{"dtype": "float32"}', r"'kind' float32\[4\], expected int64\[4\]"),
        ('{"plain": true}', r"from step torch.int64\[4\], expected a dict with 'action_mask', 'kind'"),
    ],
)
def test_categories_and_masks_are_looked_at(tmp_path: Path, kwargs: str, message: str) -> None:
    lab = lab_of(tmp_path, "test/Choosing")
    _, fields, _ = filled(lab)
    assert (fields["observations/kind"][1:] == 2).all()
    worker = lab.build("rollout")
    worker._many.env = worker._tensors.env = Choosing(ROWS, **json.loads(kwargs))
    worker._slot = 0  # filled anew
    with pytest.raises(EnvError, match=message):
        step_until([worker], lambda: worker._slot is None)


@pytest.mark.parametrize(
    ("rollout", "given", "obstacle"),
    [
        ({}, {"num_policies": 2}, "num_policies=2"),
        ({"num_workers": 2}, {}, "num_workers=2"),
        ({"worker_num_splits": 2}, {}, "worker_num_splits=2"),
    ],
)
def test_what_needs_more_processes_is_refused_or_takes_them(
    rollout: dict[str, Any], given: dict[str, Any], obstacle: str
) -> None:
    asked = Config(RunConfig(env="x", **given), RolloutConfig(vectorization="tensors", **rollout))
    with pytest.raises(ConfigError, match=obstacle):
        with_tensors(asked, env_info(), rank_is_alone=True)
    left = Config(RunConfig(env="x", device="gpu", **given), RolloutConfig(**rollout))
    assert with_tensors(left, env_info(), rank_is_alone=True) is left


def test_an_accelerator_keeps_a_simulator_in_tensors_unasked() -> None:
    config = with_tensors(Config(RunConfig(env="x", device="gpu")), env_info(), rank_is_alone=True)
    assert (config.rollout.vectorization, config.run.serial_mode, config.run.async_rl) == ("tensors", True, False)
    assert (config.rollout.num_workers, config.rollout.num_envs_per_worker) == (1, 1024)
    learner = LearnerConfig(batch_size=1024, num_batches_per_epoch=4)
    parts = Config(RunConfig(env="x", device="gpu"), RolloutConfig(num_envs_per_worker=256), learner=learner)
    assert with_tensors(parts, env_info(), rank_is_alone=True) is parts, "half of a round"
    on_cpu = Config(RunConfig(env="x", device="cpu"))
    assert with_tensors(on_cpu, env_info(), rank_is_alone=True) is on_cpu
    serial = with_tensors(Config(RunConfig(env="x", serial_mode=True)), env_info(), rank_is_alone=True)
    assert (serial.rollout.vectorization, serial.run.async_rl) == ("tensors", False)
    assert serial.rollout.num_envs_per_worker is None, "as many as of other environments"


@pytest.mark.parametrize(
    ("given", "overlaps"), [({}, True), ({"serial_mode": True}, False), ({"async_rl": False}, False)]
)
def test_who_asks_for_tensors_samples_and_learns_at_once_unless_a_flag_speaks_against_it(
    given: dict[str, Any], overlaps: bool
) -> None:
    asked = Config(RunConfig(env="x", **given), RolloutConfig(vectorization="tensors"))
    config = with_tensors(asked, env_info(), rank_is_alone=True)
    assert (config.overlaps, config.takes_turns, config.run.serial_mode) == (overlaps, not overlaps, True)


@pytest.mark.more
@pytest.mark.parametrize("flags", [(), ("--use_rnn=True",)])
def test_whole_run_in_tensors_has_ratios_of_one(tmp_path: Path, flags: tuple[str, ...]) -> None:
    line = "--env=sf/Carts-v0", "--serial_mode=True", "--num_envs_per_worker=16", "--rollout=16", *A2C, *flags
    finished = run(tmp_path, *line, "--train_for_env_steps=8000")
    assert finished.code == 0, finished.err
    assert "by one process and in turn" in finished.out
    assert summary_of(tmp_path)["frames"] >= 8000
    assert "max 0.0 (expected: avg 0, max 0)" in finished.out


@pytest.mark.more
def test_whole_run_that_overlaps_is_at_most_one_dataset_behind(tmp_path: Path) -> None:
    """Slots hold two datasets of three optimizer steps, so that a transition is learned with a lag of 5 at most."""
    line = "--env=sf/Carts-v0", "--vectorization=tensors", "--num_envs_per_worker=16", "--rollout=16", *THREE_STEPS
    finished = run(tmp_path, *line, "--train_for_env_steps=40000")
    assert finished.code == 0, finished.err
    assert "sf/Carts-v0 is stepped, acted in and learned from on cpu, by two threads" in finished.out
    assert "Expected policy lag: min 3, avg 4, max 5" in finished.out
    summary = summary_of(tmp_path)
    assert 0 < summary["policies"][0]["lag_of_run"]["max"] <= 5
    resumed = run(tmp_path, *line, "--train_for_env_steps=50000")
    assert resumed.code == 0, resumed.err
    assert 50_000 <= summary_of(tmp_path)["frames"] < 51_000


class Failing(Counting):
    """Raises in its third step, or hangs there."""

    def __init__(self, num_envs: int, hangs: bool = False) -> None:
        super().__init__(num_envs)
        self._hangs = hangs

    def step(self, actions: torch.Tensor) -> Any:
        if self.num_envs == ROWS and self._total == 2:
            if not self._hangs:
                raise ValueError("the third step")
            time.sleep(1000)
        return super().step(actions)


register_env("test/Failing", make_tensors=Failing)


def test_what_a_thread_raises_ends_the_run(tmp_path: Path) -> None:
    """With the exit code of any environment that raises."""
    line = "--vectorization=tensors", "--num_envs_per_worker=4", "--rollout=4", *A2C
    ended = run(tmp_path, "--env=tests.tensors.test_tensor_worker:Failing", *line)
    assert ended.code == ExitCode.ENVIRONMENT
    assert "ValueError: the third step" in ended.err


def test_a_thread_that_hangs_ends_the_run_with_its_stacks(tmp_path: Path) -> None:
    line = "--vectorization=tensors", "--num_envs_per_worker=4", "--rollout=4", "--env_step_timeout=1", *A2C
    hangs = "--env=tests.tensors.test_tensor_worker:Failing", '--env_kwargs={"hangs": true}'
    ended = run(tmp_path, *hangs, *line)
    assert ended.code == ExitCode.ENVIRONMENT
    assert "rollout-0 took longer than 1 s to step environment 0 (--env_step_timeout). It is a thread" in ended.err
    assert "in step" in ended.err
    assert any((tmp_path / "train_dir/default_experiment/checkpoint_p0").glob("checkpoint_*"))


def test_datasets_of_threads_are_whole_rounds() -> None:
    """Else a part of a slot would wait for the next dataset, and the lag would have no bound."""
    rollout = RolloutConfig(vectorization="tensors", num_envs_per_worker=100, rollout=32)
    asked = Config(RunConfig(env="x"), rollout, learner=LearnerConfig(batch_size=512, num_epochs=1))
    chosen = resolve(with_tensors(asked, env_info(), rank_is_alone=True), env_info(), cores=2)
    assert chosen.overlaps
    assert samples_per_iteration(chosen) % 3200 == 0
    none_fits = replace(chosen, learner=replace(chosen.learner, batch_size=512, num_batches_per_epoch=6))
    with pytest.raises(
        ConfigError, match=r"Here a simulator in tensors trains on 1, 2, 3, \.\.\. whole rounds: .*native"
    ):
        check(none_fits, env_info())


class Saving(Counting):
    """Its state can be saved; what saving returns can be replaced."""

    saved: Any = None

    def save_state(self) -> Any:
        return {"counts": self._counts, "steps": self._steps} if Saving.saved is None else Saving.saved

    def restore_state(self, state: Any) -> None:
        self._counts.copy_(state["counts"])
        self._steps.copy_(state["steps"])


register_env("test/Saving", make_tensors=Saving)


def trained(path: Path, env: str, parts: tuple[int, ...], **flags: Any) -> tuple[Any, torch.Tensor, list[Any]]:
    """A serial run of so many iterations after each other, each but the first one resumed within a trajectory.

    Returns:
        The worker, the last weights, and the episodes of all parts.
    """
    episodes: list[Any] = []
    for number in parts:
        lab = lab_of(path, env, **flags)
        roles: list[Any] = list(build_where_it_was(lab.specs, lab.shared.arena))
        learner, worker = roles
        for role in roles:
            role.tell = lab.told.append
        worker._ring.recall()
        while learner.record["iterations"] < number:
            learner.step()
            worker.step()
            episodes += worker._ring.new_episodes()
        assert worker._t in (STEPS - 1, 0)
        learner.close()
        worker.close()
        lab.experiment.close()
    return worker, learner.network.flat.detach().clone(), episodes


@pytest.mark.parametrize("env", ["sf/Carts-v0", "test/Saving"])
@pytest.mark.parametrize("flags", [{}, {"use_rnn": True, "rnn_size": 8}])
def test_a_simulator_that_saves_its_state_goes_on_bit_for_bit(tmp_path: Path, env: str, flags: dict[str, Any]) -> None:
    worker, at_once, episodes = trained(tmp_path / "whole", env, (30,), **flags)
    again, in_parts, told = trained(tmp_path / "parts", env, (7, 11, 12), **flags)
    assert torch.equal(at_once, in_parts)
    assert [(one.row, one.reward, one.length, one.metrics) for one in told] == [
        (one.row, one.reward, one.length, one.metrics) for one in episodes
    ]
    last, expected = again.state(), worker.state()
    for name in ("simulator", "fields", "memory", "random", "episodes", "metrics"):
        torch.testing.assert_close(last[name], expected[name], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("saved", [[], {"counts": 3}])
def test_a_state_that_is_no_dict_of_tensors_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: Any
) -> None:
    """Before anything is sampled."""
    monkeypatch.setattr(Saving, "saved", saved)
    with pytest.raises(EnvError, match=r"something else from save_state than a dict of name to torch\.Tensor"):
        filled(lab_of(tmp_path, "test/Saving"))


def test_a_state_that_cannot_be_saved_later_on_costs_no_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    lab = lab_of(tmp_path, "test/Saving")
    roles: list[Any] = list(build_where_it_was(lab.specs, lab.shared.arena))
    for role in roles:
        role.tell = lab.told.append
    step_until(roles, lambda: roles[0].record["iterations"] >= 2)
    monkeypatch.setattr(Saving, "save_state", lambda simulator: {"counts": simulator.__dict__["nothing"]})
    for role in roles:
        role.close()
    assert "Warning: test/Saving raised KeyError in save_state." in capfd.readouterr().out
    assert any((tmp_path / "default_experiment" / "checkpoint_p0").glob("checkpoint_*"))


def test_a_state_that_does_not_fit_begins_new_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path, "test/Saving", (2,))
    monkeypatch.setattr(Saving, "saved", {"steps": torch.zeros(ROWS)})
    trained(tmp_path, "test/Saving", (2,))
    trained(tmp_path, "test/Saving", (2,))
    assert "test/Saving raised KeyError in restore_state" in (told := capfd.readouterr().out)
    assert "They begin new episodes." in told


def test_other_environments_are_told(tmp_path: Path) -> None:
    finished = run(tmp_path, "--env=CartPole-v1", "--vectorization=tensors", "--train_for_env_steps=100")
    assert finished.code != 0
    assert "CartPole-v1 is no simulator in tensors" in finished.err


@pytest.mark.more
@can_emulate
def test_whole_run_in_tensors_on_another_device(tmp_path: Path) -> None:
    """The simulator is there as well, because its maker takes a device: nothing of a step passes through the host."""
    line = "--env=sf/Carts-v0", "--device=gpu", "--num_envs_per_worker=16", "--rollout=16", *A2C
    site = f"{ROOT}/tests/helpers/elsewhere_site{os.pathsep}{ROOT}"
    finished = run(tmp_path, *line, "--train_for_env_steps=3000", python_path=site)
    assert finished.code == 0, finished.err
    assert "sf/Carts-v0 is stepped, acted in and learned from on elsewhere:0, by one process" in finished.out
    assert summary_of(tmp_path)["frames"] >= 3000
    resumed = run(tmp_path, *line, "--train_for_env_steps=6000", python_path=site)
    assert resumed.code == 0, resumed.err
    assert summary_of(tmp_path)["frames"] >= 6000
    assert "begin new episodes" not in resumed.out
    at_once = run(
        tmp_path, *line, "--vectorization=tensors", "--experiment=two", "--train_for_env_steps=3000", python_path=site
    )
    assert at_once.code == 0, at_once.err
    assert "on elsewhere:0, by two threads" in at_once.out


def test_seeds_repeat_a_run_in_tensors(tmp_path: Path) -> None:
    weights = []
    for name in ("first", "second"):
        lab = lab_of(tmp_path / name, "sf/Carts-v0", seed=3)
        learner, worker = lab.build_all()
        while learner.record["iterations"] < 3:
            worker.step()
            learner.step()
        weights.append(learner.network.flat.detach().numpy().copy())
    np.testing.assert_array_equal(*weights)
