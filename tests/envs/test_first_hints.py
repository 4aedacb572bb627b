"""Environments of other habits: agents in dicts, no seed in a reset, ids of gym."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from sf_envs.multiagent import SeveralAgents

from sf.envs import EnvSource, find_env, probe
from sf.errors import EnvError
from sf.shared.episodes import EpisodeRing
from tests.environments.toys import Toy
from tests.helpers.lab import make_lab, step_until

BOX, CHOICE = spaces.Box(0, 9, (1,), np.float32), spaces.Discrete(2)


class Dicts(gymnasium.Env[Any, Any]):
    """Two agents, of which each pays its own action; b ends after two steps, and all after four.

    Args:
        silent: b shows nothing after its end.
        turns: a shows nothing in every second step.
    """

    observation_space: Any = spaces.Dict({"a": BOX, "b": BOX})
    action_space: Any = spaces.Dict({"a": CHOICE, "b": CHOICE})

    def __init__(self, silent: bool = True, turns: bool = False) -> None:
        self.silent, self.turns = silent, turns

    def alive(self) -> list[str]:
        return ["a"] if self.silent and self.t > 2 else ["a", "b"]

    def seen(self) -> Any:
        return {agent: np.full(1, self.t, np.float32) for agent in self.alive()}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.seen(), {"a": {}, "b": {}}

    def step(self, actions: Any) -> Any:
        assert set(actions) == ({"a", "b"} if self.t < 2 else {"a"}), "an agent that has ended acts no more"
        self.t += 1
        seen, rewards = self.seen(), {agent: 1.0 + float(action) for agent, action in actions.items()}
        if self.turns and self.t % 2:
            del seen["a"]
        terminated = {"b": self.t == 2, "__all__": False}
        return seen, rewards, terminated, {"__all__": self.t == 4}, {"a": {"true_objective": 7.0}}


gymnasium.register("Dicts-v0", entry_point="tests.envs.test_first_hints:Dicts", disable_env_checker=True)


@pytest.mark.parametrize("silent", ["true", "false"])
def test_agents_in_dicts_become_rows(silent: str, tmp_path: Path) -> None:
    env_id = "multiagent/tests.envs.test_first_hints:Dicts-v0"
    lab = make_lab(tmp_path, env_id, env_kwargs=f'{{"silent": {silent}}}', num_envs_per_worker=2, rollout=8)
    roles, ring = lab.build_all(), EpisodeRing(lab.arena, 0)
    step_until(roles, lambda: roles[0].record["iterations"] >= 3)
    episodes = ring.new_episodes()
    assert {(episode.length, episode.true_objective == 7.0) for episode in episodes} == {(4, True), (2, False)}
    assert all(episode.length <= episode.reward <= 2 * episode.length for episode in episodes)
    for role in roles:
        role.close()


def test_flags_of_all_end_only_agents_that_go_on() -> None:
    env = SeveralAgents(Dicts())
    env.reset()
    ends = [env.step([0, 0])[2:4] for _ in range(4)]
    assert [[list(flags) for flags in both] for both in ends] == [
        [[False, False], [False, False]],
        [[False, True], [False, False]],
        [[False, False], [False, False]],
        [[False, False], [True, False]],
    ]


def test_agents_in_dicts_are_shown_the_way_and_turns_are_refused() -> None:
    with pytest.raises(EnvError, match=r"reward \{'a': .* Several agents: use --env=multiagent/ID if its spaces are"):
        probe(find_env("tests.envs.test_first_hints:Dicts-v0"))
    with pytest.raises(EnvError, match=r"step returned observations of \['b'\], expected .* Agents that act in turn"):
        probe(find_env("multiagent/tests.envs.test_first_hints:Dicts-v0", {"turns": True}))


class NoSeed(Toy):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class BreaksInReset(Toy):
    def reset(self, **_: Any) -> Any:
        raise TypeError("no such level")


def test_a_reset_without_seed_is_told_the_line_to_write() -> None:
    with pytest.raises(EnvError, match=r"NoSeed takes no seed in reset .*Write def reset\(self, \*, seed=None, "):
        probe(EnvSource("NoSeed", factory=NoSeed))
    with pytest.raises(EnvError, match=r"raised TypeError in reset"):
        probe(EnvSource("Breaks", factory=BreaksInReset))


@pytest.mark.parametrize("is_object", [True, False])
def test_an_id_of_gym_is_told_from_an_unknown_one(is_object: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its registry was an object with a dict, and became that dict."""
    ids = {"Foo-v0": object()}
    module: Any = ModuleType("gym.envs.registration")
    module.registry = SimpleNamespace(env_specs=ids) if is_object else ids
    monkeypatch.setitem(sys.modules, "gym.envs.registration", module)
    with pytest.raises(EnvError, match=r"^Foo-v0 is registered with gym and not with Gymnasium\. .*import gymnasium"):
        find_env("Foo-v0")
    with pytest.raises(EnvError, match="There is no environment 'Fooo-v0'"):
        find_env("Fooo-v0")


def test_a_module_that_imports_gym_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old_package.py").write_text("import gym\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "gym", None)
    with pytest.raises(EnvError, match=r"^old_package imports gym, which is not installed\. Gymnasium has taken"):
        find_env("old_package:Foo-v0")
