"""Rollout workers and groups: what they write into the slots, without any other process."""

from __future__ import annotations

import itertools
from copy import deepcopy
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from sf.envs import register_env
from sf.rollout.worker import RolloutWorker
from sf.shared.records import INFERENCE_ACTIVITIES, LEARNER_ACTIVITIES, ROLLOUT_ACTIVITIES
from tests.helpers.lab import make_lab
from tests.helpers.rollouts import Player, play


def expected_stream(episode_steps: int, length: int) -> list[tuple[int, int]]:
    """(episode, step) of an environment that resets in the step in which it ends."""
    stream, episode, step = [], 0, 0
    for _ in range(length):
        stream.append((episode, step))
        step += 1
        if step == episode_steps:
            episode, step = episode + 1, 0
    return stream


def test_c1_no_gap_and_no_repeat_over_slot_borders(tmp_path: Path) -> None:
    """Each slot begins with the observation the one before ended on; no filler transition anywhere."""
    lab = make_lab(tmp_path, "test/Counter", env_kwargs='{"episode_steps": 5}', num_envs_per_worker=6, rollout=7)
    _, _, _, copies = play(lab, 12)
    for group in (0, 1):
        own = copies[group::2]
        stream = np.concatenate([copy["obs"][:-1, 0, 1:] for copy in own])
        assert stream.tolist() == [list(pair) for pair in expected_stream(5, len(stream))]
        rewards = np.concatenate([copy["rewards"][:, 0] for copy in own])
        assert rewards.tolist() == [step + 1 for _, step in expected_stream(5, len(stream))]
        terminated = np.concatenate([copy["terminated"][:, 0] for copy in own])
        assert terminated.tolist() == [step == 4 for _, step in expected_stream(5, len(stream))]
        for before, after in itertools.pairwise(own):
            assert (before["obs"][-1] == after["obs"][0]).all()


def test_rows_are_environments(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, "test/Counter", num_envs_per_worker=6, rollout=4)
    _, _, _, copies = play(lab, 2)
    numbers = [copy["obs"][0, :, 0] for copy in copies]
    assert all((copy["obs"][:, :, 0] == number).all() for copy, number in zip(copies, numbers, strict=True))
    assert len(set(np.concatenate(numbers).tolist())) == 6


def test_last_value_is_asked_for_before_a_slot_is_full(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, "test/Counter", rollout=4)
    _, order, player, copies = play(lab, 2)
    assert [t for group, slot, t in player.asked if slot == order[0]][:5] == [0, 1, 2, 3, 4]
    assert (copies[0]["values"][4] == 100 * order[0] + 4).all()


def test_a12_without_a_free_slot_no_action_is_asked_for(tmp_path: Path) -> None:
    """Synchronous mode: not even the first request of the next trajectory before the learner has released."""
    lab = make_lab(tmp_path, "test/Counter", rollout=4, num_batches_per_epoch=1)
    worker, player = lab.build("rollout-0"), Player(lab)
    while worker.step() | player.step():
        pass
    assert len(lab.slots.waiting_for(0)) == lab.shared.topology.num_slots == 2
    assert worker.record["env_steps"] == lab.shared.topology.samples_per_round
    requests = player.requests.request.copy()
    for slot in lab.slots.waiting_for(0):
        lab.slots.take(slot, 0)
    assert not worker.step()
    lab.slots.release(0, 0)
    assert worker.step()
    assert (player.requests.request - requests).tolist() == [1, 0]


def test_s3_a_group_waits_while_the_other_one_steps(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, "test/Counter", rollout=8, worker_num_splits=2)
    worker, player = lab.build("rollout-0"), Player(lab)
    assert worker.step()
    requests = player.requests
    requests.answered[1, 0] = requests.request[1]
    assert worker.step()
    assert requests.step.tolist() == [0, 1]


def test_b9_environment_gets_the_clipped_action_and_the_slot_keeps_the_drawn_one(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, "Pendulum-v1", rollout=4, num_envs_per_worker=2)
    worker, player = lab.build("rollout-0"), Player(lab, action=3.5)
    executed: list[float] = []
    env = worker.groups[0].envs.envs[0].unwrapped
    step = env.step

    def spy(action: Any) -> Any:
        executed.append(float(action[0]))
        return step(action)

    env.step = spy
    for _ in range(6):
        worker.step()
        player.step()
    assert set(executed) == {2.0}
    assert (lab.slots.actions[0, 0] == 3.5).all()


class SharedBuffer(gymnasium.Env[Any, Any]):
    """Returns the same buffer again and again, in Fortran order, and changes it later."""

    buffer = np.zeros((2, 3), np.float32, order="F")

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2, 3), np.float32)
        self.action_space = spaces.Discrete(2)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.buffer[:] = self.steps
        return self.buffer, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.buffer[:] = np.arange(6).reshape(2, 3) + 10 * self.steps
        return self.buffer, 0.0, False, False, {}


register_env("test/SharedBuffer", SharedBuffer)


def test_fault_b12_observations_are_copied_when_they_are_returned(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, "test/SharedBuffer", num_envs_per_worker=4, rollout=3)
    _, _, _, copies = play(lab, 2)
    steps = np.arange(1, 4)[:, None, None, None]
    assert (copies[0]["obs"][1:] == np.arange(6).reshape(2, 3) + 10 * steps).all()


class Doubles(gymnasium.Env[Any, Any]):
    """Promises float64, as simulators do, and returns whatever of it, sometimes of other types that fit."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.step_index = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.step_index += 1
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.step_index += 1
        return self._observation(), float(self.step_index), self.step_index % 5 == 0, False, {}

    def _observation(self) -> Any:
        numbers = np.array([self.step_index, self.step_index / 3])
        return numbers if self.step_index % 3 else numbers.astype(np.float32)


def test_vectors_of_doubles_are_stored_with_all_their_digits(tmp_path: Path) -> None:
    register_env("test/Doubles", Doubles)
    lab = make_lab(tmp_path, "test/Doubles", num_envs_per_worker=4, rollout=8)
    _, _, _, copies = play(lab, 2)
    for copy in copies:
        first = copy["obs"][..., 0]
        assert copy["obs"].dtype == np.float64
        assert (np.diff(first, axis=0) == 1 + copy["terminated"]).all()  # a reset takes one more
        whole, thirds = first % 3 != 0, first / 3
        np.testing.assert_array_equal(copy["obs"][..., 1], np.where(whole, thirds, thirds.astype(np.float32)))


def test_rewards_are_clipped_on_both_sides(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, "test/Counter", reward_scale=2.0, reward_clip=1.5)
    worker = lab.build("rollout-0")
    rewards = np.array([[-4.0, -0.5, 0.25, 3.0]], np.float32)
    worker.groups[0]._shape(rewards)
    assert rewards.tolist() == [[-1.5, -1.0, 0.5, 1.5]]


def test_no_process_accounts_for_time_before_the_first_step(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, eval_every_steps=8)
    roles = lab.build_all()
    (worker,) = (role for role in roles if isinstance(role, RolloutWorker))
    activities = {name for names in (ROLLOUT_ACTIVITIES, INFERENCE_ACTIVITIES, LEARNER_ACTIVITIES) for name in names}
    for _ in range(1000):
        if worker.record["env_steps"]:
            break
        for role in roles:
            assert not any(role.record[name] for name in activities & set(role.record.names))
            role.step()
            if role is not worker:
                role.record.lap("wait")
    assert worker.record["step"] > 0
    assert worker.record["write"] > 0
    for role in roles:
        role.close()


def test_every_part_of_a_state_between_an_end_and_its_answer_comes_back(tmp_path: Path) -> None:
    """Also that an episode has just ended, else its last value would be asked for again, after the next step."""
    lab = make_lab(tmp_path, "CartPole-v1", async_rl=False, num_envs_per_worker=2, rollout=32)
    worker, player = lab.build("rollout-0"), Player(lab)
    group = worker.groups[0]
    while not group.ended:
        assert worker.step() | player.step()
    state = group.state()
    assert state is not None
    saved = deepcopy(state)
    for name in ("slot", "last_slot", "t", "slots_filled", "ended"):
        setattr(group, name, None)
    group.load_state(state)
    assert group.state() == saved
    assert group.ended
    assert group.slot is not None
