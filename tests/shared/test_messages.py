"""What travels between processes is small, whatever the environment observes (row S2)."""

from __future__ import annotations

import json
import pickle
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import example, given
from hypothesis import strategies as st

from sf.envs import register_env
from sf.processes.disposable import Answer
from sf.processes.process import Ready
from sf.run.supervisor import train
from sf.shared.control import ControlEnd
from sf.shared.messages import MOST_CHARACTERS, CheckpointSaved, EvaluationDone, SaveKind, SaveRequest, TrainSummary
from tests.helpers.lab import make_config, make_lab, step_until


class Frames(gymnasium.Env[Any, Any]):
    """84x84x4 images that cost nothing, beside the numbers of some sensors."""

    def __init__(self) -> None:
        sensors = [f"sensor {i}" for i in range(8)]
        parts = dict.fromkeys(sensors, spaces.Box(-1, 1, (1,), np.float32))
        self.observation_space = spaces.Dict({"frame": spaces.Box(0, 255, (4, 84, 84), np.uint8), **parts})
        self.action_space = spaces.Discrete(6)
        self.seen = {"frame": np.zeros((4, 84, 84), np.uint8), **dict.fromkeys(sensors, np.zeros(1, np.float32))}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self.seen, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.seen, 0.0, False, False, {}


register_env("test/Frames", Frames)


def test_s2_no_message_is_larger_than_1_kb(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, "test/Frames", num_envs_per_worker=4, rollout=4, encoder_conv_architecture="convnet_atari")
    sent: list[Any] = []
    roles = lab.build_all()
    control = lab.shared.controls[0]
    kinds: list[SaveKind] = ["periodic", "best", "milestone"]
    for kind in kinds:
        request = SaveRequest(kind, 1.0)
        sent.append(request)
        control.send(request)
    step_until(roles, lambda: roles[0].record["iterations"] >= 1 and len(lab.told) >= 4)
    sent += lab.told
    assert [type(message) for message in lab.told].count(CheckpointSaved) == 3
    summaries = [message for message in lab.told if isinstance(message, TrainSummary)]
    assert sum(len(summary.scalars) for summary in summaries) > 30
    assert [summary.is_last for summary in summaries] == [False] * (len(summaries) - 1) + [True]
    assert max(len(pickle.dumps(message)) for message in sent) < 1024
    assert lab.arena.num_bytes > 4 * 4 * 84 * 84 * 4  # the images went another way


@pytest.mark.more
def test_s2_no_message_between_processes_is_larger_than_1_kb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the supervisor of a real run receives over the pipes of its children, and what it sends to learners."""
    received: list[bytes] = []
    sent: list[bytes] = []
    receive, send = Connection.recv_bytes, ControlEnd.send

    def recv(self: Connection) -> Any:
        received.append(receive(self))
        return pickle.loads(received[-1])

    def recording_send(self: ControlEnd, message: Any) -> None:
        sent.append(pickle.dumps(message))
        send(self, message)

    monkeypatch.setattr(Connection, "recv", recv)
    monkeypatch.setattr(ControlEnd, "send", recording_send)
    sizes: dict[str, Any] = {"num_workers": 2, "num_envs_per_worker": 4, "rollout": 4, "async_rl": True}
    saves = {"save_every_sec": 1, "save_milestones_sec": 1, "eval_every_steps": 64, "eval_episodes": 1, "eval_share": 1}
    network = {"encoder_conv_architecture": "convnet_atari", "max_episode_steps": 10}
    train(make_config("test/Frames", train_dir=str(tmp_path), train_for_seconds=5, **sizes, **saves, **network))
    messages = [message for message in received if not is_first_look(pickle.loads(message))] + sent
    kinds = set()
    for message in map(pickle.loads, messages):
        parts = message.value if isinstance(message, Answer) else [message]  # the last evaluation is one message
        kinds |= set(map(type, parts))
    assert kinds == {Ready, SaveRequest, CheckpointSaved, EvaluationDone, TrainSummary}
    assert max(map(len, messages)) < 1024
    frames = json.loads((tmp_path / "default_experiment/summary.json").read_text())["frames"]
    assert sum(map(len, messages)) < frames * 84 * 84, "the images went another way"


def is_first_look(message: object) -> bool:
    return isinstance(message, Answer) and not isinstance(message.value, list)


@given(
    st.dictionaries(
        st.text(st.characters(), max_size=300), st.floats(width=32, allow_nan=False), min_size=1, max_size=60
    )
)
@example({f"{i}{'x' * 17}": 0.5 for i in range(99)})
@example({170 * "\U0001f600" + str(i): 0.5 for i in range(9)})
@example({100 * "a" + middle + 100 * "z": 0.5 for middle in ("left", "right")})
def test_s2_a_summary_of_any_names_travels_in_small_messages(scalars: dict[str, float]) -> None:
    messages = [pickle.dumps(message) for message in TrainSummary.of(0, 2**62, 2**62, scalars)]
    assert max(map(len, messages)) < 1024
    arrived: dict[str, float] = {}
    for message in messages:
        arrived |= pickle.loads(message).scalars
    short = {name: value for name, value in scalars.items() if len(name) <= MOST_CHARACTERS}
    assert arrived.items() >= short.items()
    assert len(arrived) == len(scalars), "no two names become one"
    assert all(len(name) <= MOST_CHARACTERS + len(".01234567.") for name in arrived)


class Keys(gymnasium.Env[Any, Any]):
    """A Dict of numbers under keys of all kinds."""

    NAMES = ("pos,vel", ",", "line\nbreak", "ünïcode", *(f"key number {i}" for i in range(40)))

    def __init__(self) -> None:
        leaf = spaces.Box(-1, 1, (1,), np.float32)
        self.observation_space = spaces.Dict({name: leaf for name in self.NAMES})
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return {name: np.zeros(1, np.float32) for name in self.NAMES}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.reset()[0], 0.0, False, False, {}


@pytest.mark.more
def test_a22_curves_bear_the_keys_of_observations_as_they_are(tmp_path: Path) -> None:
    """All curves of one step are one point, in however many messages they came."""
    register_env("test/Keys", Keys)
    config = make_config("test/Keys", train_dir=str(tmp_path), serial_mode=True, train_for_env_steps=64)
    train(config)
    lines = (config.run.experiment_dir / "metrics.jsonl").read_text().splitlines()
    points = [point for point in map(json.loads, lines) if "train/num_sgd_steps" in point]
    assert points
    names = [f"{name}_running_{part}" for name in Keys.NAMES for part in ("mean", "std")]
    for point in points:
        assert {"train/loss", *(f"train/{name}" for name in names)} <= point.keys()
