"""Environments of one agent, stepped one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sf.envs.contract import check_tuple, flag, number
from sf.envs.statistics import EPISODE, EPISODE_CONTINUES, METRICS, kept
from sf.envs.stepping import FALSE, Ended, SteppedSingly
from sf.errors import EnvError
from sf.processes.process import Stopped
from sf.shared.arena import Array
from sf.shared.progress import Phase


class SingleAgentBatch(SteppedSingly):
    """Gymnasium environments; environment i is row i."""

    def write_seen(self, observations: dict[str, Array], index: int, seen: Any) -> None:
        self.write(observations, index, seen)

    def env_action(self, action: Array) -> Any:
        (only,) = self.to_env_actions(action[np.newaxis])
        return only

    def step(self, actions: Array, observations: dict[str, Array], rewards: Array) -> list[Ended]:
        ended: list[Ended] = []
        received: list[float] = []
        write, row, is_vector = self.write, -1, bool(self.write.vector_size)
        # A slice of a memoryview takes one array of exactly its length and dtype, at half the price of checking both.
        vectors = observations["obs"].reshape(-1).data if is_vector else memoryview(b"")
        word, stepping, stop = self.progress.word, self.progress.begin(Phase.STEP), self.stop
        if self.history is not None:
            self.history.add(actions)
        try:
            for row, env, action, place in zip(
                self.rows, self.envs, self.to_env_actions(actions), self.places, strict=True
            ):
                if stop[0]:  # 25 ns, and slow environments are not stepped for a minute after the run has ended
                    raise Stopped
                word[0] = stepping + row
                result = env.step(action)
                if result.__class__ is not tuple or len(result) != 5:
                    check_tuple(result, "step")
                observation, reward, terminated, truncated, info = result
                received.append(reward if isinstance(reward, float) else number(reward))
                if info.__class__ is dict and METRICS in info:
                    self.metrics.add(row, info[METRICS])
                if (terminated is not False and terminated is not FALSE) or (
                    truncated is not False and truncated is not FALSE
                ):
                    terminated, truncated = flag(terminated, "terminated"), flag(truncated, "truncated")
                    if terminated or truncated:
                        observation = self._end(row, observation, terminated, truncated, info, ended)
                if is_vector:
                    try:
                        vectors[place] = observation
                        continue
                    except (TypeError, ValueError):
                        pass  # something else, which may still be stored without loss
                write(observations, row, observation)
        except Exception as error:
            self.fail("step", row, error)
        self.check_ranges("step", observations)
        self.last_rewards[:] = rewards[:] = received  # numpy warns of large numbers between arrays only
        return ended

    def _end(self, row: int, observation: Any, terminated: bool, truncated: bool, info: Any, ended: list[Ended]) -> Any:
        """Records the end of an episode and returns the first observation of the next one."""
        if not isinstance(info, Mapping):
            raise EnvError(f"info is {info!r} ({type(info).__name__}), expected a dict.")
        if not terminated:
            self.keep_final(row, observation)
        info = kept(info)  # before the reset may clear it
        continues = info.get(EPISODE_CONTINUES)
        if continues:
            self.history = None  # a reset with a seed of its own would begin another game
        try:
            observation, reset_info = self.reset_one(row)
        except EnvError:
            raise  # the step says whose it is
        except Exception as error:
            self.fail("reset", row, error)
        if continues:  # a game can end within the reset after a lost life
            info |= {key: reset_info[key] for key in (EPISODE, EPISODE_CONTINUES) if key in reset_info}
        if not info.get(EPISODE_CONTINUES):
            self.metrics.finish(row, info)
        ended.append(Ended(row, terminated, truncated, info))
        return observation

    def replayed(self, index: int, result: Any) -> None:
        if isinstance(info := result[4], Mapping):
            self.metrics.add(index, info.get(METRICS))
