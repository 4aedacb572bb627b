"""A simulator in tensors that is stepped, acted in and learned from in one process, without a way through the host."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from sf.config import Config, LearnerConfig, RolloutConfig, RunConfig, check, samples_per_iteration
from sf.envs.registry import register_env
from sf.errors import ConfigError, EnvError
from sf.run.sizes import resolve
from sf.run.tensors import with_tensors
from sf.shared.slots import SlotState
from tests.envs.test_tensors import Counting
from tests.helpers.configs import env_info
from tests.helpers.lab import Lab, make_lab, step_until

register_env("test/TensorCounting", make_tensors=Counting)
STEPS, ROWS = 5, 4


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
