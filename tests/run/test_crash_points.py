"""Workers that end at any line of their work, as SIGKILL ends them: what is learned is whole, and all is counted.

A trace function ends the worker by an exception at the n-th line that it executes in the files that write shared
memory; the object is dropped as it is, its successor is built from the same specification as the supervisor does it.
Every environment step says which environment, which step and which action it was, so that a row which mixes two lives
cannot look right.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from sf.policy import Sequences
from sf.shared.ledger import Ledger
from sf.shared.requests import Requests
from sf.shared.slots import SlotState
from tests.helpers.lab import Lab, make_lab

CRASH_FILES = (
    "group.py", "slots.py", "records.py", "episodes.py", "stepping.py", "scores.py", "worker.py", "role.py",
    "actors.py", "numpy_network.py", "observations.py", "contract.py", "finite.py",
)  # fmt: skip
numbers = itertools.count()


class Traced(gym.Env[Any, Any]):
    """Sees its number, its steps so far and the last action; episodes of 5 steps, every other one cut."""

    observation_space = gym.spaces.Box(-1e6, 1e6, (3,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self) -> None:
        self.number, self.steps = next(numbers), 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._seen(-1), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        over, cut = self.steps % 5 == 0, self.steps % 10 == 0
        return self._seen(int(action)), float(self.steps % 100), over and not cut, cut, {}

    def _seen(self, action: int) -> Any:
        return np.array([self.number, self.steps, action], np.float32)


gym.register("Traced-v0", entry_point="tests.run.test_crash_points:Traced")


class Killed(BaseException):
    """The end of a worker."""


@dataclass
class Crash:
    """Ends what runs inside the block at its n-th line in one of the files."""

    line: int
    lines_seen: int = 0
    happened: bool = False

    def __enter__(self) -> Crash:
        sys.settrace(self._call)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        sys.settrace(None)
        self.happened = kind is Killed
        return self.happened

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename.rpartition("/")[2] in CRASH_FILES else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.lines_seen += 1
            if self.lines_seen == self.line:
                sys.settrace(None)
                raise Killed
        return self._line


@dataclass
class World:
    """One rollout worker, one inference worker and a learner that only looks."""

    lab: Lab
    check: Callable[[int], None]
    crashes: int = 0
    looked_at: int = 0
    roles: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.learner = self.lab.build("learner-0")
        names = ("rollout-0",) if self.lab.shared.topology.workers_act else ("rollout-0", "inference-0")
        self.roles = {name: self.lab.build(name) for name in names}

    def replace(self, name: str) -> None:
        self.crashes += 1
        if name == "rollout-0":
            self.lab.slots.discard_of_worker(0)
        self.roles[name] = self.lab.build(name, incarnation=self.crashes)

    def go_on(self, num_slots: int) -> None:
        """Everybody works until so many slots more have been looked at; then they are given back."""
        slots = self.lab.slots
        wanted = self.looked_at + num_slots
        while self.looked_at < wanted:
            assert any([role.step() for role in self.roles.values()]) or slots.waiting_for(0).size, "nobody can go on"
            for slot in slots.waiting_for(0).tolist():
                self.check(slot)
                slots.take(slot, 0)
                slots.release(slot, 0)
                self.looked_at += 1
                assert slots.state(slot) is SlotState.FREE

    def crash(self, name: str, line: int) -> bool:
        """Lets one role work on until it ends at this line; False if a whole round has fewer lines."""
        crash = Crash(line)
        for _ in range(4 * self.lab.slots.topology.rollout):
            for other, role in self.roles.items():
                if other != name:
                    role.step()
            with crash:
                self.roles[name].step()
            if crash.happened:
                self.replace(name)
                return True
            for slot in self.lab.slots.waiting_for(0).tolist():
                self.check(slot)
                self.lab.slots.take(slot, 0)
                self.lab.slots.release(slot, 0)
        return False


def rows_are_whole(lab: Lab) -> Callable[[int], None]:
    """Every column of a full slot is one environment that did one step after the other, with the stored actions."""

    def check(slot: int) -> None:
        slots = lab.slots
        seen, actions, rewards = slots.observations["obs"][slot], slots.actions[slot], slots.rewards[slot]
        first = seen[0]
        steps = np.arange(slots.topology.rollout + 1)[:, None]
        assert (seen[..., 0] == first[:, 0]).all(), "rows of two environments"
        assert (seen[..., 1] == first[:, 1] + steps).all(), "steps are missing or doubled"
        ended = slots.terminated[slot] | slots.truncated[slot]
        assert (ended == (seen[1:, :, 1] % 5 == 0)).all()
        assert (seen[1:, :, 2] == np.where(ended, -1, actions)).all(), "another action was executed"
        assert (rewards == seen[1:, :, 1] % 100).all()
        assert (slots.policy_version[slot] >= 0).all()
        cut = slots.truncated[slot]
        assert (cut == (seen[1:, :, 1] % 10 == 0)).all()

    return check


def make_world(path: Path, **flags: Any) -> World:
    lab = make_lab(
        path, "tests.run.test_crash_points:Traced-v0", num_envs_per_worker=4, worker_num_splits=2, rollout=4,
        batch_size=32, async_rl=True, **flags,
    )  # fmt: skip
    return World(lab, rows_are_whole(lab))


ENDS = [("rollout-0", 1, 8), ("inference-0", 1, 25), ("rollout-0", 0, 8)]
EVERY_LINE = [pytest.param(name, inference, 1, marks=pytest.mark.slow) for name, inference, _ in ENDS]


@pytest.mark.more
@pytest.mark.parametrize(("name", "inference", "every"), [*ENDS, *EVERY_LINE])
def test_fault_a2_a4_a7_end_at_any_line(tmp_path: Path, name: str, inference: int, every: int) -> None:
    """A partial slot is never learned, a complete one never lost, no answer to a dead worker is acted on."""
    world = make_world(tmp_path, policy_workers_per_policy=inference)
    world.go_on(4)
    line = 1
    while world.crash(name, line):
        if line % 3 == 0:
            world.crash(name, line % 50 + 1)  # again, before the first answer
        world.go_on(2)
        line += every
    assert world.crashes > 150 / every, "the trace function saw too little"
    ledger = Ledger.of(world.lab.slots, has_ended=False)
    assert ledger.is_balanced, ledger.line()
    assert name != "rollout-0" or ledger.discarded["worker_died"] > 50 / every
    ended = Ledger.of(world.lab.slots, has_ended=True)
    assert ended.is_balanced
    assert ended.in_flight == 0


def make_recurrent_world(path: Path) -> World:
    """One in which all that was stored is computed again from the memory in which a slot began."""
    world = make_world(path, use_rnn=True, rnn_size=8, rnn_type="lstm", normalize_returns=False)
    network, slots = world.learner.network, world.lab.slots
    whole = world.check

    def check(slot: int) -> None:
        whole(slot)
        observations = {"obs": torch.from_numpy(slots.observations["obs"][slot, :-1]).flatten(0, 1)}
        ended = slots.terminated[slot] | slots.truncated[slot]
        starts = np.concatenate([np.zeros_like(ended[:1]), ended[:-1]])
        sequences = Sequences(torch.from_numpy(slots.initial_memory[slot]), torch.from_numpy(starts))
        with torch.no_grad():
            found = network.evaluate(observations, torch.from_numpy(slots.actions[slot]).flatten(), sequences)
        assert np.allclose(found.log_probs.numpy(), slots.log_probs[slot].ravel(), atol=1e-5)
        assert np.allclose(found.normalized_values.numpy(), slots.values[slot, :-1].ravel(), atol=1e-5)

    world.check = check
    return world


@pytest.mark.parametrize("every", [11, pytest.param(2, marks=pytest.mark.slow)])
def test_fault_a7_memory_of_a_recurrent_policy_survives(tmp_path: Path, every: int) -> None:
    """Whatever line an inference worker ends at: played again from where the slot began, all values are the same."""
    world = make_recurrent_world(tmp_path)
    world.go_on(4)
    for name, last in (("inference-0", 130), ("rollout-0", 200)):
        for line in range(1, last, every):
            assert world.crash(name, line)
            world.go_on(2)


@pytest.mark.parametrize("is_recurrent", [False, True])
def test_fault_a4_deaths_while_an_answer_is_computed(tmp_path: Path, is_recurrent: bool) -> None:
    """The request of a worker is in work when its successor asks; every other time that dies and the next one asks."""
    world = make_recurrent_world(tmp_path) if is_recurrent else make_world(tmp_path)
    world.go_on(4)
    inference, requests = world.roles["inference-0"], Requests(world.lab.shared.topology, world.lab.arena)
    act, deaths = inference.actor.act, itertools.cycle((1, 2))

    def interrupted(*arguments: Any) -> Any:
        answers = act(*arguments)
        for _ in range(next(deaths)):
            world.replace("rollout-0")
            while world.roles["rollout-0"].step():
                pass  # until all of its groups have asked
        return answers

    for _ in range(20):
        world.go_on(1)
        while world.roles["rollout-0"].step():
            pass
        before = requests.request.copy()
        inference.actor.act = interrupted
        assert inference.step(), "it was asked"
        inference.actor.act = act
        assert (requests.request > before).all(), "a successor has asked"
        assert not any(requests.is_answered(group) for group in range(len(before))), "nobody acts on what came late"
        world.go_on(4)
    assert world.crashes == 30
    assert Ledger.of(world.lab.slots, has_ended=False).is_balanced
