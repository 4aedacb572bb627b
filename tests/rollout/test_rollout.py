"""Rollout workers and groups: what they write into the slots, without any other process."""

from __future__ import annotations

import functools
import itertools
import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from sf_envs.counter import Counter

from sf.envs import register_env
from sf.errors import EnvError
from sf.learner.returns import gae, values_after
from sf.rollout.worker import RolloutWorker
from sf.shared.records import INFERENCE_ACTIVITIES, LEARNER_ACTIVITIES, ROLLOUT_ACTIVITIES
from sf.shared.requests import Requests
from sf.shared.slots import SlotState
from tests.environments.fault import Unpicklable
from tests.environments.toys import Toy
from tests.helpers.commands import run
from tests.helpers.lab import Lab, make_lab, step_until


class CounterPair:
    """Two of them as two agents of one environment."""

    num_agents = 2

    def __init__(self, **arguments: Any) -> None:
        self.agents = [Counter(**arguments) for _ in range(self.num_agents)]
        self.observation_space, self.action_space = self.agents[0].observation_space, self.agents[0].action_space

    def reset(self, **_: Any) -> Any:
        return tuple(list(part) for part in zip(*(agent.reset() for agent in self.agents), strict=True))

    def step(self, actions: Any) -> Any:
        steps = (agent.step(action) for agent, action in zip(self.agents, actions, strict=True))
        return tuple(list(part) for part in zip(*steps, strict=True))

    def close(self) -> None:
        """Nothing to close."""


register_env("test/Counter", Counter)
register_env("test/CounterPair", CounterPair)


class Player:
    """Answers requests in place of an inference worker."""

    def __init__(self, lab: Lab, action: float = 0):
        self.lab, self.action = lab, action
        self.requests = Requests(lab.shared.topology, lab.arena)
        self.asked: list[tuple[int, int, int]] = []

    def step(self) -> bool:
        requests, slots, answered = self.requests, self.lab.slots, False
        for group in np.flatnonzero(requests.request != requests.answered[:, 0]):
            slot, t = int(requests.slot[group]), int(requests.step[group])
            self.asked.append((int(group), slot, t))
            slots.values[slot, t] = 100 * slot + t
            if t < self.lab.shared.topology.rollout:
                slots.actions[slot, t] = self.action
            if slots.has_final_observation[group].any():
                slots.final_values[slot, t - 1] = slots.final_observations["obs"][group][:, 2]
            requests.answered[group, 0] = requests.request[group]
            answered = True
        return answered


def play(lab: Lab, num_slots: int, action: float = 0) -> tuple[RolloutWorker, list[int], Player, list[dict[str, Any]]]:
    """Runs a worker until `num_slots` trajectories are full; returns copies of them in order."""
    worker, player = lab.build("rollout-0"), Player(lab, action)
    order: list[int] = []
    copies: list[dict[str, Any]] = []
    names = ("rewards", "terminated", "truncated", "actions", "final_values", "values")
    while len(order) < num_slots:
        assert worker.step() | player.step()
        for slot in lab.slots.waiting_for(0):
            order.append(int(slot))
            copy = {name: getattr(lab.slots, name)[slot].copy() for name in names}
            copies.append(copy | {"obs": lab.slots.observations["obs"][slot].copy()})
            lab.slots.take(slot, 0)
            lab.slots.release(slot, 0)
    return worker, order, player, copies


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


def test_truncated_step_bootstraps_from_its_own_final_observation(tmp_path: Path) -> None:
    """The final observation has step 3; the one stored next is already the first of the next episode, with step 0."""
    lab = make_lab(tmp_path, "test/Counter", env_kwargs='{"episode_steps": 3, "truncate": true}', rollout=6)
    _, _, _, copies = play(lab, 4)
    for copy in copies:
        assert copy["truncated"].any()
        assert not copy["terminated"].any()
        assert (copy["final_values"][copy["truncated"]] == 3).all()
        assert (copy["obs"][1:][copy["truncated"]][:, 2] == 0).all()


def test_step_that_is_terminated_and_truncated_is_terminated(tmp_path: Path) -> None:
    """A time limit of the length of the episodes; no final observation is valued."""
    register_env("test/Both", functools.partial(Toy, terminated=True, truncated=True))
    _, _, _, copies = play(make_lab(tmp_path, "test/Both", rollout=6), 4)
    for copy in copies:
        assert copy["terminated"].all()
        assert not copy["truncated"].any()


@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("env", ["test/Counter", "test/CounterPair"])
def test_fault_b15_every_step_ends_an_episode(tmp_path: Path, env: str, truncate: bool) -> None:
    """One reset for each, the value of the own final observation where it was cut, and advantages as by hand."""
    kwargs = json.dumps({"episode_steps": 1, "truncate": truncate})
    lab = make_lab(tmp_path, env, env_kwargs=kwargs, num_envs_per_worker=4, rollout=6)
    _, _, _, copies = play(lab, 4)
    for group in (0, 1):
        episodes = np.concatenate([copy["obs"][:-1, :, 1] for copy in copies[group::2]])
        assert (episodes == np.arange(len(episodes))[:, None]).all()
    for copy in copies:
        assert copy["truncated"].all() == truncate
        assert copy["terminated"].all() != truncate
        following = 1.0 if truncate else 0.0  # the final observation has step 1, and so its value
        by_hand = copy["rewards"] + 0.99 * following - copy["values"][:-1].astype(np.float64)
        tensors = {name: torch.from_numpy(copy[name]) for name in ("rewards", "values", "final_values")}
        truncated, terminated = torch.from_numpy(copy["truncated"]), torch.from_numpy(copy["terminated"])
        values = tensors["values"][:-1]
        after = values_after(values, tensors["values"][-1], tensors["final_values"], truncated)
        found = gae(tensors["rewards"], values, after, terminated, truncated, 0.99, 0.95)
        np.testing.assert_allclose(found.numpy(), by_hand, rtol=1e-6)


@pytest.mark.parametrize("truncate", [False, True])
def test_fault_b15_whole_run_of_episodes_of_one_step(tmp_path: Path, truncate: bool) -> None:
    kwargs = json.dumps({"episode_steps": 1, "truncate": truncate})
    flags = ("--num_workers=1", "--num_envs_per_worker=8", "--train_for_env_steps=4000", "--async_rl=False")
    finished = run(tmp_path, "--env=sf/Counter-v0", f"--env_kwargs={kwargs}", *flags)
    assert finished.code == 0, finished.err
    text = (tmp_path / "train_dir/default_experiment/metrics.jsonl").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    last = json.loads(text.splitlines()[-1])
    assert (last["reward/reward"], last["len/len"]) == (1.0, 1.0)


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


class Misbehaving(gymnasium.Env[Any, Any]):
    """Behaves for 20 steps, so that the first look finds nothing."""

    def __init__(self, fault: str):
        self.fault, self.steps = fault, 0
        self.observation_space = spaces.Box(-1, 1, (4,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if self.fault == "reset raises" and self.steps > 20:
            raise RuntimeError("the door is locked")
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.steps += 1
        observation: Any = np.zeros(4, np.float32)
        reward: Any = 0.0
        if self.steps > 20:
            match self.fault:
                case "step raises":
                    raise ZeroDivisionError("no such thing")
                case "shape":
                    observation = np.zeros(1, np.float32)
                case "dtype":
                    observation = np.zeros(4, np.complex64)
                case "nan observation":
                    observation[2] = np.nan
                case "nan reward":
                    reward = float("nan")
                case "no reward":
                    reward = None
                case "array reward":
                    reward = np.zeros(3)
        return observation, reward, self.fault == "reset raises" and self.steps > 20, False, {}


register_env("test/Misbehaving", Misbehaving)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("step raises", r"environment 0: step\(\) raised ZeroDivisionError: no such thing\n.*line \d+, in step"),
        ("reset raises", r"environment 0: reset\(\) raised RuntimeError: the door is locked"),
        ("shape", r"environment 0, step\(\): it returned an observation 'obs' of shape \(1,\), but .* promises \(4,\)"),
        ("dtype", r"it returned an observation \'obs\' of dtype complex64, which does not fit into float32"),
        ("nan observation", r"Environment 0 of group 0 returned a non-finite observation"),
        ("nan reward", r"Environment 0 of group 0 returned a non-finite reward: nan"),
        ("no reward", r"environment 0, step\(\): it returned the reward None from step, expected a finite number"),
        ("array reward", r"it returned the reward array\(\[0., 0., 0.\]\) from step, expected a finite number"),
    ],
)
def test_environment_that_breaks_its_contract_is_named(tmp_path: Path, fault: str, message: str) -> None:
    """Rows B4, B5, B7, B8, B10, B11, B14: nothing is broadcast, cast or learned."""
    lab = make_lab(tmp_path, "test/Misbehaving", env_kwargs=f'{{"fault": "{fault}"}}', num_envs_per_worker=2)
    with pytest.raises(EnvError, match=f"(?s){message}"):
        play(lab, 10)
    assert not (lab.slots.state(0) is SlotState.FULL and np.isnan(lab.slots.rewards[0]).any())


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


def test_episodes_report_raw_returns_whatever_is_trained_on(tmp_path: Path) -> None:
    from sf.shared.episodes import EpisodeRing

    lab = make_lab(tmp_path, "test/Counter", env_kwargs='{"episode_steps": 4}', reward_scale=0.5, reward_clip=1.0)
    ring = EpisodeRing(lab.arena, 0)
    _, _, _, copies = play(lab, 4)
    episodes = ring.new_episodes()
    assert episodes
    assert {(episode.reward, episode.length) for episode in episodes} == {(10.0, 4)}
    assert ring.new_episodes() == []
    assert set(copies[0]["rewards"].ravel().tolist()) == {0.5, 1.0}


def test_rewards_are_clipped_on_both_sides(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, "test/Counter", reward_scale=2.0, reward_clip=1.5)
    worker = lab.build("rollout-0")
    rewards = np.array([[-4.0, -0.5, 0.25, 3.0]], np.float32)
    worker.groups[0]._shape(rewards)
    assert rewards.tolist() == [[-1.5, -1.0, 0.5, 1.5]]


class EndsWithinReset(gymnasium.Env[Any, Any]):
    """Ends a trajectory early in every second step; its episode then ends within the reset."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)
        self.ends = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        within = self.ends % 2 == 1
        return np.zeros(1, np.float32), {"episode": {"r": 7.0, "l": 3}, "episode_continues": False} if within else {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.ends += 1
        info = {"episode_continues": True} if self.ends % 2 else {"episode": {"r": 5.0, "l": 1}}
        return np.zeros(1, np.float32), 1.0, True, False, info


def test_scores_that_an_environment_counts_itself_are_reported_also_those_within_a_reset(tmp_path: Path) -> None:
    register_env("EndsWithinReset", EndsWithinReset)
    lab = make_lab(tmp_path, "EndsWithinReset", num_envs_per_worker=2, worker_num_splits=1, rollout=4)
    roles = lab.build_all()
    step_until(roles, lambda: roles[-1].record["episodes"] >= 8)
    episodes = lab.arena["episodes"][0, :8, 1:3].tolist()
    assert episodes == [[7, 3], [7, 3], [5, 1], [5, 1]] * 2
    for role in roles:
        role.close()


@pytest.mark.parametrize("vectorization", ["none", "native"])
def test_fault_b6_environments_that_cannot_be_closed_nor_say_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], vectorization: str
) -> None:
    """The others are closed all the same."""
    lab = make_lab(tmp_path, "CartPole-v1", num_envs_per_worker=4, vectorization=vectorization)
    worker, closed = lab.build("rollout-0"), []

    def close(env: Any) -> None:
        closed.append(env)
        raise Unpicklable(env)

    batches = [group.envs for group in worker.groups]
    envs = [env for batch in batches for env in (batch.envs if vectorization == "none" else [batch.env])]
    for env in envs:
        monkeypatch.setattr(env, "close", lambda env=env: close(env))
    worker.close()
    assert closed == envs
    told = "close() raised Unpicklable: (the text of the exception cannot be shown)"
    assert capsys.readouterr().err.count(told) == len(envs) >= 2


@pytest.mark.parametrize("env", ["test/Counter", "test/CounterPair"])
def test_fault_b5_second_try_of_a_reset_has_the_seed_of_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], env: str
) -> None:
    """Also where a serial run keeps the seeds of all episodes, which then are as many as episodes."""
    lab = make_lab(tmp_path, env, num_envs_per_worker=2, worker_num_splits=1)
    batch = lab.build("rollout-0").groups[0].envs
    reset, seeds = batch.envs[1].reset, []

    def failing(**arguments: Any) -> Any:
        seeds.append(arguments)
        if len(seeds) % 2:
            raise OSError("the port is taken")
        return reset(**arguments)

    batch.envs[1].reset = failing
    for number in range(1, 4):
        batch.reset_one(1)
        assert seeds[-1] == seeds[-2]
        assert len(seeds) == 2 * number
    told = capsys.readouterr().out
    assert told.count("environment 1, is reset once more") == 2, "after the first and the second one"
    assert "reset() raised OSError: the port is taken" in told
    batch.envs[1].reset = lambda **_: _raise(OSError("nobody is there"))
    with pytest.raises(OSError, match="nobody is there"):
        batch.reset_one(1)


def _raise(error: BaseException) -> Any:
    raise error


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
