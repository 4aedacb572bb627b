"""Environments as real packages have them: correct, and unusual in one way each."""

from __future__ import annotations

import functools
import time
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit, TransformReward
from sf_envs.counter import Counter
from sf_envs.zoo import Parallel


class EndsEarly(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Ends every episode after two steps, and says nothing of it in info."""

    def reset(self, **arguments: Any) -> Any:
        self.steps = 0
        return self.env.reset(**arguments)

    def step(self, action: Any) -> Any:
        self.steps += 1
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated or self.steps == 2, truncated, info


class LosesLives(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Says that the episode goes on after every second step; the reset goes on with it."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.steps, self.is_over = 0, True

    def reset(self, **arguments: Any) -> Any:
        if self.is_over or arguments.get("seed") is not None:
            self.steps, self.is_over = 0, False
            return self.env.reset(**arguments)
        return self.env.unwrapped._observe(), {}  # type: ignore[attr-defined]

    def step(self, action: Any) -> Any:
        self.steps += 1
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.is_over = terminated or truncated
        if self.is_over or self.steps % 2:
            return observation, reward, terminated, truncated, info
        return observation, reward, True, False, info | {"episode_continues": True}


def raw(steps: int) -> Any:
    """The step i of an episode is worth i; `RecordEpisodeStatistics` sees that."""
    return RecordEpisodeStatistics(Counter(episode_steps=steps))


def halved(env: Any) -> Any:
    return TransformReward(env, lambda reward: float(reward) / 2)


def cut_above_statistics() -> Any:
    return TimeLimit(raw(10), 3)


def ended_above_statistics() -> Any:
    return EndsEarly(raw(10))


def shaped_above_statistics() -> Any:
    return halved(raw(4))


def lives_above_statistics() -> Any:
    return halved(LosesLives(raw(5)))


def lives_alone() -> Any:
    return LosesLives(Counter(episode_steps=5))


class OwnEpisode(Counter):
    """Has the number of the episode in info, under the name that Gymnasium's statistics have as well."""

    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        return *rest, info | {"episode": self.episode}


def numbers_its_episodes() -> Any:
    return OwnEpisode(episode_steps=4)


COUNTED = {
    cut_above_statistics: (6.0, 3),
    ended_above_statistics: (3.0, 2),
    shaped_above_statistics: (10.0, 4),
    lives_above_statistics: (15.0, 5),
    lives_alone: (15.0, 5),
    numbers_its_episodes: (10.0, 4),
}
"""Return and length of every episode of these environments."""


def as_one(make: Any, mode: str, num_envs: int) -> SyncVectorEnv:
    """Several of them as one of Gymnasium's vector environments."""
    return SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode[mode])


class Walkers:
    """A parallel environment of PettingZoo with two walkers; each observes its number and the step.

    Args:
        ends: step to the flags that it sets, of the form ``{3: {"a": "terminated"}}``.
        leaves: step to the agents that leave `agents` in it.
        silent: agents without an observation from the step on in which they end.
        late_reward: of agents that are listed although they have ended.
    """

    possible_agents = ("a", "b")

    def __init__(self, ends: Any = None, leaves: Any = None, silent: Any = (), late_reward: float = 0.0) -> None:
        self.ends, self.leaves, self.silent, self.late_reward = ends or {}, leaves or {}, silent, late_reward
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def observe(self) -> Any:
        shown = {agent: np.array([0, index, self.steps], np.float32) for index, agent in enumerate("ab")}
        return {agent: shown[agent] for agent in self.acted if not (agent in self.silent and agent in self.over)}

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.agents, self.steps, self.over = list("ab"), 0, set[str]()
        self.acted = list("ab")
        return self.observe(), {}

    def step(self, actions: Any) -> Any:
        assert set(actions) == set(self.agents)
        self.acted, self.steps = list(self.agents), self.steps + 1
        flags = self.ends.get(self.steps, {})
        rewards = {agent: self.late_reward if agent in self.over else float(self.steps) for agent in self.acted}
        terminated, truncated = (
            {agent: flags.get(agent) == kind for agent in self.acted} for kind in ("terminated", "truncated")
        )
        self.over |= set(flags)
        self.agents = [agent for agent in self.agents if agent not in self.leaves.get(self.steps, ())]
        return self.observe(), rewards, terminated, truncated, {}

    def close(self) -> None:
        """Nothing to close."""


BOTH_CUT = {"a": "truncated", "b": "truncated"}
APART = {"a": "terminated", "b": "truncated"}
ENDINGS: dict[str, tuple[dict[str, Any], dict[str, tuple[int, str]]]] = {
    "apart": ({"ends": {3: APART}, "leaves": {3: "ab"}}, {"a": (3, "terminated"), "b": (3, "truncated")}),
    "agents not emptied": ({"ends": {3: BOTH_CUT}}, {"a": (3, "truncated"), "b": (3, "truncated")}),
    "stays listed": (
        {"ends": {2: {"a": "terminated"}, 4: {"b": "terminated"}}},
        {"a": (2, "terminated"), "b": (4, "terminated")},
    ),
    "is cut and stays listed": (
        {"ends": {2: {"a": "truncated"}, 4: APART}},
        {"a": (2, "truncated"), "b": (4, "truncated")},
    ),
    "leaves": (
        {"ends": {2: {"a": "terminated"}, 4: {"b": "truncated"}}, "leaves": {2: "a", 4: "b"}},
        {"a": (2, "terminated"), "b": (4, "truncated")},
    ),
    "leaves without a flag": (
        {"leaves": {2: "a", 3: "b"}, "ends": {3: {"b": "terminated"}}},
        {"a": (2, "truncated"), "b": (3, "terminated")},
    ),
    "last observation missing": (
        {"ends": {2: {"a": "terminated"}, 3: {"b": "terminated"}}, "leaves": {3: "ab"}, "silent": "ab"},
        {"a": (2, "terminated"), "b": (3, "terminated")},
    ),
}
"""Arguments of the walkers, and the step and the flag with which each of them ends."""


class TupleOfBits(gymnasium.Env[Any, Any]):
    """Two agents in one environment: Tuple spaces, a list of rewards, one flag; agent i earns its bit.

    Args:
        flags: whether they come one per agent as well.
        shared: whether one reward counts for all.
        odd: whether the second agent has another action space.
    """

    def __init__(self, flags: bool = False, shared: bool = False, odd: bool = False) -> None:
        self.flags, self.shared = flags, shared
        self.observation_space = spaces.Tuple([spaces.Discrete(2)] * 2)
        self.action_space = spaces.Tuple(
            [spaces.Discrete(2), spaces.Box(0.0, 1.0, (1,)) if odd else spaces.Discrete(2)]
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return (0, 1), {}

    def step(self, actions: Any) -> Any:
        assert isinstance(actions, tuple)
        assert self.action_space.contains(actions)
        self.steps += 1
        over = self.steps == 4
        rewards = 1.0 if self.shared else [0.0, 1]
        return (0, 1), rewards, False, [over] * 2 if self.flags else over, {}


gymnasium.register("TupleOfBits-v0", entry_point="tests.environments.first_contact:TupleOfBits")


class OwnNumAgents(Counter):
    """An ordinary environment with a field of this name."""

    def __init__(self, num_agents: Any) -> None:
        super().__init__(episode_steps=4)
        self.num_agents = num_agents


class Placed(Counter):
    """Shows the two numbers that it has asked for."""

    def __init__(self, sf_worker: int, sf_index: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.place = sf_worker, sf_index

    def _observe(self) -> Any:
        return np.array([*self.place, self.steps], np.float32)


def placed(sf_index: int, **arguments: Any) -> Placed:
    """Asks for one of them only."""
    return Placed(-1, sf_index, **arguments)


def many_placed(num_envs: int, sf_worker: int, sf_index: int) -> SyncVectorEnv:
    make = [functools.partial(Placed, sf_worker, sf_index + index) for index in range(num_envs)]
    return SyncVectorEnv(make, autoreset_mode=AutoresetMode.NEXT_STEP)


class PlacedPair(TupleOfBits):
    """Two agents that share a place."""

    def __init__(self, sf_worker: int, sf_index: int) -> None:
        super().__init__()
        self.place = sf_worker, sf_index
        self.observation_space = spaces.Tuple([spaces.Box(-9, 99, (3,))] * 2)

    def reset(self, **arguments: Any) -> Any:
        super().reset(**arguments)
        return (np.array([*self.place, 0], np.float32),) * 2, {}

    def step(self, actions: Any) -> Any:
        return (np.array([*self.place, 0], np.float32),) * 2, *super().step(actions)[1:]


gymnasium.register(
    "Placed-v0",
    entry_point="tests.environments.first_contact:Placed",
    vector_entry_point="tests.environments.first_contact:many_placed",
)
gymnasium.register("PlacedPair-v0", entry_point="tests.environments.first_contact:PlacedPair")


class Once(Counter):
    """An emulator that exists once per process.

    Args:
        by_reset: whether the reset of a second one raises, in place of its constructor.
    """

    alive = 0

    def __init__(self, by_reset: bool = False) -> None:
        super().__init__(episode_steps=4)
        self.by_reset, self.counts = by_reset, False
        if not by_reset:
            self.begin()

    def begin(self) -> None:
        if Once.alive and not self.counts:
            raise RuntimeError("only one instance per process")
        if not self.counts:
            Once.alive, self.counts = 1, True

    def reset(self, **arguments: Any) -> Any:
        self.begin()
        return super().reset(**arguments)

    def close(self) -> None:
        if self.counts:
            Once.alive, self.counts = 0, False


class SlowlyMade(Counter):
    """The first one of a process takes 0.2 s to be made, as if it imported something, and each later one 0.02 s.

    Args:
        second_raises: the method that raises, of an environment with another index than 0.
    """

    places: ClassVar[list[tuple[int, int]]] = []
    num_open = 0

    def __init__(self, sf_worker: int, sf_index: int, second_raises: str = "") -> None:
        super().__init__()
        time.sleep(0.02 if self.places else 0.2)
        self.places.append((sf_worker, sf_index))
        self.raises = second_raises if sf_index else ""
        SlowlyMade.num_open += 1

    def reset(self, **arguments: Any) -> Any:
        if self.raises == "reset":
            raise RuntimeError("no second reset")
        return super().reset(**arguments)

    def close(self) -> None:
        SlowlyMade.num_open -= 1
        if self.raises == "close":
            raise RuntimeError("no second close")


gymnasium.register("SlowlyMade-v0", entry_point="tests.environments.first_contact:SlowlyMade")


MASKED_SPACE = spaces.Dict({"action_mask": spaces.Box(0, 1, (2,), np.float32), "seen": spaces.Box(-9, 9, (1,))})
NO_MASKS: dict[str, Any] = {
    "none legal": np.zeros(2, np.float32),
    "NaN": np.full(2, np.nan, np.float32),
    "None": None,
    "missing": ...,
}


class NoNextMove(gymnasium.Env[Any, Any]):
    """Episodes of three steps, whose end comes without a mask that anything could be drawn from.

    Args:
        odd: key of `NO_MASKS`, of the last observation.
        truncated: whether the episode is cut.
        in_info: the mask is in info and not in the observation.
        late: the number that a last observation shows; NaN where it must not be looked at.
    """

    def __init__(self, odd: str, truncated: bool = False, in_info: bool = False, late: float = 3.0) -> None:
        self.odd, self.truncated, self.in_info, self.late = odd, truncated, in_info, late
        self.observation_space = MASKED_SPACE["seen"] if in_info else MASKED_SPACE
        self.action_space = spaces.Discrete(2)
        self.steps = 0

    def seen(self) -> tuple[Any, dict[str, Any]]:
        mask = NO_MASKS[self.odd] if self.steps == 3 else np.ones(2, np.float32)
        masks = {} if mask is ... else {"action_mask": mask}
        seen = np.array([self.late if self.steps == 3 else self.steps], np.float32)
        return (seen, masks) if self.in_info else ({"seen": seen} | masks, {})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return self.seen()

    def step(self, action: Any) -> Any:
        self.steps += 1
        observation, info = self.seen()
        over = self.steps == 3
        return observation, 1.0, over and not self.truncated, over and self.truncated, info


class PairWithoutNextMove:
    """The same with two agents."""

    num_agents = 2

    def __init__(self, **arguments: Any) -> None:
        self.envs = [NoNextMove(**arguments) for _ in range(2)]
        self.observation_space, self.action_space = self.envs[0].observation_space, self.envs[0].action_space

    def reset(self, **_: Any) -> Any:
        return tuple(map(list, zip(*(env.reset() for env in self.envs), strict=True)))

    def step(self, actions: Any) -> Any:
        return tuple(map(list, zip(*(env.step(0) for env in self.envs), strict=True)))

    def close(self) -> None:
        """Nothing to close."""


class ManyWithoutNextMove(VectorEnv[Any, Any, Any]):
    """The same many at once, one step after the other, so that their episodes end in different steps."""

    def __init__(self, num_envs: int, mode: AutoresetMode, **arguments: Any) -> None:
        self.num_envs, self.metadata = num_envs, {"autoreset_mode": mode}
        self.envs = [NoNextMove(**arguments) for _ in range(num_envs)]
        self.single_observation_space, self.single_action_space = MASKED_SPACE, spaces.Discrete(2)
        self.over = [False] * num_envs

    def shown(self, rows: list[Any]) -> Any:
        masks = [row.get("action_mask") for row in rows]
        whole = all(isinstance(mask, np.ndarray) for mask in masks)
        return {"seen": np.stack([row["seen"] for row in rows]), "action_mask": np.stack(masks) if whole else masks}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        rows = options["reset_mask"] if options else [True] * self.num_envs
        for index, env in enumerate(self.envs):
            if rows[index]:
                env.reset()
                env.steps = 0 if options else index % 3
        return self.shown([env.seen()[0] for env in self.envs]), {}

    def step(self, actions: Any) -> Any:
        mode = self.metadata["autoreset_mode"]
        rows = []
        infos: dict[str, Any] = {}
        for index, env in enumerate(self.envs):
            if mode == AutoresetMode.NEXT_STEP and self.over[index]:
                rows.append((env.reset()[0], 0.0, False, False))
            else:
                rows.append(env.step(0)[:4])
        self.over = [row[2] or row[3] for row in rows]
        if mode == AutoresetMode.SAME_STEP:
            infos = {"final_obs": [row[0] for row in rows], "_final_obs": np.array(self.over)}
            rows = [
                (env.reset()[0], *row[1:]) if over else row
                for env, row, over in zip(self.envs, rows, self.over, strict=True)
            ]
        observations, *columns = (list(column) for column in zip(*rows, strict=True))
        return self.shown(observations), *map(np.array, columns), infos


def many_without_next_move(num_envs: int, mode: AutoresetMode, **arguments: Any) -> ManyWithoutNextMove:
    return ManyWithoutNextMove(num_envs, mode, **arguments)


def walkers(**arguments: Any) -> Parallel:
    return Parallel(Walkers(**arguments))


class LivesUnsaid(LosesLives):
    """Ends a trajectory at each lost life as well, but says nothing of it in info, like the wrappers of CleanRL.

    A reset with a seed goes on with the game as well.
    """

    def reset(self, **arguments: Any) -> Any:
        return super().reset(**arguments if self.is_over else {})

    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        info.pop("episode_continues", None)
        return *rest, info


def lives_unsaid_above_statistics() -> Any:
    return halved(LivesUnsaid(raw(5)))


class EndlessLives(Counter):
    """Loses a life in every second step and goes on after it, unless its reset has a seed. No game ever ends."""

    def __init__(self) -> None:
        super().__init__(episode_steps=0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None or self.episode < 0:
            return super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        observation, reward, _, _, _ = super().step(action)
        loses = self.steps % 2 == 0
        return observation, reward, loses, False, {"episode_continues": True} if loses else {}
