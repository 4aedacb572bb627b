"""Rollout workers that say how much of the time of a step is spent inside the environments."""

from __future__ import annotations

import time
from typing import Any

from sf.envs.stepping import Ended, EnvBatch
from sf.envs.vector_stepping import VectorBatch
from sf.rollout.worker import RolloutWorker
from sf.shared.arena import Arena, Array, Field

ONE_IN = 16
"""Steps of a group, of which one is timed: a clock around every call would change what it measures."""


def make_probes(num_workers: int) -> Arena:
    """For each worker: seconds of the timed steps, and how many of them were inside an environment."""
    return Arena({"probes": Field((num_workers, 2), "float64")})


class ProbedWorker(RolloutWorker):
    """The real worker with probes around its environments."""

    def __init__(self, probes: Arena, **arguments: Any):
        super().__init__(**arguments)
        for group in self.groups:
            group.envs = ProbedEnvs(group.envs, probes["probes"][arguments["index"]])


class ProbedEnvs:
    """The environments of one group."""

    def __init__(self, envs: EnvBatch, seconds: Array):
        self.envs, self.seconds, self.calls = envs, seconds, 0
        self.fillers, self.last_rewards = envs.fillers, envs.last_rewards
        self._name = "env" if isinstance(envs, VectorBatch) else "envs"
        self._plain: Any = getattr(envs, self._name)
        several = isinstance(self._plain, list)
        self._timed = [TimedEnv(env) for env in (self._plain if several else [self._plain])]
        self._swapped: Any = self._timed if several else self._timed[0]

    @property
    def next_fillers(self) -> Array:
        return self.envs.next_fillers

    def reset(self, observations: dict[str, Array]) -> None:
        self.envs.reset(observations)

    def restart(self, index: int, observations: dict[str, Array]) -> None:
        self.envs.restart(index, observations)

    def step(self, actions: Array, observations: dict[str, Array], rewards: Array) -> list[Ended]:
        self.calls += 1
        step = self._timed_step if self.calls % ONE_IN == 0 else self.envs.step
        ended = step(actions, observations, rewards)
        self.fillers = self.envs.fillers
        return ended

    def _timed_step(self, actions: Array, observations: dict[str, Array], rewards: Array) -> list[Ended]:
        setattr(self.envs, self._name, self._swapped)
        inside_before, started = self._inside_s(), time.perf_counter()
        ended = self.envs.step(actions, observations, rewards)
        whole = time.perf_counter() - started
        self.seconds += whole, self._inside_s() - inside_before
        setattr(self.envs, self._name, self._plain)
        return ended

    def _inside_s(self) -> float:
        return sum(env.seconds for env in self._timed)

    def close(self) -> None:
        self.envs.close()


class TimedEnv:
    """Passes everything on to an environment and counts the seconds that it takes to step and to reset."""

    def __init__(self, env: Any):
        self.env, self.seconds = env, 0.0

    def step(self, actions: Any) -> Any:
        started = time.perf_counter()
        answer = self.env.step(actions)
        self.seconds += time.perf_counter() - started
        return answer

    def reset(self, **options: Any) -> Any:
        started = time.perf_counter()
        answer = self.env.reset(**options)
        self.seconds += time.perf_counter() - started
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)
