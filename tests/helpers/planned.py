"""Policies and environments for tests of plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

import sf
from sf.plans import Policy, SampleBatch, build_torch_policy
from sf.plans.policy import Actions


class TenSteps(gym.Env[Any, Any]):
    """Episodes of ten steps, whose observation is the step and whose reward is 1."""

    observation_space = gym.spaces.Box(0, 100, (1,), np.float32)
    action_space: gym.Space[Any] = gym.spaces.Discrete(2)
    steps = 0
    """Steps of all of them in this process."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray[Any, Any], float, bool, bool, dict[str, Any]]:
        TenSteps.steps += 1
        self.t += 1
        return np.full(1, self.t, np.float32), 1.0, self.t == 10, False, {}


class Limited(TenSteps):
    """The same with a time limit instead of an end."""

    def step(self, action: int) -> tuple[np.ndarray[Any, Any], float, bool, bool, dict[str, Any]]:
        observation, reward, is_over, _, info = super().step(action)
        return observation, reward, False, is_over, info


class Echo(TenSteps):
    """Observes the action that it was given."""

    action_space = gym.spaces.Box(-2, 2, (1,), np.float32)

    def step(self, action: Any) -> tuple[np.ndarray[Any, Any], float, bool, bool, dict[str, Any]]:
        _, *others = super().step(action)
        return np.array(action, np.float32), *others  # type: ignore[return-value]  # as the base class


class Crashing(TenSteps):
    """The twentieth step of a process ends it, in the worker of a number or in all of them."""

    def __init__(self, sf_worker: int = 0, only: int | None = None) -> None:
        self.ends = only in (None, sf_worker)

    def step(self, action: int) -> tuple[np.ndarray[Any, Any], float, bool, bool, dict[str, Any]]:
        if self.ends and TenSteps.steps == 20:
            import os

            os._exit(3)
        return super().step(action)


sf.register_env("TenSteps", TenSteps)
sf.register_env("Limited", Limited)
sf.register_env("Echo", Echo)
sf.register_env("Crashing", Crashing)
TEN_STEPS = "tests.helpers.planned:TenSteps"
LIMITED = "tests.helpers.planned:Limited"
ECHO = "tests.helpers.planned:Echo"
CRASHING = "tests.helpers.planned:Crashing"
COLUMNS = {"obs", "new_obs", "actions", "rewards", "dones", "infos", "eps_id", "unroll_id", "agent_index", "t"}


class CountingPolicy(Policy):
    """Written from scratch: a weight w, a state that counts steps, and two extra columns."""

    def __init__(self, observation_space: Any, action_space: Any, config: Mapping[str, Any]) -> None:
        super().__init__(observation_space, action_space, config)
        self.w = 1.5
        self.learned: list[int] = []

    def compute_actions(
        self,
        obs_batch: Any,
        state_batches: Sequence[Any] = (),
        prev_action_batch: Any = None,
        prev_reward_batch: Any = None,
        info_batch: Any = None,
        episodes: Any = None,
    ) -> Actions:
        rows = len(obs_batch)
        extra = {"some_value": np.full(rows, self.w), "other_value": np.asarray(obs_batch)[:, :1] * 10}
        return np.zeros(rows, np.int64), [state_batches[0] + 1], extra

    def get_initial_state(self) -> list[Any]:
        return [np.zeros((), np.int64)]

    def learn_on_batch(self, samples: SampleBatch) -> dict[str, Any]:
        self.learned.append(samples.count)
        self.w += 1
        return {"w": self.w}

    def compute_gradients(self, postprocessed_batch: SampleBatch) -> tuple[Any, dict[str, Any]]:
        return [np.float64(1.0), np.float64(postprocessed_batch.count)], {"count": postprocessed_batch.count}

    def apply_gradients(self, gradients: Any) -> None:
        self.w += gradients[0]

    def get_weights(self) -> Any:
        return {"w": self.w}

    def set_weights(self, weights: Any) -> None:
        self.w = weights["w"]


def pull(policy: Any, model: Any, dist_class: Any, batch: SampleBatch) -> Any:
    """A loss that makes the taken actions likelier."""
    logits, _ = model.from_batch(batch)
    return -dist_class(logits, model).logp(batch["actions"]).mean()


TorchPull = build_torch_policy("TorchPull", loss_fn=pull)


def check_columns(batch: SampleBatch) -> None:
    """Rows D2 to D4, of the counting policy in episodes of ten steps."""
    assert batch.keys() >= COLUMNS
    assert {len(column) for column in batch.values()} == {batch.count}
    same = (batch["eps_id"][1:] == batch["eps_id"][:-1]) & (batch["agent_index"][1:] == batch["agent_index"][:-1])
    assert (batch["new_obs"][:-1][same] == batch["obs"][1:][same]).all()
    assert (batch["obs"][:, 0] == batch["t"]).all()
    assert (batch["t"] == batch["state_in_0"]).all(), "the state begins anew with the episode"
    assert (batch["state_out_0"] == batch["state_in_0"] + 1).all()
    assert (batch["state_in_0"][1:][same] == batch["state_out_0"][:-1][same]).all()
    assert (batch["dones"] == (batch["t"] == 9)).all()
    assert (batch["other_value"][:, 0] == 10 * batch["t"]).all()
