"""Environments of several agents with the state of all of them, and the presets that use it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from sf_envs.central import Central
from sf_envs.harvest import Harvest

import sf
from sf.errors import EnvError
from tests.environments.toys import Toy


class Pair:
    """Two agents that see their index and the step; the first one ends after two steps, the other after three."""

    num_agents = 2

    def __init__(self, **spaces_of_it: Any) -> None:
        self.observation_space: Any = spaces_of_it.get("observation_space", spaces.Box(0.0, 9.0, (2,)))
        self.action_space = spaces.Discrete(2)
        self.steps = 0

    def _seen(self) -> list[Any]:
        rows = [np.array([index, self.steps], np.float32) for index in range(2)]
        if isinstance(self.observation_space, spaces.Dict):
            return [{"own": row} for row in rows]
        return [None if self.steps > 2 else rows[0], rows[1]]

    def reset(self, **_: Any) -> Any:
        self.steps = 0
        return self._seen(), [{}, {}]

    def step(self, actions: list[Any]) -> Any:
        self.steps += 1
        return self._seen(), [1.0, 1.0], [self.steps == 2, self.steps == 3], [False, False], [{}, {}]

    def close(self) -> None: ...


class Told(Pair):
    """The same with a state of its own."""

    state_space = spaces.Box(0.0, 9.0, (1,), np.float64)

    def state(self) -> Any:
        return np.array([self.steps * 2.0])


def test_without_a_state_all_observations_stand_side_by_side_and_ended_agents_are_zeros() -> None:
    env = Central(Pair())
    seen, _ = env.reset(seed=0)
    assert [one["agent"].tolist() for one in seen] == [[1, 0], [0, 1]]
    assert [one["state"].tolist() for one in seen] == [[0, 0, 1, 0]] * 2
    assert [one["obs"].tolist() for one in seen] == [[0, 0], [1, 0]]
    for step in (1, 2, 3):
        seen, *_ = env.step([0, 0])
        first = [0, 0] if step == 3 else [0, step]
        assert seen[1]["state"].tolist() == [*first, 1, step]
        assert env.observation_space.contains(seen[1])
    assert seen[0] is None, "an agent that has ended observes nothing"


def test_the_state_of_the_environment_comes_first_also_below_an_adapter() -> None:
    class Adapter(Pair):
        def __init__(self) -> None:
            super().__init__()
            self.env = Told()

        def step(self, actions: list[Any]) -> Any:
            self.env.step(actions)
            return super().step(actions)

    for env in (Central(Told()), Central(Adapter())):
        env.reset()
        seen, *_ = env.step([0, 0])
        assert seen[0]["state"].tolist() == [2.0]
        assert seen[0]["state"].dtype == np.float32


def test_keys_of_a_dict_stay() -> None:
    class Keyed(Told):
        def __init__(self) -> None:
            super().__init__(observation_space=spaces.Dict({"own": spaces.Box(0.0, 9.0, (2,))}))

    env = Central(Keyed())
    seen, _ = env.reset()
    assert set(seen[0]) == {"own", "state", "agent"}
    assert env.observation_space.contains(seen[0])


def test_what_has_no_state_is_refused() -> None:
    with pytest.raises(EnvError, match=r"adds the state of all agents, but there is one\. Leave"):
        Central(Toy())
    with pytest.raises(EnvError, match=r"expected a Box. Give the environment a method state\(\) and a state_space"):
        Central(Pair(observation_space=spaces.Dict({"own": spaces.Box(0.0, 9.0, (2,))})))
    with pytest.raises(EnvError, match=r"adds the key 'state', which"):
        Central(Pair(observation_space=spaces.Dict({"state": spaces.Box(0.0, 9.0, (2,))})))


def test_farmers_are_paid_for_all_crops_and_the_weather() -> None:
    env = Harvest(num_agents=2, num_fields=4, steps=3, weather=1.0)
    env.reset(seed=1)
    env.fields, env.crops, env.weather = np.array([0, 3]), np.array([1, 1]), 0.5
    _, rewards, over, _, infos = env.step([2, 0])
    assert (rewards, over, infos) == ([1.5, 1.5], [False, False], [{}, {}])
    assert env.fields.tolist() == [1, 2]
    assert env.crops[0] != 1, "another one grows elsewhere"
    assert env.crops[1] == 1
    _, rewards, *_ = env.step([1, 0])
    assert rewards == [1.5 + (env.harvested[0] - 1)] * 2
    _, _, over, cut, infos = env.step([1, 1])
    assert (over, cut) == ([True, True], [False, False])
    assert infos[1]["metrics"] == {"harvested": 1.0}
    np.testing.assert_allclose(env.state()[-2:], [1.0, 0.5])


def test_a_run_with_a_centralised_critic_and_its_policy(tmp_path: Path) -> None:
    result = sf.train(
        "central/sf/Harvest-v0", preset="mappo", train_dir=str(tmp_path), serial_mode=True, async_rl=False,
        num_envs_per_worker=4, num_workers=1, rollout=25, train_for_env_steps=1200, experiment="farm",
    )  # fmt: skip
    assert result.exit_reason == "train_for_env_steps reached"
    policy = result.policy
    action, _ = policy.predict({"obs": np.zeros(3, np.float32)})
    assert action in (0, 1, 2)
    evaluated = sf.evaluate(policy, "central/sf/Harvest-v0", episodes=3)
    assert evaluated.agents.keys() == {0, 1, 2}
