"""What travels between processes is small, whatever the environment observes (row S2)."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from sf.envs import register_env
from sf.messages import CheckpointSaved, SaveKind, SaveRequest, TrainSummary
from tests.lab import make_lab, step_until


class Frames(gymnasium.Env[Any, Any]):
    """84x84x4 images that cost nothing."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(6)
        self.image = np.zeros((4, 84, 84), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self.image, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.image, 0.0, False, False, {}


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
    step_until(roles, lambda: roles[0].record["iterations"] >= 1 and len(lab.told) == 4)
    sent += lab.told
    assert [type(message) for message in lab.told].count(CheckpointSaved) == 3
    (summary,) = (message for message in lab.told if isinstance(message, TrainSummary))
    assert len(summary.scalars) > 30
    assert max(len(pickle.dumps(message)) for message in sent) <= 1024
    assert lab.arena.num_bytes > 4 * 4 * 84 * 84 * 4  # the images went another way
