"""One of several agents breaks the contract of the environment: the error names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from sf.envs import register_env
from sf.errors import EnvError
from tests.helpers.lab import make_lab
from tests.helpers.rollouts import play


class OneMisbehaves(gymnasium.Env[Any, Any]):
    """Three agents behave for 20 steps; then the second one does not."""

    num_agents = 3
    is_multiagent = True

    def __init__(self, fault: str, named: bool = True):
        self.fault, self.steps = fault, 0
        if named:
            self.agent_names = ("ann", "bob", "cyd")
        has_categories = fault == "category"
        self.observation_space = spaces.MultiDiscrete([3, 3]) if has_categories else spaces.Box(-1, 1, (4,), np.float32)
        self.action_space = spaces.Discrete(2)

    def _observations(self) -> list[Any]:
        return [np.zeros(self.observation_space.shape, self.observation_space.dtype) for _ in range(3)]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        return self._observations(), [{} for _ in range(3)]

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        self.steps += 1
        seen, rewards = self._observations(), [0.0] * 3
        infos: list[Any] = [{} for _ in range(3)]
        terminated: list[Any] = [False] * 3
        truncated: list[Any] = [False] * 3
        if self.steps > 20:
            bob: Any = {
                "shape": (seen, 1, np.zeros(1, np.float32)),
                "category": (seen, 1, np.array([0, 7])),
                "nan observation": (seen, 1, np.full(4, np.nan, np.float32)),
                "nan reward": (rewards, 1, np.nan),
                "no reward": (rewards, 1, None),
                "no flag": (terminated, 1, "no"),
                "no info": (infos, 1, None),
                "final shape": (seen, 1, np.zeros(1, np.float32)),
                "no return": (infos, 1, {"episode": {"r": None, "l": 3}}),
            }
            where, key, value = bob[self.fault]
            where[key] = value
            if self.fault in ("no info", "final shape", "no return"):
                truncated = [True] * 3
        return seen, rewards, terminated, truncated, infos


register_env("test/OneMisbehaves", OneMisbehaves)
PLACE = "test/OneMisbehaves, environment 0"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("shape", rf"^{PLACE}, step\(\): agent 'bob': it returned an observation 'obs' of shape \(1,\)"),
        ("category", rf"^{PLACE}, step\(\): agent 'bob': it returned an observation 'obs' with the value \[0 7\]"),
        ("nan observation", rf"^{PLACE} of group 0, agent 'bob', returned a non-finite observation: \[nan"),
        ("nan reward", rf"^{PLACE} of group 0, agent 'bob', returned a non-finite reward: nan"),
        ("no reward", rf"^{PLACE}, step\(\): agent 'bob': it returned the reward None"),
        ("no flag", rf"^{PLACE}, step\(\): agent 'bob': it returned terminated='no'"),
        ("no info", rf"^{PLACE}, step\(\): agent 'bob': info is None"),
        ("final shape", rf"^{PLACE}, step\(\): agent 'bob': it returned an observation 'obs' of shape \(1,\)"),
        ("no return", rf"^{PLACE} of group 0, agent 'bob': the info of the last step .* has a NoneType as r"),
    ],
)
def test_the_agent_that_breaks_the_contract_is_named(tmp_path: Path, fault: str, message: str) -> None:
    lab = make_lab(tmp_path, "test/OneMisbehaves", env_kwargs=f'{{"fault": "{fault}"}}', num_envs_per_worker=2)
    with pytest.raises(EnvError, match=message):
        play(lab, 10)


def test_an_agent_without_a_name_is_told_by_its_number(tmp_path: Path) -> None:
    kwargs = '{"fault": "no reward", "named": false}'
    lab = make_lab(tmp_path, "test/OneMisbehaves", env_kwargs=kwargs, num_envs_per_worker=2)
    with pytest.raises(EnvError, match=rf"^{PLACE}, step\(\): agent 1: it returned the reward None"):
        play(lab, 10)
